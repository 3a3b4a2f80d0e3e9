"""Groups through a judge as they come: many at once, never more in memory than are in flight."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator

from trainer.types import Group, Judge, JudgedGroup, JudgeFailure


async def judge_stream(
    judge: Judge, groups: AsyncIterable[Group], in_flight: int
) -> AsyncGenerator[JudgedGroup | JudgeFailure, None]:
    """The results in the order in which they are ready. An error of the judge or of the source ends the stream.

    The judge limits its own calls; ``in_flight`` groups are kept waiting for it, so that it never starves and
    the source is not read faster than it is judged.
    """
    source = aiter(groups)
    judging: set[asyncio.Task[JudgedGroup | JudgeFailure]] = set()
    following: asyncio.Task[Group] | None = asyncio.create_task(_next(source), name="next group")
    try:
        while judging or following is not None:
            waiting: set[asyncio.Task[object]] = {*judging}
            if following is not None and len(judging) < in_flight:
                waiting.add(following)
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if following is not None and following in done:
                try:
                    group = following.result()
                except StopAsyncIteration:
                    following = None
                else:
                    judging.add(asyncio.create_task(judge.judge(group), name=f"judge {group.group_id}"))
                    following = asyncio.create_task(_next(source), name="next group")
            for task in [task for task in judging if task in done]:
                judging.discard(task)
                yield task.result()
    finally:
        left = [*judging, *([following] if following is not None else [])]
        for unfinished in left:
            unfinished.cancel()
        await asyncio.gather(*left, return_exceptions=True)


async def _next(source: AsyncIterator[Group]) -> Group:
    return await anext(source)
