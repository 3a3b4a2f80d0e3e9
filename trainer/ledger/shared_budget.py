"""One ceiling for the judge's cost over all hosts of a job: a number in its row, raised before a call, settled after.

What a worker had set aside when it died stays counted as paid: the call may have been billed. So the ceiling holds
whatever is killed, at the price of at most the calls that were in flight.
"""

from __future__ import annotations

import asyncio

from data_bridge.database import Database

_PAUSE, _PATIENCE = 0.25, 30.0
"""Seconds between attempts, and in all, while calls of other workers may still turn out cheaper than was set aside."""

_SET_ASIDE = """
UPDATE hindsight.unit_jobs SET committed_usd = committed_usd + $2, in_flight = in_flight + 1
 WHERE job_id = $1 AND committed_usd + $2 <= max_cost RETURNING job_id
"""
_SETTLE = """
UPDATE hindsight.unit_jobs SET committed_usd = committed_usd + $2, in_flight = in_flight - 1 WHERE job_id = $1
"""


class JobBudget:
    """The ceiling of one job, kept in the ledger."""

    def __init__(self, database: Database, job_id: str) -> None:
        self._pool = database.pool
        self._job_id = job_id

    async def set_aside(self, usd: float) -> bool:
        """Reserve ``usd`` for one call; False if the ceiling is reached and no call in flight can change that."""
        waited = 0.0
        while await self._pool.fetchval(_SET_ASIDE, self._job_id, usd) is None:
            in_flight = await self._pool.fetchval(
                "SELECT in_flight FROM hindsight.unit_jobs WHERE job_id = $1", self._job_id
            )
            if not in_flight or waited >= _PATIENCE:
                return False
            await asyncio.sleep(_PAUSE)
            waited += _PAUSE
        return True

    async def settle(self, set_aside: float, paid: float) -> None:
        """The call that ``set_aside`` was for has ended; ``paid`` was paid, for it or for calls before it."""
        await self._pool.execute(_SETTLE, self._job_id, paid - set_aside)
