"""Where agents reach a checkpoint once it is promoted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from trainer.types import Checkpoint

WANDB_BASE_URL = "https://api.training.wandb.ai/v1"
"""Trains and serves: ART's client has the same default."""


@dataclass(frozen=True, slots=True)
class Serving:
    """An OpenAI-compatible endpoint, and the checkpoint's name there."""

    base_url: str
    model: str


class ServingSettings(Protocol):
    """The settings that decide it; any command's settings that have both will do."""

    @property
    def serve_url(self) -> str: ...

    @property
    def wandb_base_url(self) -> str | None: ...


def serving(checkpoint: Checkpoint, settings: ServingSettings) -> Serving:
    """Where the backend serves its own checkpoints, which is W&B; otherwise whatever runs at --serve-url."""
    if checkpoint.abilities.serves_itself:
        return Serving(settings.wandb_base_url or WANDB_BASE_URL, checkpoint.location)
    return Serving(settings.serve_url, checkpoint.name)
