"""How late it is for whoever reads windows: the database's time, or the simulated market's where that is ahead.

The database's, because a host whose own clock is wrong would find no windows, or ones that are not over.

The closed loop plays one day after the other, faster than they pass: what it has played is over all the same.
"""

from __future__ import annotations

from datetime import datetime

from data_bridge.database import Database
from data_bridge.window_ids import GRACE, end_of
from trainer.config.sections import moment_of
from trainer.ledger.simulation import newest_simulated


async def clock(database: Database, until: str | None) -> datetime:
    """``--until``, or now; where simulated windows lie ahead of us, the moment at which the last of them is closed."""
    if until is not None:
        return moment_of(until)
    now: datetime = await database.pool.fetchval("SELECT now()")
    newest = await newest_simulated(database)
    return now if newest is None else max(now, end_of(newest, 1) + GRACE)
