"""What connects two stages: a bounded queue of one type that ends, well or with the fault of the stage before.

Bounded, so memory stays flat and a slow stage holds the ones before it. A fault travels as the last item, so that
whatever was handed on before it is still finished.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from data_bridge.errors import HindsightError

T = TypeVar("T")


class _End:
    """The stage before has no more items."""


class Flow(Generic[T]):
    """From one stage to the next."""

    def __init__(self, size: int) -> None:
        self._items: asyncio.Queue[T | _End | HindsightError] = asyncio.Queue(size)

    async def feed(self, stage: Callable[[], Awaitable[None]]) -> None:
        """Run the stage that puts items here; how it ends is the last item.

        The stage is called here and not by the caller: one that is cancelled before its turn was never begun.
        """
        try:
            await stage()
            await self._items.put(_End())
        except HindsightError as error:
            await self._items.put(error)

    async def put(self, item: T) -> None:
        await self._items.put(item)

    async def take(self) -> T | None:
        """The next item; None at the end. Raises what ended the stage before."""
        item = await self._items.get()
        if isinstance(item, HindsightError):
            raise item
        return None if isinstance(item, _End) else item


def first_fault(faults: BaseExceptionGroup[BaseException]) -> BaseException:
    """The fault to tell the user: one that we can explain before one that we cannot."""
    leaves: list[BaseException] = []
    waiting: list[BaseException] = [faults]
    while waiting:
        fault = waiting.pop(0)
        if isinstance(fault, BaseExceptionGroup):
            waiting.extend(fault.exceptions)
        else:
            leaves.append(fault)
    return next((leaf for leaf in leaves if isinstance(leaf, HindsightError)), leaves[0])
