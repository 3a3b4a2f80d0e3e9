"""The current time for reading windows: the database's, or the simulated market's if that is ahead.

Not the host's clock: if that is wrong, it would find no windows, or windows that have not ended.

The closed loop plays days faster than real time: the windows that it has played have still ended.
"""

from __future__ import annotations

from datetime import datetime

from data_bridge.database import Database
from data_bridge.window_ids import GRACE, end_of
from trainer.config.sections import moment_of
from trainer.ledger.simulation import newest_simulated


async def clock(database: Database, until: str | None) -> datetime:
    """``--until``, or now; if simulated windows lie in the future, the moment when the last of them closes."""
    if until is not None:
        return moment_of(until)
    now: datetime = await database.pool.fetchval("SELECT now()")
    newest = await newest_simulated(database)
    return now if newest is None else max(now, end_of(newest, 1) + GRACE)
