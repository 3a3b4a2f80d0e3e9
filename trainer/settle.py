"""After a crash: what became of the batch that the dead process had in hand.

The backend is asked before anything is trained again. Either it has a durable checkpoint for the batch, then its
books are written now from what was stored when it was prepared; or it never took the batch, then the batch is
closed as failed and its trajectories are free.
"""

from __future__ import annotations

import logging

from trainer.backends.base import TrainingBackend
from trainer.ledger import Ledger
from trainer.model_lock import ModelLock

logger = logging.getLogger(__name__)


async def settle_unfinished(ledger: Ledger, lock: ModelLock, backend: TrainingBackend) -> str | None:
    """Settle the one batch that may be unfinished. Returns a sentence about it, or None if there was none."""
    record = await ledger.unfinished_batch(lock.model)
    if record is None:
        return None
    logger.info("run %s left batch %s unfinished; asking the backend", record.run_id, record.batch_id)
    result = await backend.settle(record.batch_id, record.job_id, record.policy_step)
    if result is None:
        await ledger.batch_failed(lock, record.batch_id, "the process ended before the backend had the batch")
        return f"Batch {record.batch_id} was not trained before the crash; its trajectories are free again."
    await ledger.batch_trained(lock, record, result, {**result.metrics, "settled": 1.0})
    return (
        f"Batch {record.batch_id} had been trained before the crash: checkpoint {result.checkpoint.name} is recorded."
    )
