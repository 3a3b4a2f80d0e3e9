"""How far a run is: the numbers that a view shows. The pipeline writes them, a view reads them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from trainer.types import Checkpoint


@dataclass(slots=True)
class Progress:
    """Counted up by the pipeline's stages, each of which writes its own fields."""

    windows: int = 0
    windows_read: int = 0
    groups: int = 0
    groups_judged: int = 0
    groups_cached: int = 0
    groups_failed: int = 0
    groups_without_signal: int = 0
    cost_usd: float = 0.0
    steps: int = 0
    """Gradient steps done in this run."""
    step: int = 0
    """The model's newest step."""
    newest: Checkpoint | None = None
    """Of ``step``, if this process trained it."""
    trainable_tokens: int = 0
    train_seconds: float = 0.0
    rescored: int = 0
    """Batches that were prepared again because the policy had moved on."""
    latest: dict[str, float] = field(default_factory=dict)
    """The newest step's metrics."""

    @property
    def tokens_per_second(self) -> float:
        return self.trainable_tokens / self.train_seconds if self.train_seconds else 0.0


class View(Protocol):
    """Where a run is watched. None of its calls may fail or wait."""

    def say(self, text: str) -> None:
        """One event, as one line."""
        ...

    def show(self, progress: Progress) -> None:
        """The state of the run, whenever it changed."""
        ...

    def close(self) -> None: ...


class Silent:
    """A view for machines and tests."""

    def say(self, text: str) -> None: ...

    def show(self, progress: Progress) -> None: ...

    def close(self) -> None: ...
