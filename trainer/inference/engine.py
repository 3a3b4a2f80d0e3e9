"""Answers chat requests with the model on this machine: many at once, several checkpoints, tokens and all.

One thread owns the model. Requests that are waiting together are written together; the reply carries the
sampled tokens, end of sequence included, and their log-probabilities at temperature 1, which is what
training needs. Sample at temperature 1 where the reply is to be trained on: then these are also the
log-probabilities of the policy that sampled.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from data_bridge.errors import BackendError
from data_bridge.models import ChatMessage
from trainer.types import Completion

if TYPE_CHECKING:
    from trainer.inference.wave import Reply

_SETTLE_SECONDS = 0.003
"""How long the thread waits for the rest of a burst of requests."""


@dataclass(slots=True, eq=False)
class _Request:
    messages: Sequence[ChatMessage]
    adapter: Path | None
    model_name: str
    samples: int
    temperature: float
    most_tokens: int
    stop: tuple[str, ...]
    seed: int | None
    tell: Callable[[int, str], None] | None
    """Told the number of a reply and its text so far, after each of its tokens."""
    finish: Callable[[list[Completion] | BaseException], None]
    is_cancelled: bool = False
    replies: list[Reply] = field(default_factory=list)

    @property
    def is_answered(self) -> bool:
        return all(reply.finish_reason is not None for reply in self.replies)


class Engine:
    """The model in ``base`` (a directory) and any number of LoRA checkpoints on it."""

    def __init__(self, base: Path, *, threads: int = 0, merged_checkpoints: int = 2) -> None:
        self._base = base
        self._threads = threads
        self._merged_checkpoints = merged_checkpoints
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._worker: threading.Thread | None = None
        self._is_closed = False
        self._lock = threading.Lock()

    def model(self, adapter_dir: Path | None, name: str) -> EngineModel:
        """The checkpoint in ``adapter_dir`` (None: the untrained base) under the name its replies are logged with."""
        return EngineModel(self, adapter_dir.resolve() if adapter_dir is not None else None, name)

    async def chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        adapter: Path | None,
        model_name: str,
        n: int,
        temperature: float,
        max_tokens: int,
        stop: Sequence[str],
        seed: int | None,
        on_text: Callable[[int, str], None] | None = None,
    ) -> list[Completion]:
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

        request = _Request(
            tuple(messages),
            adapter,
            model_name,
            n,
            temperature,
            max_tokens,
            tuple(stop),
            seed,
            tell if on_text is not None else None,
            finish,
        )
        self._submit(request)
        try:
            return await future
        finally:
            request.is_cancelled = True  # after an answer this says nothing; after a cancel the rows are dropped

    async def close(self) -> None:
        """Answer nobody any more; waits for the thread. Requests under way end with a BackendError."""
        with self._lock:
            self._is_closed = True
            worker = self._worker
        if worker is not None:
            self._requests.put(None)
            await asyncio.to_thread(worker.join)

    def _submit(self, request: _Request) -> None:
        with self._lock:
            if self._is_closed:
                raise BackendError("The model was closed while requests were still coming: start it again.")
            if self._worker is None:
                self._worker = threading.Thread(target=self._work, name="hindsight-engine", daemon=True)
                self._worker.start()
            self._requests.put(request)

    def _work(self) -> None:
        """The thread: load once, then answer until closed. A fault ends the requests it concerns, not the thread."""
        from trainer.inference.engine_loop import EngineLoop

        try:
            loop = EngineLoop(self._base, self._threads, self._merged_checkpoints)
        except BaseException as error:
            self._refuse_all(error)
            return
        while True:
            arrived = self._arrivals(wait=not loop.is_busy)
            if arrived is None:
                loop.abandon(BackendError("The model was closed before the reply was finished: ask again."))
                return
            loop.admit(arrived)
            loop.step()

    def _arrivals(self, *, wait: bool) -> list[_Request] | None:
        """Requests that came since the last look; None when the engine is to close."""
        arrived: list[_Request] = []
        while True:
            try:
                request = self._requests.get(timeout=None if wait else _SETTLE_SECONDS if arrived else 0)
            except queue.Empty:
                return arrived
            if request is None:
                for unanswered in arrived:
                    unanswered.finish(BackendError("The model was closed before it replied: ask again."))
                return None
            arrived.append(request)
            wait = False

    def _refuse_all(self, error: BaseException) -> None:
        """The model could not be loaded: every request, now and later, ends with that reason."""
        while (request := self._requests.get()) is not None:
            request.finish(error)


class EngineModel:
    """One checkpoint of an engine, as the ``ChatModel`` that agents, evaluation and serving talk to."""

    def __init__(self, engine: Engine, adapter_dir: Path | None, name: str) -> None:
        self._engine = engine
        self._adapter = adapter_dir
        self._name = name

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
        on_text: Callable[[int, str], None] | None = None,
    ) -> list[Completion]:
        """``n`` replies. A reply cut at a stop string keeps the tokens that were sampled up to and with it.

        ``on_text`` is told the number of a reply and its text so far while it is being written.
        """
        return await self._engine.chat(
            messages,
            adapter=self._adapter,
            model_name=self._name,
            n=n,
            temperature=temperature,
            max_tokens=max_tokens,
            stop=stop,
            seed=seed,
            on_text=on_text,
        )

    async def close(self) -> None:
        """Nothing: the engine belongs to whoever made it, and other checkpoints share it."""
