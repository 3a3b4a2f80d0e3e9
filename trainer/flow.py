"""The arrow between two stages: a bounded queue that ends as the stage before it did; and the judge's tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from data_bridge.errors import HindsightError
from trainer.types import Group, Judge, JudgedGroup, JudgeFailure

T = TypeVar("T")


class _End:
    """The previous stage has no more items."""


class Flow(Generic[T]):
    """A bounded, typed queue between two stages; it ends normally or with the previous stage's fault."""

    def __init__(self, size: int) -> None:
        self._items: asyncio.Queue[T | _End | HindsightError] = asyncio.Queue(size)

    async def feed(self, stage: Callable[[], Awaitable[None]]) -> None:
        """Run the stage that puts items here; the last item says how it ended.

        The stage is called here, not by the caller, so that a stage cancelled before its turn was never started.
        """
        try:
            await stage()
            await self._items.put(_End())
        except HindsightError as error:
            await self._items.put(error)

    async def put(self, item: T) -> None:
        await self._items.put(item)

    async def take(self) -> T | None:
        """The next item; None at the end. Raises the fault that ended the previous stage."""
        item = await self._items.get()
        if isinstance(item, HindsightError):
            raise item
        return None if isinstance(item, _End) else item


class Verdicts:
    """Owns the judge's tasks: none outlives the block."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._tasks: set[asyncio.Task[JudgedGroup | JudgeFailure]] = set()

    def start(self, group: Group) -> asyncio.Task[JudgedGroup | JudgeFailure]:
        task = asyncio.create_task(self._judge.judge(group), name=f"judge {group.group_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def finish(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def __aenter__(self) -> Verdicts:
        return self

    async def __aexit__(self, *_: object) -> None:
        left = list(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
