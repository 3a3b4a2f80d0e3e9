"""Whether a server is still there while its answer is awaited.

On one connection a long answer looks like a server that has died. So the server is probed on another: as long as it
answers anything there, the request may take as long as it takes. One that answers neither for ``gone_after`` is gone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

Probe = Callable[[], Awaitable[bool]]
"""Asks the server something small on a connection of its own: whether it answered. Raises nothing."""

EVERY = 5.0
"""Seconds between probes."""
LAST_WORD = 1.0
"""Seconds for the last probe, beyond the deadline: if this process was suspended itself, the answer is there."""


class ServerSilent(Exception):
    """The server has answered nothing for ``gone_after``."""


class ProbedServer:
    """One server, whose answers any number of tasks await; they share its probes."""

    def __init__(self, name: str, probe: Probe, gone_after: float, lost: tuple[type[Exception], ...] = ()) -> None:
        self.gone_after = gone_after
        self._name, self._probe, self._lost = name, probe, lost
        self._heard = float("-inf")
        self._is_missed = False
        self._probing: asyncio.Task[bool] | None = None

    async def answer(self, request: Callable[[], Awaitable[T]]) -> T:
        """What ``request`` comes to. ServerSilent if the server is gone.

        After an error of ``lost`` a server that is away is waited for, and asked again when it is back; if it is there,
        that error is raised.
        """
        since = time.monotonic()
        while True:
            try:
                return await self._awaited(request(), since)
            except self._lost as error:
                if await self._is_there(since):
                    raise
                self._say_missed(error)
            while True:
                await asyncio.sleep(min(EVERY, self._left(since)))
                if await self._is_there(since):
                    break

    async def close(self) -> None:
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.gather(self._probing, return_exceptions=True)

    async def _awaited(self, request: Awaitable[T], since: float) -> T:
        answer = asyncio.ensure_future(request)
        try:
            while True:
                await asyncio.wait({answer}, timeout=min(EVERY, self._left(since)))
                if answer.done():
                    self._heard = time.monotonic() if answer.exception() is None else self._heard
                    return answer.result()
                await self._is_there(since, answer)
        finally:
            answer.cancel()

    async def _is_there(self, since: float, *answers: asyncio.Future[Any]) -> bool:
        """Whether it answers a probe, or one of ``answers`` is there. ServerSilent after too long."""
        if self._probing is None or self._probing.done():
            self._probing = asyncio.create_task(self._probed(), name="probe a server")
        probing, waiting = self._probing, {self._probing, *answers}
        await asyncio.wait(waiting, timeout=max(self._left(since), LAST_WORD), return_when=asyncio.FIRST_COMPLETED)
        if (probing.done() and probing.result()) or any(one.done() for one in answers):
            return True
        if self._left(since) <= 0:
            raise ServerSilent
        return False

    async def _probed(self) -> bool:
        if answered := await self._probe():
            self._heard, self._is_missed = time.monotonic(), False
        return answered

    def _say_missed(self, error: Exception) -> None:
        """Once: an address that is wrong should be seen before the wait is over."""
        if not self._is_missed:
            self._is_missed = True
            wait = f"waiting for it for up to {self.gone_after:g} s"
            logger.warning("%s cannot be reached (%s): %s", self._name, type(error).__name__, wait)

    def _left(self, since: float) -> float:
        return max(0.0, max(self._heard, since) + self.gone_after - time.monotonic())
