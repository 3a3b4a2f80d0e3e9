"""Says that the holder of a claim lives, from the claim on until its period is closed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from data_bridge.redaction import redact
from trainer.schedule.schedule import BEAT, Claim, Periods

logger = logging.getLogger(__name__)

AWAY = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError)
"""What a database that restarts does to a question."""


@asynccontextmanager
async def beating(periods: Periods, claim: Claim) -> AsyncIterator[asyncio.Event]:
    """Beat for the length of the block; the event is set when the claim has gone to another host."""
    lost = asyncio.Event()
    task = asyncio.create_task(_beat(periods, claim, lost), name="heartbeat of the period")
    try:
        yield lost
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _beat(periods: Periods, claim: Claim, lost: asyncio.Event) -> None:
    while not lost.is_set():
        try:
            if not await periods.beat(claim):
                lost.set()
        except AWAY as error:
            logger.warning("no heartbeat this time: %s", redact(str(error) or type(error).__name__))
        await asyncio.sleep(BEAT.total_seconds())
