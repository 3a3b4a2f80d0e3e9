"""One process at a time for a task that any host may begin: an update of a policy, an admission of lessons.

The lock belongs to a transaction that stays open, without a snapshot, while the task runs. It ends with the process,
and it holds through a pooler in transaction mode, where a session's lock would be left behind on the server's
connection for whoever is given that next.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from data_bridge.database import Database


@asynccontextmanager
async def one_at_a_time(database: Database, task: str) -> AsyncIterator[bool]:
    """False if another process is at ``task``."""
    async with database.pool.acquire() as connection, connection.transaction():
        name = f"hindsight.{task}"
        yield bool(await connection.fetchval("SELECT pg_try_advisory_xact_lock(hashtextextended($1, 0))", name))
