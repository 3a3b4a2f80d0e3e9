"""A run whose database or model is gone for good: the sentence that ends it says what the run was doing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from data_bridge.database import fault_of
from data_bridge.errors import DatabaseLost, EndpointGone
from trainer.ledger.model_lock import unreachable
from trainer.progress import Progress
from trainer.run.session import Session


@asynccontextmanager
async def naming_the_unit(session: Session, run_id: str, progress: Progress) -> AsyncIterator[None]:
    """DatabaseLost with the window, batch, checkpoint or day in hand, however the block notices that Postgres is gone:
    by a statement that fails, or because the model's lock cancels it. The same for the endpoint of the agents' model.
    """
    try:
        yield
    except EndpointGone as error:
        raise EndpointGone(f"Run {run_id} stopped while {progress.at}: {error}") from error
    except (asyncio.CancelledError, Exception) as error:
        fault = fault_of(error, session.database.label)
        if session.lock.is_unreachable.is_set():  # then the pool was closed, and that is no reason
            fault = unreachable(session.database)
        if not isinstance(fault, DatabaseLost):
            raise
        raise DatabaseLost(f"Run {run_id} stopped while {progress.at}: {fault}") from error
