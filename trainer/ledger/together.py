"""Many small requests answered with one statement: what comes in while one is under way goes into the next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Q = TypeVar("Q")
A = TypeVar("A")


class Together(Generic[Q, A]):
    """Adds no waiting of its own: a request that comes alone is sent alone, at once."""

    def __init__(self, work: Callable[[list[Q]], Awaitable[list[A]]]) -> None:
        """``work`` gives one answer for each question, in order; its error is the error of all of them."""
        self._work = work
        self._waiting: list[tuple[Q, asyncio.Future[A]]] = []
        self._under_way: asyncio.Task[None] | None = None

    async def ask(self, question: Q) -> A:
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, answer))
        if self._under_way is None or self._under_way.done():
            self._under_way = asyncio.create_task(self._answer_all())
        return await answer

    async def finish(self) -> None:
        """Wait for what is under way, also for those who no longer do."""
        if self._under_way is not None:
            await self._under_way

    async def _answer_all(self) -> None:
        while self._waiting:
            asked, self._waiting = self._waiting, []
            try:
                answers = await self._work([question for question, _ in asked])
            except Exception as error:
                for _, future in asked:
                    if not future.done():
                        future.set_exception(error)
            else:
                for (_, future), answer in zip(asked, answers, strict=True):
                    if not future.done():
                        future.set_result(answer)
