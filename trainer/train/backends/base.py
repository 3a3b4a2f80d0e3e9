"""The interface between the pipeline and whatever trains: prepare a batch, train it once, find out after a crash."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from data_bridge.quality import Exclusion
from trainer.types import Batch, Checkpoint, StepResult

if TYPE_CHECKING:
    import art

Submitted = Callable[[str], Awaitable[None]]
"""Stores what is known about the remote job, so that a crash cannot lose it; each call replaces the last one's text.

Called first before the batch leaves this process (a crash while it is being sent is then known of), and again
with the job's id before the job is followed. The text is the backend's own receipt, the job's id in front:
store it as it is, and hand the newest one to ``settle`` as ``job_id``; None means that nothing was ever sent.
"""


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """A batch as ART trains it, and what had to be left out of it."""

    batch: Batch
    groups: list[art.TrajectoryGroup]
    exclusions: tuple[Exclusion, ...]
    trainable_tokens: int
    metrics: dict[str, float] = field(default_factory=dict)
    """What is known before training: rewards, advantages, shares of foreign, re-scored and off-temperature tokens."""


class TrainingBackend(Protocol):
    """One trained model on one backend. Not safe for two processes at once: the ledger's lock sees to that."""

    name: str

    async def open(self) -> int:
        """Load or register the model. Returns the newest durable step (0 for an untrained model)."""
        ...

    async def current_step(self) -> int:
        """The newest durable step, as the disk or the server knows it now."""
        ...

    def checkpoint(self, step: int) -> Checkpoint: ...

    async def prepare(self, batch: Batch) -> PreparedBatch:
        """Convert, score what the log has no log-probabilities for, and count. Trains nothing, pays nothing."""
        ...

    async def train(self, prepared: PreparedBatch, *, on_submitted: Submitted) -> StepResult:
        """One gradient step. The checkpoint is durable when this returns. BackendError if nothing was trainable.

        An error after the first call of ``on_submitted`` does not mean that the batch was not taken: the job may
        go on. Leave the batch submitted, and let ``settle`` say what became of it.
        """
        ...

    async def settle(self, batch_id: str, job_id: str | None, policy_step: int) -> StepResult | None:
        """After a crash: the result of a batch that was submitted, waiting for its job if it still runs.

        None if the backend never took the batch, or says that it failed, so that it may be sent again.
        BackendError if that cannot be known yet.
        """
        ...

    async def remove(self, steps: Sequence[int]) -> list[int]:
        """Delete the files of these checkpoints, if they are on this machine; those that were."""
        ...

    async def close(self) -> None: ...
