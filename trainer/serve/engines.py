"""Several engine processes behind the one endpoint (``serve.py --engines N``).

A request goes to the engine that writes the fewest replies. When an engine is gone, its requests are asked again of
another, except those whose reply has begun to reach its client: these end with a 503 that says to retry. Another
process takes its place.

A promotion is taken up by one engine after the other: it is given nothing new while another is there, finishes what it
has (but no longer than ``DRAINING``: it can write for two checkpoints at once), merges the checkpoint and is back. The
server goes on with what was promoted before until the first of them is done, so no request waits for a checkpoint to be
loaded, and none is dropped.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from data_bridge.errors import BackendError
from data_bridge.models import ChatMessage
from trainer.config.training import EngineSettings
from trainer.inference.base_model import model_directory
from trainer.serve.checkpoints import OnText
from trainer.serve.engine_child import EngineChild, EngineLost
from trainer.serve.engine_orders import ChatRequest
from trainer.serve.wire import RequestError
from trainer.types import Completion

logger = logging.getLogger(__name__)

DRAINING = 5.0
"""Seconds that an engine may take to finish what it has before it takes up a checkpoint beside it."""
_PATIENCE = 30.0
"""Seconds that a request waits for an engine when all are gone."""
_ATTEMPTS = 3
"""How many engines a request may lose: one that kills them all must not go on for ever."""
_SHORT_LIFE, _LONGEST_PAUSE = 10.0, 30.0
"""An engine that is gone within so many seconds is replaced after a pause, which doubles up to so many."""


@asynccontextmanager
async def open_engines(model: EngineSettings, home: Path, number: int) -> AsyncIterator[Engines]:
    """``number`` engines with the base model loaded, which divide its threads."""
    engines = Engines(model_directory(model.base_model, home), shares_of(model.threads, number))
    try:
        await engines.start()
        yield engines
    finally:
        await engines.close()


def shares_of(threads: int, number: int) -> list[int]:
    """``threads`` (0: all cores) divided among ``number`` engines, at least one for each."""
    each, left = divmod(threads or os.cpu_count() or 1, number)
    return [max(1, each + (place < left)) for place in range(number)]


class Engines:
    """The engine processes, one for each entry of ``threads``. For the server's event loop."""

    def __init__(self, base: Path, threads: Sequence[int]) -> None:
        self._base = base
        self._threads = threads
        self._running: list[EngineChild] = []
        self._has_engine = asyncio.Event()
        self._promoted: tuple[Path, ...] = ()
        self._keeping: list[asyncio.Task[None]] = []
        self._rolling: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start all engines; the first error if one cannot."""
        started = await asyncio.gather(*map(self._started, self._threads), return_exceptions=True)
        for engine in started:
            if isinstance(engine, EngineChild):
                self._join(engine)
        for engine in started:
            if isinstance(engine, EngineLost):
                raise BackendError(
                    "An engine process did not start, perhaps for want of memory: each holds the model. "
                    "Use fewer --engines."
                )
            if isinstance(engine, BaseException):
                raise engine
        self._keeping = [
            asyncio.create_task(self._keep(engine, threads), name="engine replacement")
            for engine, threads in zip(list(self._running), self._threads, strict=True)
        ]

    async def close(self) -> None:
        for task in (*self._keeping, *([self._rolling] if self._rolling is not None else [])):
            task.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)
        await asyncio.gather(*(engine.end() for engine in self._running))
        self._running.clear()

    def model(self, adapter_dir: Path | None, name: str) -> SharedModel:
        """The checkpoint in ``adapter_dir`` (None: the untrained base) on whichever engine is free."""
        return SharedModel(self, adapter_dir.resolve() if adapter_dir is not None else None, name)

    @property
    def loads(self) -> dict[int, int]:
        """How many replies each engine has to write, by the id of its process; only of those that answer now."""
        return {engine.process_id: engine.load for engine in self._running if not engine.is_gone.is_set()}

    async def take_up(self, checkpoints: Sequence[Path]) -> None:
        """Have every engine take up what is promoted, one after the other. Returns when the first has."""
        self._promoted = tuple(checkpoint.resolve() for checkpoint in checkpoints)
        if self._rolling is not None:
            self._rolling.cancel()
        one_has = asyncio.Event()
        self._rolling = asyncio.create_task(self._roll(self._promoted, one_has), name="take up a promotion")
        await one_has.wait()  # set by the task at the latest when it ends, and each of its waits has a deadline

    async def answer(self, request: ChatRequest, on_text: OnText | None) -> list[Completion]:
        """The replies, of an engine that lives to write them. RequestError 503 if there is none."""
        has_begun = False

        def tell(reply: int, text: str) -> None:
            nonlocal has_begun
            has_begun = True
            if on_text is not None:
                on_text(reply, text)

        for _ in range(_ATTEMPTS):
            engine = await self._least_loaded(request.adapter)
            try:
                return await engine.ask(request, tell)
            except EngineLost:
                if has_begun:
                    break
        raise RequestError(503, "The engine that wrote this reply is gone; retry.", kind="server_error")

    async def _least_loaded(self, adapter: Path | None) -> EngineChild:
        """The engine with the fewest replies to write, of those that have taken up ``adapter`` if it is promoted."""
        try:
            async with asyncio.timeout(_PATIENCE):
                while not (alive := [engine for engine in self._running if not engine.is_gone.is_set()]):
                    self._has_engine.clear()
                    await self._has_engine.wait()
        except TimeoutError:
            raise RequestError(503, "No engine is running now; retry in a while.", kind="server_error") from None
        wanted = [adapter] if adapter is not None and adapter in self._promoted else []
        return min(alive, key=lambda engine: (engine.is_draining, not engine.has_taken_up(wanted), engine.load))

    async def _roll(self, checkpoints: tuple[Path, ...], one_has: asyncio.Event) -> None:
        try:
            for engine in sorted(self._running, key=lambda engine: engine.load):
                if not engine.has_taken_up(checkpoints):
                    await self._drain_and_take_up(engine, checkpoints)
                if not engine.is_gone.is_set():
                    one_has.set()
        finally:
            one_has.set()

    async def _drain_and_take_up(self, engine: EngineChild, checkpoints: tuple[Path, ...]) -> None:
        engine.is_draining = True
        try:
            if len(self._running) > 1:
                await engine.finish(DRAINING)
            await engine.take_up(checkpoints)
        except EngineLost:
            logger.info("an engine is gone while it took up a promotion; the one that replaces it does")
        finally:
            engine.is_draining = False

    async def _keep(self, engine: EngineChild, threads: int) -> None:
        """Replace ``engine`` whenever it is gone."""
        clock = asyncio.get_running_loop()
        pause = 0.0
        while True:
            began = clock.time()
            await engine.is_gone.wait()
            self._running.remove(engine)
            await engine.end()
            logger.warning("the engine process %d is gone; another is started", engine.process_id)
            pause = _longer(pause) if clock.time() - began < _SHORT_LIFE else 0.0
            while True:
                await asyncio.sleep(pause)
                try:
                    engine = await self._started(threads)
                    break
                except Exception as error:  # whatever it was, the next attempt may find more memory, or the file
                    pause = _longer(pause)
                    logger.warning(
                        "an engine process did not start (%s: %s); the next attempt is in %.0f s",
                        *(type(error).__name__, error, pause),
                    )
            self._join(engine)

    async def _started(self, threads: int) -> EngineChild:
        """An engine that has taken up what is promoted."""
        engine = await EngineChild.started(self._base, threads)
        try:
            await engine.take_up(self._promoted)
        except BaseException:
            await engine.end()
            raise
        return engine

    def _join(self, engine: EngineChild) -> None:
        self._running.append(engine)
        self._has_engine.set()


def _longer(pause: float) -> float:
    return min(_LONGEST_PAUSE, max(0.5, 2 * pause))


@dataclass(frozen=True, slots=True)
class SharedModel:
    """One checkpoint on the engines; as ``EngineModel`` on one."""

    engines: Engines
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
        on_text: OnText | None = None,
    ) -> list[Completion]:
        """As ``EngineModel.chat``."""
        is_streamed = on_text is not None
        request = ChatRequest(
            tuple(messages), self.adapter, self.name, n, temperature, max_tokens, tuple(stop), seed, is_streamed
        )
        return await self.engines.answer(request, on_text)
