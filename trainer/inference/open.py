"""Opens the model of a checkpoint: on this machine for a directory, at W&B for an artifact.

Either way it is the ``ChatModel`` that agents and evaluation talk to.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from data_bridge.errors import BackendError, ConfigurationError
from data_bridge.models import ChatMessage
from data_bridge.record_openai import token_ids_of
from data_bridge.redaction import redact, register_secret
from trainer.inference.base_model import check_base, model_directory
from trainer.inference.serving import WANDB_BASE_URL
from trainer.types import ChatModel, Checkpoint, Completion

if TYPE_CHECKING:
    from openai.types.chat.chat_completion import Choice
    from pydantic import SecretStr

    from trainer.inference.engine import Engine

ARTIFACT = "wandb-artifact:///"
_ATTEMPTS = 4


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
            settings.wandb_base_url or WANDB_BASE_URL, checkpoint.location, _wandb_key(settings), name=checkpoint.name
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


class EndpointModel:
    """A model behind an OpenAI-compatible endpoint.

    It is asked for log-probabilities; where the endpoint refuses them, replies come without tokens. Endpoints report
    log-probabilities of the unscaled distribution, so they are those of temperature 1.
    """

    def __init__(
        self,
        base_url: str | None,
        model: str,
        api_key: str,
        *,
        name: str | None = None,
        timeout: float = 120.0,
    ) -> None:
        from openai import AsyncOpenAI

        register_secret(api_key)
        self._client = AsyncOpenAI(base_url=base_url, api_key=api_key, timeout=timeout, max_retries=_ATTEMPTS - 1)
        self._model = model
        self._name = name or model
        self._has_logprobs = True

    @property
    def name(self) -> str:
        return self._name

    async def chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        n: int = 1,
        temperature: float = 1.0,
        max_tokens: int = 64,
        stop: Sequence[str] = (),
        seed: int | None = None,
    ) -> list[Completion]:
        from openai import BadRequestError, OpenAIError

        options: dict[str, Any] = {"n": n, "temperature": temperature, "max_tokens": max_tokens}
        if stop:
            options["stop"] = list(stop)
        if seed is not None:
            options["seed"] = seed
        try:
            try:
                choices = await self._choices(messages, options)
            except BadRequestError:
                if not self._has_logprobs:
                    raise
                self._has_logprobs = False
                choices = await self._choices(messages, options)
        except OpenAIError as error:
            raise BackendError(
                f"The model {self._model} at {redact(str(self._client.base_url))} did not answer "
                f"({type(error).__name__}): check the URL, the key and the model's name."
            ) from error
        return [_completion(choice, self._name) for choice in choices]

    async def _choices(self, messages: Sequence[ChatMessage], options: dict[str, Any]) -> list[Choice]:
        asked = options | ({"logprobs": True} if self._has_logprobs else {})
        shaped = [_message(message) for message in messages]
        answer = await self._client.chat.completions.create(model=self._model, messages=shaped, **asked)
        choices: list[Choice] = answer.choices
        return choices

    async def close(self) -> None:
        await self._client.close()


def _message(message: ChatMessage) -> Any:
    shaped: dict[str, Any] = {"role": message.role, "content": message.content}
    for key in ("name", "tool_calls", "tool_call_id"):
        if (value := getattr(message, key)) is not None:
            shaped[key] = value
    return shaped


def _completion(choice: Choice, model: str) -> Completion:
    """Without tokens where the endpoint does not give both their ids and their log-probabilities."""
    content = (choice.logprobs.content if choice.logprobs is not None else None) or []
    token_ids = token_ids_of(choice)
    has_both = len(token_ids) == len(content)
    return Completion(
        text=choice.message.content or "",
        token_ids=tuple(token_ids) if has_both else (),
        logprobs=tuple(entry.logprob for entry in content) if has_both else (),
        finish_reason=choice.finish_reason,
        model=model,
    )
