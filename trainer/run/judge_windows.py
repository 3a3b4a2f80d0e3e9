"""Windows judged without training: read, checked, grouped and judged as in training, one result per window."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field

import msgspec

from data_bridge.models import Window
from data_bridge.quality import Reason, Rules, check
from trainer.config.sections import GroupingSettings
from trainer.plan.grouping import form_groups
from trainer.progress import FailurePolicy, FailureTally
from trainer.types import Group, Judge, JudgedGroup, JudgeFailure


@dataclass(slots=True)
class WindowVerdicts:
    """The result of judging one window. Complete when each of its groups was judged or failed."""

    window_id: str
    groups: int
    left_out: Counter[Reason]
    """Trajectories that were not judged, by reason."""
    judged: list[JudgedGroup] = field(default_factory=list)
    failed: list[JudgeFailure] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        return len(self.judged) + len(self.failed) == self.groups


async def judge_windows(
    judge: Judge,
    windows: AsyncIterable[Window],
    rules: Rules,
    settings: GroupingSettings,
    *,
    seed: int,
    in_flight: int,
    policy: FailurePolicy,
) -> AsyncGenerator[WindowVerdicts, None]:
    """Each window as soon as it is complete. JudgeError when the judge fails on too many groups."""
    open_windows: dict[str, WindowVerdicts] = {}
    empty: list[WindowVerdicts] = []

    async def groups() -> AsyncGenerator[Group, None]:
        async for window in windows:
            checked = check(window, rules)
            grouped = form_groups(checked, settings, seed)
            left_out = Counter(exclusion.reason for exclusion in (*checked.excluded, *grouped.excluded))
            state = WindowVerdicts(window.window_id, len(grouped.groups), left_out)
            if not grouped.groups:
                empty.append(state)
                continue
            open_windows[window.window_id] = state
            for group in grouped.groups:
                yield group

    tally = FailureTally()
    async with aclosing(groups()) as source, aclosing(judge_stream(judge, source, in_flight)) as results:
        async for result in results:
            state = open_windows[result.group.window_id]
            if isinstance(result, JudgedGroup):
                state.judged.append(result)
            else:
                state.failed.append(result)
            state.left_out.update(exclusion.reason for exclusion in result.left_out)
            while empty:
                yield empty.pop()
            if state.is_complete:
                yield open_windows.pop(state.window_id)
            tally = tally.plus(result)
            policy.check(tally)
    for state in empty:
        yield state
    policy.check(tally, at_end=True)


async def judge_stream(
    judge: Judge, groups: AsyncIterable[Group], in_flight: int
) -> AsyncGenerator[JudgedGroup | JudgeFailure, None]:
    """The results as they become ready. An error of the judge or of the source ends the stream.

    The judge limits its own calls; ``in_flight`` groups wait for it, so that it never idles and the source is
    not read faster than it is judged.
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


def as_unused(window: Window) -> Window:
    """``window`` as it was before training, to judge again one that was trained on."""
    unused = tuple(msgspec.structs.replace(one, used_in_training=False) for one in window.trajectories)
    return msgspec.structs.replace(window, trajectories=unused)
