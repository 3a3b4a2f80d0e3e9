"""A command whose database or model is gone for good: the sentence that ends it says what the command was doing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from data_bridge.database import Database, fault_of
from data_bridge.errors import DatabaseLost, EndpointGone
from trainer.ledger.heartbeat import unreachable, while_answered
from trainer.progress import Progress


@asynccontextmanager
async def naming_the_unit(
    database: Database, is_unreachable: asyncio.Event, who: str, progress: Progress
) -> AsyncIterator[None]:
    """DatabaseLost with the window, batch, checkpoint or day in hand, however the block notices that Postgres is gone:
    by a statement that fails, or because heartbeats are not answered, which cancels it. The same for the endpoint of
    the agents' model. ``who`` stopped: the run, or the command."""
    try:
        yield
    except EndpointGone as error:
        raise EndpointGone(f"{who} stopped while {progress.at}: {error}") from error
    except (asyncio.CancelledError, Exception) as error:
        fault = fault_of(error, database.label)
        if is_unreachable.is_set():  # then the pool was closed, and that is no reason
            fault = unreachable(database)
        if not isinstance(fault, DatabaseLost):
            raise
        raise DatabaseLost(f"{who} stopped while {progress.at}: {fault}") from error


@asynccontextmanager
async def unless_gone(database: Database, command: str, progress: Progress) -> AsyncIterator[None]:
    """For a command without a run, and so without a model's lock: DatabaseLost that names the unit, also if the
    database says nothing at all."""
    is_unreachable = asyncio.Event()
    async with (
        while_answered(database, is_unreachable),
        naming_the_unit(database, is_unreachable, command, progress),
    ):
        yield
