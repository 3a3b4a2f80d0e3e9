"""The server's side of one engine process: starts it, asks it, notices when it is gone, ends it."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import subprocess
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from data_bridge.child_environment import start_child
from data_bridge.models import ChatMessage
from trainer.inference.request import PromptRefused
from trainer.serve.checkpoints import OnText
from trainer.serve.engine_orders import (
    Answer,
    AnswerThis,
    ChatRequest,
    LoadBase,
    TextSoFar,
    Withdraw,
    framed,
    next_message,
)
from trainer.types import Completion

logger = logging.getLogger(__name__)

STARTING = 180.0
"""Seconds for an engine to import torch and load the model, or to take up a checkpoint."""
SILENCE = 60.0
"""Seconds without a sign of life after which an engine counts as gone; it gives one every five."""
_ENDING = 10.0
"""Seconds for a killed process to be gone."""
_CHECKPOINTS_KEPT = 2
"""As many as an engine keeps merged."""


class EngineLost(Exception):
    """The process is gone, and with it the replies that it was writing."""


@dataclass(frozen=True, slots=True)
class _Asked:
    replies: asyncio.Future[list[Completion]]
    on_text: OnText | None
    samples: int


class EngineChild:
    """One engine process. For the server's event loop."""

    def __init__(self, process: subprocess.Popen[bytes], ours: socket.socket) -> None:
        self._process = process
        self._ours = ours
        self._asked: dict[int, _Asked] = {}
        self._numbers = itertools.count()
        self._writer: asyncio.StreamWriter | None = None
        self._listening: asyncio.Task[None] | None = None
        self._taken_up: deque[Path] = deque(maxlen=_CHECKPOINTS_KEPT)
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self.is_gone = asyncio.Event()
        self.is_draining = False
        """Whether it takes up a checkpoint and should finish what it has rather than be given more."""

    @classmethod
    async def started(cls, base: Path, threads: int) -> EngineChild:
        """An engine that has loaded ``base``. EngineLost, or the model's own error, if it cannot."""
        child = cls(*start_child("trainer.serve.engine_process", threads=threads))
        try:
            async with asyncio.timeout(STARTING):
                await child._connect()
                child._send(LoadBase(base, threads))
                await child._use(None)
        except TimeoutError:
            await child.end()
            raise EngineLost from None
        except BaseException:
            await child.end()
            raise
        return child

    @property
    def process_id(self) -> int:
        return self._process.pid

    @property
    def load(self) -> int:
        """Replies that it is writing, or has yet to begin."""
        return sum(asked.samples for asked in self._asked.values())

    def has_taken_up(self, checkpoints: Sequence[Path]) -> bool:
        return all(checkpoint in self._taken_up for checkpoint in checkpoints)

    async def take_up(self, checkpoints: Sequence[Path]) -> None:
        """Merge ``checkpoints``, so that no request waits for that. One that is broken fails for who asks for it."""
        for checkpoint in checkpoints:
            if checkpoint in self._taken_up:
                continue
            try:
                async with asyncio.timeout(STARTING):
                    await self._use(checkpoint)
            except EngineLost:
                raise
            except Exception as error:  # the engine answers with whatever the checkpoint made it raise
                logger.warning("an engine could not take up %s: %s: %s", checkpoint, type(error).__name__, error)
            self._taken_up.append(checkpoint)

    async def finish(self, seconds: float) -> None:
        """Wait until it has nothing to do, or for so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_idle.wait()

    async def ask(self, request: ChatRequest, on_text: OnText | None = None) -> list[Completion]:
        """The replies. EngineLost if the process is gone before they are there; otherwise the engine's own errors."""
        if self.is_gone.is_set():
            raise EngineLost
        number = next(self._numbers)
        asked = _Asked(asyncio.get_running_loop().create_future(), on_text, request.samples)
        self._asked[number] = asked
        self._is_idle.clear()
        self._send(AnswerThis(number, request))
        try:
            return await asked.replies
        finally:
            del self._asked[number]
            if not self._asked:
                self._is_idle.set()
            if asked.replies.cancelled():
                self._send(Withdraw(number))

    async def end(self) -> None:
        """Kill the process. Who waits for its replies gets EngineLost."""
        if self._listening is not None:
            self._listening.cancel()
        self._lose_all()
        self._process.kill()
        try:
            await asyncio.to_thread(self._process.wait, _ENDING)
        except subprocess.TimeoutExpired:
            logger.warning("the engine process %d was killed and is still there", self.process_id)
        if self._writer is None:
            self._ours.close()
        else:
            self._writer.close()

    async def _connect(self) -> None:
        reader, self._writer = await asyncio.open_connection(sock=self._ours)
        self._listening = asyncio.create_task(self._listen(reader), name=f"engine {self.process_id}")

    async def _use(self, checkpoint: Path | None) -> None:
        """Have it write one token with ``checkpoint``, for which it loads whatever it has not."""
        with suppress(PromptRefused):  # a chat template of its own taste; the model was loaded before
            await self.ask(ChatRequest((ChatMessage("user", "Hello"),), checkpoint, "", 1, 0.0, 1, (), None, False))

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                async with asyncio.timeout(SILENCE):
                    message = await next_message(reader)
                match message:
                    case TextSoFar(number, reply, text) if (asked := self._asked.get(number)) is not None:
                        if asked.on_text is not None:
                            asked.on_text(reply, text)
                    case Answer(number, replies) if (asked := self._asked.get(number)) is not None:
                        _settle(asked.replies, replies)
        except (asyncio.IncompleteReadError, OSError, TimeoutError):
            self._lose_all()

    def _lose_all(self) -> None:
        self.is_gone.set()
        for asked in self._asked.values():
            _settle(asked.replies, EngineLost())

    def _send(self, message: object) -> None:
        if self._writer is not None and not self.is_gone.is_set():
            self._writer.write(framed(message))


def _settle(future: asyncio.Future[list[Completion]], replies: list[Completion] | Exception) -> None:
    if future.done():
        return
    if isinstance(replies, Exception):
        future.set_exception(replies)
    else:
        future.set_result(replies)
