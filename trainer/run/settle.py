"""After a crash or a damaged disk: make the ledger and the backend agree before anything is trained.

The backend is asked before anything is trained again. Either it has a durable checkpoint for the batch, then its
books are written now from what was stored when it was prepared; or it never took the batch, then the batch is
closed as failed and its trajectories are free. A checkpoint that the ledger knows and the backend no longer has is
lost: the model goes on from the last good one, and what was trained into the lost one is trained again.
"""

from __future__ import annotations

import logging
from pathlib import Path

from data_bridge.errors import ConfigurationError
from trainer.backends.adapter_files import is_whole
from trainer.backends.base import TrainingBackend
from trainer.ledger import Ledger
from trainer.records.model_lock import ModelLock

logger = logging.getLogger(__name__)


async def needs_mending(ledger: Ledger, model: str) -> bool:
    """Whether the ledger alone shows that the backend must be asked before a run is planned. Loads nothing."""
    if await ledger.unfinished_batch(model) is not None:
        return True
    newest = await ledger.newest_checkpoint(model)
    return newest is not None and "://" not in newest.location and not is_whole(Path(newest.location))


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


async def forget_lost_steps(ledger: Ledger, lock: ModelLock, backend: TrainingBackend) -> str | None:
    """Compare the newest steps of ledger and backend. Returns a sentence if checkpoints were lost.

    ConfigurationError if they are merely somewhere else: on another host, or under another --home.
    """
    known, step = await ledger.newest_checkpoint(lock.model), await backend.current_step()
    if known is None or known.step <= step:
        return None
    if step == 0 and not Path(known.location).parent.is_dir():
        raise ConfigurationError(
            f"{known.name} is at {known.location}, which is not on this machine: train where it is, copy it here, "
            "or give this run another --model."
        )
    lost = await ledger.steps_lost(lock, step)
    return (
        f"{len(lost)} checkpoints were damaged or deleted (step {lost[0]} to {lost[-1]}); going on from step {step}, "
        "and their windows are trained again."
    )
