"""How many calls are in flight: up to a limit that shrinks when the endpoint is busy and grows back when it is not."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Limiter:
    """Additive increase, multiplicative decrease, as in TCP: one more slot a full round of answers, half on "busy".

    All the "busy" answers to calls that were in flight together count as one.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._limit = float(most)
        self._in_flight = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._shrunk_at = float("-inf")

    @property
    def limit(self) -> int:
        return int(self._limit)

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """A place among the calls in flight, in the order of asking."""
        if self._in_flight >= self.limit or self._waiting:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._leave()
                raise
        else:
            self._in_flight += 1
        try:
            yield
        finally:
            self._leave()

    def answered(self) -> None:
        self._limit = min(self._most, self._limit + 1 / self._limit)
        self._admit()

    def busy(self, started_at: float) -> None:
        """``started_at``: ``time.monotonic()`` when the refused call was made."""
        if started_at >= self._shrunk_at:
            self._limit = max(1.0, self._limit / 2)
            self._shrunk_at = time.monotonic()

    def _leave(self) -> None:
        self._in_flight -= 1
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._in_flight < self.limit:
            turn = self._waiting.popleft()
            if not turn.done():
                self._in_flight += 1
                turn.set_result(None)
