"""What follows on training: evaluate the new checkpoint, ask the gate, publish or refuse, report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainer.session import Session
from trainer.training_run import TrainingRun
from trainer.types import Checkpoint


@dataclass(frozen=True, slots=True)
class AfterTraining:
    """What the command adds to its summary, and the code it ends with."""

    exit_code: int = 0
    summary: Mapping[str, Any] = field(default_factory=dict)


async def after_training(session: Session, run: TrainingRun, before: Checkpoint) -> AfterTraining:
    """Compare the newest checkpoint with the one that the agents use; ``before`` is where this run began."""
    return AfterTraining()
