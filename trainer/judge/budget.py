"""The ceiling of a run's cost: money is set aside for the worst case before a call and settled after it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class OverBudget(Exception):
    """One more call could cost more than what is left."""


class Budget:
    """Never exceeds ``ceiling``, however many calls are in flight; None is no ceiling.

    A call whose worst case does not fit waits while others are in flight, since they usually cost less than
    was set aside. Once the ceiling has stopped a call it stops all later ones: what is left out is left out
    in the order of asking, not by who happens to be cheap.
    """

    def __init__(self, ceiling: float | None = None, spent: float = 0.0) -> None:
        self.ceiling = ceiling
        self.spent = spent
        self._reserved: list[float] = []
        self._exhausted = False
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def set_aside(self, worst_case: float) -> AsyncIterator[None]:
        """Holds ``worst_case`` for one call, inside which ``pay`` books what it came to. OverBudget if it cannot."""
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
            # Without the condition's lock: nothing is awaited, and a cancelled task must still give its money back.
            self._reserved.remove(worst_case)
            await asyncio.shield(self._tell_waiting())

    def pay(self, usd: float) -> None:
        self.spent += usd

    def _fits(self, worst_case: float) -> bool:
        return self.ceiling is None or self.spent + sum(self._reserved) + worst_case <= self.ceiling

    async def _tell_waiting(self) -> None:
        async with self._changed:
            self._changed.notify_all()
