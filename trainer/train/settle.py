"""After a crash or a damaged disk: make the ledger and the backend agree before anything is trained.

The backend is asked before anything is trained again. If it has a durable checkpoint for the batch, the batch is
recorded now from what was stored when it was prepared. If it never took the batch, the batch is closed as failed and
its trajectories are free again. A checkpoint that the ledger knows and the backend no longer has is lost: training
continues from the last good one, and what was trained into the lost one is trained again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from data_bridge.errors import ConfigurationError
from trainer.ledger.model_lock import ModelLock
from trainer.ledger.runs import Ledger
from trainer.train.backends.adapter_files import is_whole
from trainer.train.stage import metrics_of_step, plain_numbers
from trainer.train.thresholds import parse_thresholds, stop_collapse
from trainer.types import Checkpoint, TrainingBackend

logger = logging.getLogger(__name__)


async def needs_mending(ledger: Ledger, model: str) -> bool:
    """Whether the backend must be asked before a run is planned, as far as the ledger alone shows. Loads nothing."""
    if await ledger.unfinished_batch(model) is not None:
        return True
    newest = await ledger.newest_checkpoint(model)
    return newest is not None and "://" not in newest.location and not is_whole(Path(newest.location))


async def mend(ledger: Ledger, lock: ModelLock, backend: TrainingBackend, stop_on: Sequence[str]) -> list[str]:
    """Settle the unfinished batch, then forget lost checkpoints. Returns a sentence about each thing done."""
    done = (await settle_unfinished(ledger, lock, backend, stop_on), await forget_lost_steps(ledger, lock, backend))
    return [sentence for sentence in done if sentence is not None]


async def settle_unfinished(
    ledger: Ledger, lock: ModelLock, backend: TrainingBackend, stop_on: Sequence[str]
) -> str | None:
    """Settle the one batch that may be unfinished. Returns a sentence about it, or None if there was none.

    A settled step is reported like any other, and like any other it can stop a collapsing run (BackendError).
    """
    record = await ledger.unfinished_batch(lock.model)
    if record is None:
        return None
    await _last_good_step(ledger, lock.model, backend)  # a backend without the other checkpoints cannot know this one
    logger.info("run %s left batch %s unfinished; asking the backend", record.run_id, record.batch_id)
    result = await backend.settle(record.batch_id, record.job_id, record.policy_step)
    if result is None:
        await ledger.batch_failed(lock, record.batch_id, "the process ended before the backend had the batch")
        return f"Batch {record.batch_id} was not trained before the crash; its trajectories are free again."
    metrics = {**metrics_of_step(result, record.known_metrics), "settled": 1.0}
    await ledger.batch_trained(lock, record, result, metrics)
    stop_collapse(parse_thresholds(stop_on), plain_numbers(metrics), result.checkpoint)
    return (
        f"Batch {record.batch_id} had been trained before the crash: checkpoint {result.checkpoint.name} is recorded."
    )


async def forget_lost_steps(ledger: Ledger, lock: ModelLock, backend: TrainingBackend) -> str | None:
    """Compare the newest steps of ledger and backend. Returns a sentence if checkpoints were lost."""
    step = await _last_good_step(ledger, lock.model, backend)
    if step is None:
        return None
    lost = await ledger.steps_lost(lock, step)
    return (
        f"{len(lost)} checkpoint{'s were' if len(lost) != 1 else ' was'} damaged or deleted "
        f"(step {lost[0]} to {lost[-1]}); continuing from step {step}, and retraining the affected windows."
    )


async def _last_good_step(ledger: Ledger, model: str, backend: TrainingBackend) -> int | None:
    """The backend's newest step if the ledger knows later ones; None if the backend has them all.

    ConfigurationError if they are merely somewhere else: with another backend, under another --home, on another host.
    """
    known = await ledger.newest_checkpoint(model)
    if known is None:
        return None
    _refuse_another_backend(known, backend)
    step = await backend.current_step()
    if known.step <= step:
        return None
    _refuse_another_place(known, backend, step)
    return step


def _refuse_another_backend(known: Checkpoint, backend: TrainingBackend) -> None:
    """A backend can neither continue from another backend's checkpoint nor declare it lost."""
    if known.backend != backend.name:
        raise ConfigurationError(
            f"{known.name} was trained by {known.backend} (it is at {known.location}) and cannot be continued by "
            f"{backend.name}: set --backend {known.backend}, or another --model."
        )


def _refuse_another_place(known: Checkpoint, backend: TrainingBackend, step: int) -> None:
    """A checkpoint counts as lost only if this backend would keep it here and other checkpoints are still here."""
    here = backend.checkpoint(known.step).location
    if known.location != here:
        raise ConfigurationError(
            f"{known.name} is at {known.location}, and this run looks for it at {here}: set the --home and "
            "--wandb-project that it was trained with, copy the checkpoints, or set another --model for this run."
        )
    if step == 0 and not Path(here).parent.is_dir():
        raise ConfigurationError(
            f"{known.name} is not at {here}, nor is any other checkpoint of {known.model}: train on the machine that "
            "has them, copy them, or set another --model for this run."
        )
