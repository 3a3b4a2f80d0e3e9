"""Windows judged without training: read, checked, grouped and judged as in training, one result per window.

In this process group by group (``judge_windows``); by workers unit by unit (``hand_out``, then ``judged_elsewhere``).
"""

from __future__ import annotations

import asyncio
from array import array
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field

from data_bridge.discovery import WindowRef
from data_bridge.long_list import LongList, Picked
from data_bridge.models import Window
from data_bridge.quality import Measurable, Reason, Rules
from data_bridge.reader import WindowReader
from data_bridge.survey_types import WindowSummary
from data_bridge.window_parts import summaries
from data_bridge.worlds.world import World
from trainer.config.sections import GroupingSettings
from trainer.ledger.units import GroupResult
from trainer.plan.grouping import assemble, group_id, partition
from trainer.progress import FailurePolicy, FailureTally, Progress
from trainer.types import Group, Judge, JudgedGroup, JudgeFailure, PlannedGroup, PlannedWindow
from trainer.workers.elsewhere import Workers
from trainer.workers.judging import groups_of, read_unit, result_of
from trainer.workers.units import units_of


@dataclass(slots=True)
class WindowVerdicts:
    """The result of judging one window. Complete when each of its groups was judged or failed."""

    window_id: str
    groups: int
    left_out: Counter[Reason]
    """Trajectories that were not judged, by reason."""
    _results: LongList[GroupResult]
    """Of all windows: a very large one has more than should be in memory."""
    _judged: array[int] = field(default_factory=lambda: array("Q"))
    _failed: array[int] = field(default_factory=lambda: array("Q"))

    @property
    def judged(self) -> Picked[GroupResult]:
        return Picked(self._results, self._judged)

    @property
    def failed(self) -> Picked[GroupResult]:
        return Picked(self._results, self._failed)

    @property
    def is_complete(self) -> bool:
        return len(self._judged) + len(self._failed) == self.groups

    def add(self, result: GroupResult) -> None:
        (self._judged if result.reason is None else self._failed).append(len(self._results))
        self._results.append(result)
        self.left_out.update(exclusion.reason for exclusion in result.left_out)


Parts = AsyncIterable[tuple[Window, bool]]
"""Windows as ``WindowReader.stream_parts`` gives them."""


def planned_of(
    summary: WindowSummary, settings: GroupingSettings, seed: int, world: World, results: LongList[GroupResult]
) -> tuple[PlannedWindow, WindowVerdicts]:
    """The groups of a window by all of its rows, and the empty result that they are to fill, kept in ``results``."""
    parts = partition(summary.usable, settings, seed, world)
    groups = tuple(
        PlannedGroup(group_id(summary.window_id, number), tuple(one.trajectory_id for one in members))
        for number, members in enumerate(parts.groups, start=1)
    )
    left_out = Counter(one.reason for one in summary.excluded) + Counter(reason for _, reason in parts.left_out)
    planned = PlannedWindow(summary.window_id, summary.hours, groups)
    return planned, WindowVerdicts(summary.window_id, len(groups), left_out, results)


async def judge_windows(
    judge: Judge,
    windows: Parts,
    refs: Mapping[str, WindowRef],
    reader: WindowReader,
    settings: GroupingSettings,
    *,
    seed: int,
    in_flight: int,
    policy: FailurePolicy,
    progress: Progress,
    is_measured: Measurable | None = None,
) -> AsyncGenerator[WindowVerdicts, None]:
    """Each window as soon as it is complete; the oldest that is not is what ``progress`` is at. JudgeError when the
    judge fails on too many groups."""
    open_windows: dict[str, WindowVerdicts] = {}
    empty: list[WindowVerdicts] = []
    kept = LongList(GroupResult)

    async def groups() -> AsyncGenerator[Group, None]:
        async for summary, checked in summaries(windows, reader.rules, is_measured=is_measured):
            planned, state = planned_of(summary, settings, seed, reader.rules.world, kept)
            if not planned.groups:
                empty.append(state)
                continue
            open_windows[state.window_id] = state
            progress.doing("judging", next(iter(open_windows)))
            if checked is not None:
                for group in assemble(checked, planned, {}).groups:
                    yield group
                continue
            for unit in units_of([(planned, refs.get(planned.window_id, WindowRef(planned.window_id)))]):
                grouped = groups_of(unit, await read_unit(unit, reader), reader.rules, {})
                state.groups -= len(unit.planned.groups) - len(grouped.groups)
                state.left_out.update(exclusion.reason for exclusion in grouped.excluded)
                for group in grouped.groups:
                    yield group

    tally = FailureTally()
    async with aclosing(groups()) as source, aclosing(judge_stream(judge, source, in_flight)) as results:
        async for result in results:
            state = open_windows[result.group.window_id]
            state.add(result_of(result))
            while empty:
                yield empty.pop()
            if state.is_complete:
                yield open_windows.pop(state.window_id)
                progress.doing("judging", next(iter(open_windows), state.window_id))
            tally = tally.plus(result)
            policy.check(tally)
    for state in empty:
        yield state
    policy.check(tally, at_end=True)


@dataclass(slots=True)
class HandedOut:
    """What was planned for workers: small beside the plan itself, which is in the ledger."""

    windows: dict[str, WindowVerdicts] = field(default_factory=dict)
    units: int = 0
    groups: int = 0
    judge_tokens: int = 0
    decisions: int = 0


async def hand_out(
    workers: Workers,
    windows: Parts,
    refs: Mapping[str, WindowRef],
    rules: Rules,
    settings: GroupingSettings,
    *,
    seed: int,
    is_measured: Measurable | None = None,
) -> HandedOut:
    """Plan every window over all of its rows, and put its units into the ledger; nobody begins before ``start``."""
    handed, kept = HandedOut(), LongList(GroupResult)
    async for summary, _ in summaries(windows, rules, is_measured=is_measured):
        planned, state = planned_of(summary, settings, seed, rules.world, kept)
        handed.windows[state.window_id] = state
        wanted = {name for group in planned.groups for name in group.trajectory_ids}
        members = [one for one in summary.usable if one.trajectory_id in wanted]
        handed.groups += len(planned.groups)
        handed.judge_tokens += sum(one.judge_tokens for one in members)
        handed.decisions += sum(one.decisions for one in members)
        if planned.groups:
            ref = refs.get(state.window_id, WindowRef(state.window_id))
            await workers.add(list(units_of([(planned, ref)])))
    handed.units = workers.added
    return handed


async def judged_elsewhere(
    workers: Workers, planned: HandedOut, policy: FailurePolicy, progress: Progress
) -> AsyncGenerator[WindowVerdicts, None]:
    """Each window as soon as all of its units are done; the next is what ``progress`` is at. JudgeError when the judge
    fails on too many groups."""
    for state in [state for state in planned.windows.values() if not state.groups]:
        yield planned.windows.pop(state.window_id)
    tally = FailureTally()
    for number in range(planned.units):
        progress.doing("judging", next(iter(planned.windows)))
        done = await workers.result(number)
        state = planned.windows[done.unit.planned.window_id]
        for result in done.result.groups:
            state.add(result)
            tally = tally.with_one(result.reason, result.detail)
        state.left_out.update(exclusion.reason for exclusion in done.result.excluded)
        if done.unit.is_last:
            yield planned.windows.pop(state.window_id)
        policy.check(tally)
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
