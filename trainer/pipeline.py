"""One pass over planned windows: read, judge, batch, train. This file names the stages and owns their tasks.

::

    read ── windows ──▶ judge ── verdicts, in order ──▶ batch ── batches ──▶ prepare ──▶ train

Every arrow is a bounded queue, so memory stays flat and a slow stage holds the ones before it. Groups are judged
many at a time but leave in the order of the plan, so that a run can be repeated. A fault before training travels
down the queues as an item: the step in hand is finished and recorded before the run ends with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from data_bridge.errors import HindsightError, Interrupted
from data_bridge.postgres_reader import WindowReader, WindowRef
from data_bridge.quality import check
from trainer.config.sections import TrainSettings
from trainer.ledger.model_lock import ModelBusy, ModelLock
from trainer.ledger.runs import Ledger
from trainer.plan.run_plan import PlannedWindow, assemble
from trainer.run.progress import Progress, View
from trainer.run.run_folder import RunFolder
from trainer.train.stage import TrainStage
from trainer.train.verdict_stage import VerdictStage
from trainer.types import MIN_GROUP, Group, Judge, JudgedGroup, JudgeFailure

logger = logging.getLogger(__name__)

_WINDOWS_AHEAD = 4
_BATCHES_AHEAD = 1


@dataclass(frozen=True, slots=True)
class Judging:
    """A group on its way through the judge; None marks the end of its window."""

    window_id: str
    verdict: asyncio.Task[JudgedGroup | JudgeFailure] | None


Flow = asyncio.Queue[Any]
"""Carries items of one kind, then None; or the HindsightError that ended the stage before."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The parts of a pass, each opened and closed by the caller."""

    settings: TrainSettings
    run_id: str
    reader: WindowReader
    judge: Judge
    ledger: Ledger
    lock: ModelLock
    folder: RunFolder
    view: View
    progress: Progress
    verdicts: VerdictStage
    trainer: TrainStage
    stop: asyncio.Event

    async def run(self, windows: Sequence[PlannedWindow], refs: Sequence[WindowRef]) -> None:
        """Train on ``windows``, whose rows are found by ``refs``. Interrupted if asked to stop before the end."""
        groups: Flow = asyncio.Queue(_WINDOWS_AHEAD)
        judging: Flow = asyncio.Queue(self.settings.judge_concurrency)
        batches: Flow = asyncio.Queue(_BATCHES_AHEAD)
        self.progress.windows += len(windows)
        self.progress.groups += sum(len(window.groups) for window in windows)
        try:
            async with asyncio.TaskGroup() as tasks:
                upstream = [
                    tasks.create_task(_handing_on(groups, self._read, windows, refs, groups), name="read"),
                    tasks.create_task(_handing_on(judging, self._judge, groups, judging), name="judge"),
                    tasks.create_task(_handing_on(batches, self._batch, judging, batches), name="batch"),
                ]
                watch = tasks.create_task(self._watch_lock(), name="watch the lock")
                await self._train(batches)
                for task in (*upstream, watch):
                    task.cancel()
        except BaseExceptionGroup as faults:
            raise _first(faults) from faults
        if self.stop.is_set():
            raise Interrupted("Stopped after the step in hand; the same command takes the run up again.")

    async def _read(self, windows: Sequence[PlannedWindow], refs: Sequence[WindowRef], groups: Flow) -> None:
        planned = {window.window_id: window for window in windows}
        # What remains of a window after a crash may be fewer agents than a new window would need.
        rules = replace(self.reader.rules, min_agents=MIN_GROUP)
        async with aclosing(self.reader.stream(refs)) as stream:
            async for window in stream:
                wanted = planned[window.window_id]
                grouped = assemble(check(window, rules), wanted)
                if grouped.excluded:
                    await self.ledger.exclude(self.run_id, grouped.excluded)
                    self.folder.exclusions(grouped.excluded)
                self.folder.append("windows.jsonl", [_line(wanted, grouped.groups)])
                self.progress.windows_read += 1
                self.view.show(self.progress)
                await groups.put((window.window_id, grouped.groups))

    async def _judge(self, groups: Flow, judging: Flow) -> None:
        """Start judging each group as soon as there is room; the judge limits its own calls."""
        async with _Verdicts(self.judge) as verdicts:
            while (item := await _take(groups)) is not None:
                window_id, members = item
                for group in members:
                    await judging.put(Judging(window_id, verdicts.start(group)))
                await judging.put(Judging(window_id, None))
            await verdicts.finish()

    async def _batch(self, judging: Flow, batches: Flow) -> None:
        """Collect groups with signal into batches of one gradient step."""
        waiting: list[JudgedGroup] = []
        while (item := await _take(judging)) is not None:
            if item.verdict is None:
                await self.verdicts.window_done(item.window_id)
                continue
            judged = await self.verdicts.accept(await item.verdict)
            self.view.show(self.progress)
            if judged is not None:
                waiting.append(judged)
            if len(waiting) == self.settings.groups_per_step:
                await batches.put(tuple(waiting))
                waiting.clear()
        if waiting:
            await batches.put(tuple(waiting))
        self.verdicts.check_failures()

    async def _train(self, batches: Flow) -> None:
        """Steps until the batches end, enough steps are done, or a stop is asked for."""
        prepared: Flow = asyncio.Queue(_BATCHES_AHEAD)
        async with asyncio.TaskGroup() as tasks:
            ahead = tasks.create_task(_handing_on(prepared, self._prepare, batches, prepared), name="prepare")
            while not self.stop.is_set() and not self.trainer.has_enough_steps:
                batch = await self._unless_stopped(_take(prepared))
                if batch is None:
                    break
                await self.trainer.step(batch)
                self.view.show(self.progress)
            ahead.cancel()

    async def _prepare(self, batches: Flow, prepared: Flow) -> None:
        """Convert and score the next batch: ahead of its turn where training does not use this machine."""
        while (groups := await _take(batches)) is not None:
            ready = await self.trainer.prepare(groups)
            if ready is not None:
                await prepared.put(ready)

    async def _unless_stopped(self, work: Coroutine[Any, Any, Any]) -> Any:
        """What ``work`` gives, or None if a stop is asked for first."""
        task = asyncio.create_task(work, name="wait for a batch")
        stopped = asyncio.create_task(self.stop.wait(), name="wait for a stop")
        try:
            await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            task.cancel()
            stopped.cancel()

    async def _watch_lock(self) -> None:
        await self.lock.lost.wait()
        raise ModelBusy(f"Another trainer took over model {self.lock.model!r}; this one stops without writing.")


class _Verdicts:
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

    async def __aenter__(self) -> _Verdicts:
        return self

    async def __aexit__(self, *_: object) -> None:
        left = list(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


async def _handing_on(flow: Flow, stage: Callable[..., Awaitable[None]], *given: Any) -> None:
    """Run a stage; what it ends with, well or not, is the last item of its flow.

    The stage is called here and not by who starts this: one that is cancelled before its turn was never begun.
    """
    try:
        await stage(*given)
        await flow.put(None)
    except HindsightError as error:
        await flow.put(error)


async def _take(flow: Flow) -> Any:
    item = await flow.get()
    if isinstance(item, HindsightError):
        raise item
    return item


def _first(faults: BaseExceptionGroup[BaseException]) -> BaseException:
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


def _line(planned: PlannedWindow, groups: Sequence[Group]) -> dict[str, Any]:
    return {
        "window": planned.window_id,
        "hours": planned.hours,
        "groups": {group.group_id: [one.trajectory_id for one in group.trajectories] for group in groups},
    }
