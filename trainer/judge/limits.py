"""What limits calls: the number in flight, the remaining budget, and the wait after a failure."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from data_bridge.database import GONE_AFTER
from trainer.ledger.shared_budget import JobBudget

_MAX_DELAY_UNREACHED = 5.0


class Limiter:
    """Additive increase, multiplicative decrease, as in TCP: one more slot per full round of answers, half on "busy".

    All "busy" answers to calls that were in flight together count as one.
    """

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._limit = float(maximum)
        self._in_flight = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._shrunk_at = float("-inf")

    @property
    def limit(self) -> int:
        return int(self._limit)

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """A place among the calls in flight, first come, first served."""
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
        self._limit = min(self._maximum, self._limit + 1 / self._limit)
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


class OverBudget(Exception):
    """One more call could exceed the budget."""


class Budget:
    """Spending never exceeds ``ceiling``, however many calls are in flight; None means no ceiling.

    A call whose worst case does not fit waits while others are in flight, since they usually cost less than
    was reserved. Once the ceiling has stopped a call it stops all later ones: calls are left out in the order of
    the requests, not by how cheap they happen to be.
    """

    def __init__(self, ceiling: float | None = None, spent: float = 0.0) -> None:
        self.ceiling = ceiling
        self.spent = spent
        self._reserved: list[float] = []
        self._exhausted = False
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def set_aside(self, worst_case: float) -> AsyncIterator[None]:
        """Reserves ``worst_case`` for one call; inside, ``pay`` records the actual cost. OverBudget if too much."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._exhausted or self._fits(worst_case) or not self._reserved)
            if self._exhausted or not self._fits(worst_case):
                self._exhausted = True
                self._changed.notify_all()
                raise OverBudget
            self._reserved.append(worst_case)
        try:
            yield
        finally:
            # Without the condition's lock: nothing is awaited, and a cancelled task must still release its reservation.
            self._reserved.remove(worst_case)
            await asyncio.shield(self._tell_waiting())

    def pay(self, usd: float) -> None:
        self.spent += usd

    def _fits(self, worst_case: float) -> bool:
        return self.ceiling is None or self.spent + sum(self._reserved) + worst_case <= self.ceiling

    async def _tell_waiting(self) -> None:
        async with self._changed:
            self._changed.notify_all()


class SharedBudget(Budget):
    """A ceiling that this process shares with the job's other workers, on any host: the ledger keeps it."""

    def __init__(self, ceiling: float, ledger: JobBudget) -> None:
        super().__init__(ceiling)
        self._ledger = ledger
        self._told = 0.0

    @asynccontextmanager
    async def set_aside(self, worst_case: float) -> AsyncIterator[None]:
        if self._exhausted or not await self._ledger.set_aside(worst_case):
            self._exhausted = True
            raise OverBudget
        try:
            yield
        finally:
            # A failed call is paid for after this: it is told with the next one, and is small beside what is set aside.
            paid, self._told = self.spent - self._told, self.spent
            await asyncio.shield(self._ledger.settle(worst_case, paid))


@dataclass(frozen=True, slots=True)
class Retry:
    """Exponential backoff with jitter; the endpoint's own Retry-After takes precedence, up to ``max_delay``."""

    attempts: int = 5
    first_delay: float = 1.0
    max_delay: float = 60.0
    gone_after: float = GONE_AFTER.total_seconds()
    """Seconds without any answer to any call, of an endpoint that cannot be connected to, after which it is gone."""

    def delay(self, failures: int, retry_after: float | None, chance: random.Random) -> float:
        """Seconds to wait after the ``failures``-th failure of one call."""
        if retry_after is not None and not math.isnan(retry_after):
            return min(max(retry_after, 0.0), self.max_delay)
        delay = min(self.first_delay * 2.0 ** (failures - 1), self.max_delay)
        return delay * chance.uniform(0.5, 1.0)

    def delay_unreached(self, failures: int, silent: float) -> float:
        """Seconds to wait for an endpoint that nobody has reached for ``silent`` seconds; the last attempt is made
        when it counts as gone."""
        delay = min(self.first_delay * 2.0 ** min(failures - 1, 10), _MAX_DELAY_UNREACHED)
        return max(0.0, min(delay, self.gone_after - silent))
