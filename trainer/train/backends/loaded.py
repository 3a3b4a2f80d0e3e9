"""The policy in memory beside the checkpoints on disk: which step the weights are, where the next starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainer.inference.checkpoints import CheckpointStore
from trainer.inference.policy import CpuPolicy


@dataclass(slots=True)
class Loaded:
    """The policy in memory, the checkpoints on disk, and the step of both."""

    store: CheckpointStore
    base_model: str
    policy: CpuPolicy
    step: int | None = None
    """None while the weights belong to no checkpoint: before the first is loaded, and during a step."""
    fork: tuple[int, int] | None = None
    """The newest step when training went back, and the step that it went back to."""

    @property
    def newest(self) -> int:
        newest = self.store.newest()
        return 0 if newest is None else newest.step

    @property
    def start(self) -> int:
        """The step that the next one starts from."""
        newest = self.newest
        return self.fork[1] if self.fork is not None and self.fork[0] == newest else newest

    def sound(self, step: int) -> Path | None:
        """The directory of a checkpoint, if it is intact."""
        return self.store.path(step) if self.store.is_sound(step) else None

    def synchronise(self) -> int:
        """Load the checkpoint to start from if the weights in memory differ, for example after a failed step."""
        step = self.start
        if self.step != step:
            self.step = None
            if step == 0:
                self.policy.reset()
            else:
                self.policy.load(self.store.path(step))
            self.step = step
        return step
