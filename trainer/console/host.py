"""This host as one that trains: it takes what was asked for while it is idle."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

from data_bridge.database import Database
from data_bridge.redaction import redact
from trainer.config.settings import Command
from trainer.ledger.commands import Presence, presence, take_start
from trainer.schedule.commanded import TRAIN_MMO, gate_what_was_asked_for, run_start

logger = logging.getLogger(__name__)

EVERY = timedelta(seconds=1)


@asynccontextmanager
async def taking_trainings(
    database: Database, settings: Command, game: str, command: Sequence[str] | None, stop: asyncio.Event
) -> AsyncIterator[None]:
    """Take trainings, and lessons of ``game`` for the gate, for the duration of the block. At its end, or when ``stop``
    is set, the one in hand is stopped after its step and waited for."""
    async with presence(database, "console") as said:
        work = _take(database, settings, game, command or TRAIN_MMO, stop, said)
        taking = asyncio.create_task(work, name="take trainings")
        try:
            yield
        finally:
            stop.set()
            await asyncio.gather(taking, return_exceptions=True)


async def _take(
    database: Database, settings: Command, game: str, command: Sequence[str], stop: asyncio.Event, said: Presence
) -> None:
    while not stop.is_set():
        try:
            taken = await take_start(database)
            if taken is not None:
                said.doing = f"training {taken.command.model}"
                ended = await run_start(database, settings, taken, command=command, stop=stop)
                said.doing = "idle"
                logger.info("the training of %s ended with exit code %d", taken.command.model, ended.exit_code)
                continue
            await gate_what_was_asked_for(database, settings, game, stop=stop, quiet=True)
        except Exception as error:  # a host that cannot train now may be able to later; the command waits for another
            logger.warning("no training could be taken (%s)", redact(str(error) or type(error).__name__))
        try:
            await asyncio.wait_for(stop.wait(), EVERY.total_seconds())
        except TimeoutError:
            continue
