"""Opens the model of a checkpoint: on this machine for a directory, at W&B for an artifact."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from data_bridge.errors import ConfigurationError
from trainer.inference.embedded_model import check_base
from trainer.inference.endpoint import EndpointModel
from trainer.types import ChatModel, Checkpoint

if TYPE_CHECKING:
    from pydantic import SecretStr

    from trainer.inference.engine import Engine

ARTIFACT = "wandb-artifact:///"
_WANDB_INFERENCE = "https://api.training.wandb.ai/v1"


class EngineSettings(Protocol):
    """What it takes to run a model on this machine: any settings class with the common and the model section has it."""

    @property
    def home(self) -> Path: ...
    @property
    def base_model(self) -> str: ...
    @property
    def threads(self) -> int: ...


class InferenceSettings(EngineSettings, Protocol):
    """What it takes to open any checkpoint: also where W&B has it, and the key to it."""

    @property
    def wandb_api_key(self) -> SecretStr | None: ...
    @property
    def wandb_base_url(self) -> str | None: ...


@asynccontextmanager
async def open_engine(settings: EngineSettings) -> AsyncIterator[Engine]:
    """The engine on the settings' base model: share it between the checkpoints that are compared or served."""
    from trainer.inference.embedded_model import model_directory
    from trainer.inference.engine import Engine

    engine = Engine(model_directory(settings.base_model, settings.home), threads=settings.threads)
    try:
        yield engine
    finally:
        await engine.close()


@asynccontextmanager
async def open_chat_model(
    checkpoint: Checkpoint, settings: InferenceSettings, *, engine: Engine | None = None
) -> AsyncIterator[ChatModel]:
    """The model of ``checkpoint``. Step 0 is the untrained base model. ``engine`` is used if given, else made."""
    if checkpoint.location.startswith(ARTIFACT):
        remote = EndpointModel(
            settings.wandb_base_url or _WANDB_INFERENCE, checkpoint.location, _wandb_key(settings), name=checkpoint.name
        )
        try:
            yield remote
        finally:
            await remote.close()
        return
    check_base(checkpoint.name, checkpoint.base_model, settings.base_model)
    if engine is not None:
        yield engine.model(adapter_of(checkpoint), checkpoint.name)
    else:
        async with open_engine(settings) as own:
            yield own.model(adapter_of(checkpoint), checkpoint.name)


def adapter_of(checkpoint: Checkpoint) -> Path | None:
    """The LoRA directory of a checkpoint on this machine; None for the untrained base model."""
    directory = Path(checkpoint.location)
    if (directory / "adapter_config.json").is_file():
        return directory
    if checkpoint.step == 0:
        return None
    raise ConfigurationError(f"Checkpoint {checkpoint.name} is not at {directory}: was it deleted or moved?")


def _wandb_key(settings: InferenceSettings) -> str:
    if settings.wandb_api_key is None:
        raise ConfigurationError("WANDB_API_KEY is not set: it is needed to ask a checkpoint at W&B.")
    return settings.wandb_api_key.get_secret_value()
