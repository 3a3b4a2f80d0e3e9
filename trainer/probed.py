"""Whether a server is still there while its answer is awaited.

On one connection a long answer looks like a server that has died. So the server is probed on another: as long as it
answers anything there, the request may take as long as it takes. One that answers neither for ``gone_after`` is gone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger(__name__)

T = TypeVar("T")

Probe = Callable[[], Awaitable[bool]]
"""Asks the server something small on a connection of its own: whether it answered. Raises nothing."""

EVERY = 5.0
"""Seconds between probes."""
PROBE_TIMEOUT = 10.0
_NOBODY_BEHIND = frozenset({502, 504})
"""A gateway's answer for a server that it does not reach."""
LAST_WORD = 1.0
"""Seconds for the last probe, beyond the deadline: if this process was suspended itself, the answer is there."""


class ServerSilent(Exception):
    """The server has answered nothing for ``gone_after``."""


class HttpProbe:
    """Whether anything answers at an OpenAI-compatible address, be it that it does not know us: it gets no key."""

    def __init__(self, base_url: str) -> None:
        self._url = f"{base_url.rstrip('/')}/models"
        self._client: httpx.AsyncClient | None = None

    async def __call__(self) -> bool:
        import httpx

        if self._client is None:
            # Without connections that are kept: one that was opened before the server died tells nothing.
            self._client = httpx.AsyncClient(timeout=PROBE_TIMEOUT, limits=httpx.Limits(max_keepalive_connections=0))
        try:
            answer = await self._client.get(self._url)
        except (httpx.HTTPError, OSError):
            return False
        return answer.status_code not in _NOBODY_BEHIND

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()


class ProbedServer:
    """One server, whose answers any number of tasks await; they share its probes.

    With ``needs_proof`` silence counts only for a server that has answered a probe while it worked on an answer: some
    do one thing after the other, and their silence says nothing.
    """

    def __init__(
        self,
        name: str,
        probe: Probe,
        gone_after: float,
        lost: tuple[type[Exception], ...] = (),
        *,
        needs_proof: bool = False,
    ) -> None:
        assert not (lost and needs_proof), "it would wait for ever for a server that was never proven"
        self.gone_after = gone_after
        self._name, self._probe, self._lost = name, probe, lost
        self._heard = self._probed_at = float("-inf")
        self._is_missed = False
        self._is_proven = not needs_proof
        self._awaited_now = 0
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
        self._awaited_now += 1
        if not self._is_proven and time.monotonic() - self._probed_at > EVERY:
            self._start_probe()
        try:
            while True:
                await asyncio.wait({answer}, timeout=min(EVERY, self._left(since)))
                if answer.done():
                    self._heard = time.monotonic() if answer.exception() is None else self._heard
                    return answer.result()
                if self._left(since) <= 0 or time.monotonic() - self._heard >= EVERY:  # if others hear it, it is there
                    await self._is_there(since, answer)
        finally:
            self._awaited_now -= 1
            answer.cancel()

    async def _is_there(self, since: float, *answers: asyncio.Future[Any]) -> bool:
        """Whether it answers a probe, or one of ``answers`` is there. ServerSilent after too long."""
        probing = self._start_probe()
        timeout = max(self._left(since), LAST_WORD)
        await asyncio.wait({probing, *answers}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if (probing.done() and probing.result()) or any(one.done() for one in answers):
            return True
        if self._left(since) <= 0:
            raise ServerSilent
        return False

    def _start_probe(self) -> asyncio.Task[bool]:
        """The probe under way, or a new one."""
        if self._probing is None or self._probing.done():
            self._probed_at = time.monotonic()
            self._probing = asyncio.create_task(self._probed(), name="probe a server")
        return self._probing

    async def _probed(self) -> bool:
        is_at_work = self._awaited_now > 0
        if answered := await self._probe():
            self._heard, self._is_missed = time.monotonic(), False
            self._is_proven = self._is_proven or (is_at_work and self._awaited_now > 0)
        return answered

    def _say_missed(self, error: Exception) -> None:
        """Once: an address that is wrong should be seen before the wait is over."""
        if not self._is_missed:
            self._is_missed = True
            wait = f"waiting for it for up to {self.gone_after:g} s"
            logger.warning("%s cannot be reached (%s): %s", self._name, type(error).__name__, wait)

    def _left(self, since: float) -> float:
        """Seconds until silence means that the server is gone."""
        if not self._is_proven:
            return self.gone_after
        return max(0.0, max(self._heard, since) + self.gone_after - time.monotonic())
