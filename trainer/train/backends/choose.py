"""Which backend trains, and why; and opening it. Nothing heavy is imported before a backend is opened."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

from trainer.config.sections import BackendSettings, TrainSettings
from trainer.train.backends.arguments import base_model_of
from trainer.train.backends.art_import import prepare_environment
from trainer.train.backends.base import TrainingBackend
from trainer.train.backends.gpu import why_no_gpu

BackendName = Literal["cpu", "local", "serverless"]


@dataclass(frozen=True, slots=True)
class Choice:
    """A backend, and the reason in words that can be printed after its name."""

    name: BackendName
    reason: str
    base_model: str

    def __str__(self) -> str:
        return f"{self.name} ({self.reason}), training {self.base_model}"


def choose_backend(settings: BackendSettings) -> Choice:
    """As ``--backend`` says; ``auto`` is serverless with a W&B key, else local with a GPU, else the CPU."""
    name, reason = _chosen(settings)
    return Choice(name, reason, base_model_of(name, settings))


def _chosen(settings: BackendSettings) -> tuple[BackendName, str]:
    if settings.backend != "auto":
        return settings.backend, f"--backend {settings.backend}"
    if settings.wandb_api_key is not None and settings.wandb_api_key.get_secret_value():
        return "serverless", "WANDB_API_KEY is set"
    reason = why_no_gpu()
    if reason is None:
        return "local", "no WANDB_API_KEY, and there is a GPU"
    return "cpu", f"no WANDB_API_KEY, and {reason}"


@asynccontextmanager
async def open_backend(settings: TrainSettings) -> AsyncIterator[TrainingBackend]:
    """The chosen backend, opened; ``current_step`` tells where it stands. Closed at the end, whatever happened."""
    prepare_environment()
    backend = _backend(choose_backend(settings).name, settings)
    try:
        await backend.open()
        yield backend
    finally:
        await backend.close()


def _backend(name: BackendName, settings: TrainSettings) -> TrainingBackend:
    if name == "serverless":
        from trainer.train.backends.serverless import ServerlessBackend

        return ServerlessBackend(settings)
    if name == "local":
        from trainer.train.backends.local import LocalBackend

        return LocalBackend(settings)
    from trainer.train.backends.cpu import CpuBackend

    return CpuBackend(settings)
