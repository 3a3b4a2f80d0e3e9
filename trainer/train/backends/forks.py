"""Going back: training that goes on from an earlier checkpoint than the newest, on a backend that can."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from trainer.types import TrainingBackend


@runtime_checkable
class Forks(Protocol):
    """What a backend has besides ``TrainingBackend`` if its next step may start from any checkpoint."""

    async def start_step(self) -> int:
        """The step that the next one starts from: the newest, unless ``start_from`` named another."""
        ...

    async def start_from(self, step: int) -> None:
        """Let the next step start from checkpoint ``step`` (0: the base model)."""
        ...

    def slow_down(self, share: float) -> None:
        """From now on learn at this share of the learning rate."""
        ...


async def start_step_of(backend: TrainingBackend) -> int:
    """The step that the next one starts from."""
    return await backend.start_step() if isinstance(backend, Forks) else await backend.current_step()
