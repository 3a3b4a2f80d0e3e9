"""The models that agents and evaluation use, each a ``ChatModel``: the engine on this machine, or an endpoint.

The engine runs a base model and any number of LoRA checkpoints on it in its own thread; only that thread loads torch.
``open_chat_model`` opens the model of a checkpoint: on the engine for a directory, at W&B for an artifact.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from data_bridge.errors import BackendError, ConfigurationError, EndpointGone
from data_bridge.models import ChatMessage
from data_bridge.record_openai import token_ids_of
from data_bridge.redaction import redact, register_secret
from trainer.config.sections import WandbSecrets
from trainer.config.training import AddressSettings, EngineSettings
from trainer.inference.base_model import check_base, model_directory
from trainer.inference.request import EngineRequest, PromptRefused
from trainer.probed import HttpProbe, ProbedServer, ServerSilent
from trainer.types import ChatModel, Checkpoint, Completion

if TYPE_CHECKING:
    from openai.types.chat.chat_completion import Choice


_ATTEMPTS = 4
_CONNECT_TIMEOUT = 5.0
"""Seconds: a host that is cut off the network does not even refuse a connection."""

K = TypeVar("K")


@asynccontextmanager
async def open_engine(model: EngineSettings, home: Path) -> AsyncIterator[Engine]:
    """The engine for a base model, to be shared by the checkpoints that are compared or served."""

    engine = Engine(model_directory(model.base_model, home), threads=model.threads)
    try:
        yield engine
    finally:
        await engine.close()


@dataclass(frozen=True, slots=True)
class Access:
    """The settings needed to call a checkpoint, wherever it is: on this machine, at W&B, or behind --serve-url."""

    home: Path
    model: EngineSettings
    addresses: AddressSettings
    secrets: WandbSecrets
    gone_after: timedelta
    """How long an endpoint may be away."""


@asynccontextmanager
async def open_chat_model(checkpoint: Checkpoint, access: Access, engine: Engine | None) -> AsyncIterator[ChatModel]:
    """The model of ``checkpoint``; step 0 is the untrained base model. Without ``engine``, one is created if needed."""
    async with AsyncExitStack() as stack:
        can = checkpoint.abilities
        if can.runs_in_engine or (engine is not None and not can.serves_itself):
            check_base(checkpoint.name, checkpoint.base_model, access.model.base_model)
            adapter = adapter_of(checkpoint)
            if engine is None:
                engine = await stack.enter_async_context(open_engine(access.model, access.home))
            yield engine.model(adapter, checkpoint.name)
            return
        at, key = checkpoint.served_at(access.addresses), "none"
        if can.serves_itself:
            if access.secrets.wandb_api_key is None:
                raise ConfigurationError("WANDB_API_KEY is not set: it is needed to call a checkpoint at W&B.")
            key = access.secrets.wandb_api_key.get_secret_value()
        remote = EndpointModel(at.base_url, at.model, key, name=checkpoint.name, gone_after=access.gone_after)
        stack.push_async_callback(remote.close)
        yield remote


async def open_models(stack: AsyncExitStack, access: Access, wanted: Mapping[K, Checkpoint]) -> dict[K, ChatModel]:
    """The models of several checkpoints, those on this machine on one engine; open as long as ``stack`` is."""
    engine = None
    if any(checkpoint.abilities.runs_in_engine for checkpoint in wanted.values()):
        engine = await stack.enter_async_context(open_engine(access.model, access.home))
    return {
        key: await stack.enter_async_context(open_chat_model(checkpoint, access, engine))
        for key, checkpoint in wanted.items()
    }


def adapter_of(checkpoint: Checkpoint) -> Path | None:
    """The LoRA directory of a checkpoint on this machine; None for the untrained base model."""
    directory = Path(checkpoint.location)
    if (directory / "adapter_config.json").is_file():
        return directory
    if checkpoint.step == 0:
        return None
    raise ConfigurationError(f"Checkpoint {checkpoint.name} is not at {directory}: was it deleted or moved?")


class EndpointModel:
    """A model behind an OpenAI-compatible endpoint.

    Requests ask for log-probabilities; if the endpoint refuses them, replies have no tokens. Endpoints report
    log-probabilities of the unscaled distribution, so their temperature is 1.

    With ``gone_after`` an endpoint that is away is waited for so long; EndpointGone if it does not come back, or is
    silent for so long: it answers neither requests nor probes. However slow, one that answers probes is there.
    """

    def __init__(
        self,
        base_url: str | None,
        model: str,
        api_key: str,
        *,
        name: str | None = None,
        timeout: float = 120.0,
        gone_after: timedelta | None = None,
    ) -> None:
        import httpx
        from openai import APIConnectionError, AsyncOpenAI

        register_secret(api_key)
        patience = httpx.Timeout(timeout, connect=_CONNECT_TIMEOUT)
        self._client = AsyncOpenAI(base_url=base_url, api_key=api_key, timeout=patience, max_retries=_ATTEMPTS - 1)
        self._model = model
        self.name = name or model
        self._has_logprobs = True
        self._probe = HttpProbe(str(self._client.base_url))
        self._server: ProbedServer | None = None
        if gone_after is not None:
            lost = (APIConnectionError,)
            self._server = ProbedServer(self._label, self._probe, gone_after.total_seconds(), lost)

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
        from openai import BadRequestError, OpenAIError, UnprocessableEntityError

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
                choices = await self._choices(messages, options, logprobs=False)
                self._has_logprobs = False  # it was them, and not this request, that the endpoint refused
            return [_completion(choice, self.name) for choice in choices]
        except (BadRequestError, UnprocessableEntityError) as error:
            raise PromptRefused(
                f"{self._label} refused a request ({type(error).__name__}): is its prompt longer than the model's "
                "context?"
            ) from error
        except ServerSilent as error:
            raise self._gone() from error
        except OpenAIError as error:
            raise self._failed(f"did not answer ({type(error).__name__})") from error
        except (AttributeError, TypeError, ValueError) as error:  # OpenAI's client checks neither type nor fields
            raise self._failed("did not answer with a chat completion but, perhaps, a proxy's page") from error

    @property
    def _label(self) -> str:
        return f"The model {self._model} at {redact(str(self._client.base_url))}"

    def _failed(self, how: str) -> BackendError:
        return BackendError(f"{self._label} {how}: check the URL, the key and the model's name.")

    def _gone(self) -> EndpointGone:
        assert self._server is not None
        return EndpointGone(
            f"{self._label} has not answered for {self._server.gone_after:g} s: start it, or correct its URL, then run "
            "the same command again, which resumes."
        )

    async def _choices(
        self, messages: Sequence[ChatMessage], options: dict[str, Any], *, logprobs: bool = True
    ) -> list[Choice]:
        asked = options | ({"logprobs": True} if self._has_logprobs and logprobs else {})
        shaped: Any = [{"content": None, **msgspec.to_builtins(message)} for message in messages]

        def request() -> Awaitable[Any]:
            return self._client.chat.completions.create(model=self._model, messages=shaped, **asked)

        answer = await (request() if self._server is None else self._server.answer(request))
        choices: list[Choice] = answer.choices
        if not choices:
            raise ValueError("no choices")
        return choices

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()
        await self._probe.close()
        await self._client.close()


def _completion(choice: Choice, model: str) -> Completion:
    """A completion; without tokens if the endpoint does not return both their ids and their log-probabilities."""
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


_SETTLE_SECONDS = 0.003
"""How long the thread waits for the rest of a burst of requests."""


class Engine:
    """The model in ``base`` (a directory) and any number of LoRA checkpoints on it."""

    def __init__(self, base: Path, *, threads: int = 0, merged_checkpoints: int = 2) -> None:
        self.base = base
        self._threads = threads
        self._merged_checkpoints = merged_checkpoints
        self._requests: queue.SimpleQueue[EngineRequest | None] = queue.SimpleQueue()
        self._worker: threading.Thread | None = None
        self._is_closed = False
        self._lock = threading.Lock()

    def model(self, adapter_dir: Path | None, name: str) -> EngineModel:
        """The checkpoint in ``adapter_dir`` (None: the untrained base); ``name`` is logged with its replies."""
        return EngineModel(self, adapter_dir.resolve() if adapter_dir is not None else None, name)

    async def close(self) -> None:
        """Stop answering and wait for the thread. Requests in progress end with a BackendError."""
        with self._lock:
            self._is_closed = True
            worker = self._worker
        if worker is not None:
            self._requests.put(None)
            await asyncio.to_thread(worker.join)

    def submit(self, request: EngineRequest) -> None:
        """Pass ``request`` to the thread, which the first request starts."""
        with self._lock:
            if self._is_closed:
                raise BackendError("The model was closed while requests were still arriving: start it again.")
            if self._worker is None:
                self._worker = threading.Thread(target=self._work, name="hindsight-engine", daemon=True)
                self._worker.start()
            self._requests.put(request)

    def _work(self) -> None:
        """The thread: load once, then answer until closed. A fault ends the affected requests, not the thread."""
        from trainer.inference.engine_loop import EngineLoop

        try:
            loop = EngineLoop(self.base, self._threads, self._merged_checkpoints)
        except BaseException as error:
            self._refuse_all(error)
            return
        while True:
            arrived = self._arrivals(wait=not loop.is_busy)
            if arrived is None:
                loop.abandon(BackendError("The model was closed before the reply was finished: retry."))
                return
            loop.admit(arrived)
            loop.step()

    def _arrivals(self, *, wait: bool) -> list[EngineRequest] | None:
        """Requests that arrived since the last call; None if the engine is closing."""
        arrived: list[EngineRequest] = []
        while True:
            try:
                request = self._requests.get(timeout=None if wait else _SETTLE_SECONDS if arrived else 0)
            except queue.Empty:
                return arrived
            if request is None:
                for unanswered in arrived:
                    unanswered.finish(BackendError("The model was closed before it replied: retry."))
                return None
            arrived.append(request)
            wait = False

    def _refuse_all(self, error: BaseException) -> None:
        """The model could not be loaded: every request, now and later, ends with this error."""
        while (request := self._requests.get()) is not None:
            request.finish(error)


@dataclass(frozen=True, slots=True)
class EngineModel:
    """One checkpoint of an engine, as the ``ChatModel`` that agents, evaluation and serving use."""

    engine: Engine
    adapter: Path | None
    name: str

    async def chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        n: int = 1,
        temperature: float = 1.0,
        max_tokens: int = 64,
        stop: Sequence[str] = (),
        seed: int | None = None,
        on_text: Callable[[int, str], None] | None = None,
    ) -> list[Completion]:
        """``n`` replies. A reply cut at a stop string keeps the sampled tokens up to and including it.

        ``on_text`` is called with the number of a reply and its text so far while it is being generated.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Completion]] = loop.create_future()

        def settle(result: list[Completion] | BaseException) -> None:
            if future.done():
                return
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)

        def finish(result: list[Completion] | BaseException) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, result)

        def tell(number: int, text: str) -> None:
            if on_text is not None and not loop.is_closed():
                loop.call_soon_threadsafe(on_text, number, text)

        request = EngineRequest(
            tuple(messages),
            self.adapter,
            self.name,
            n,
            temperature,
            max_tokens,
            tuple(stop),
            seed,
            tell if on_text is not None else None,
            finish,
        )
        self.engine.submit(request)
        try:
            return await future
        finally:
            request.is_cancelled = True  # no effect after an answer; after a cancellation the rows are dropped

    async def close(self) -> None:
        """Does nothing: the engine belongs to its creator, and other checkpoints share it."""
