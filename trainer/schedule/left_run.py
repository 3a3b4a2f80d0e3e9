"""Whether a training that ended well has left a run: a command that does nothing also ends with 0."""

from __future__ import annotations

import socket
from datetime import datetime

from data_bridge.database import Database


async def has_left_run(database: Database, pid: int, since: datetime) -> bool:
    """Whether process ``pid`` of this host has finished a run since then, a new one or one it took up."""
    return bool(
        await database.pool.fetchval(
            "SELECT EXISTS (SELECT 1 FROM hindsight.runs"
            " WHERE host = $1 AND pid = $2 AND state = 'done' AND finished_at >= $3)",
            *(socket.gethostname(), pid, since),
        )
    )
