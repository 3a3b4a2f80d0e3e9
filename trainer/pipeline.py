"""The data's whole path, stage by stage. This file names the stages; a stage never names another.

::

    read ── check ── plan ──▶ judge ──▶ train ──▶ evaluate ──▶ promote
                                └─▶ lessons

``Pipeline.run`` is one pass over planned windows, in units of at most 64 groups: every arrow up to train is a bounded
queue. Groups are judged concurrently, here or by workers elsewhere, but leave in the order of the plan, so that a run
is repeatable. After a fault before training, the
current step is finished and recorded before the run ends with that fault. ``evaluate`` and ``consider`` then compare
the checkpoint on later windows, ask the gate, and publish it or not.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import groupby
from typing import Any

from data_bridge.database import Database
from data_bridge.discovery import WindowRef
from data_bridge.errors import Interrupted, PromotionRefused, StageGone
from data_bridge.models import Window
from data_bridge.reader import WindowReader
from trainer.config.commands import EvaluateSettings, TrainSettings
from trainer.config.derived import judged_by, keys_of
from trainer.config.lessons import LessonsCommand
from trainer.config.prompt_commands import PromptsCommand
from trainer.evaluate.comparison import TrialPlan
from trainer.evaluate.evaluation import evaluate_release, evaluation_windows, models_to_ask
from trainer.evaluate.lessoned import AdmissionSide, LessonSide
from trainer.evaluate.prompted import RandomPrompts, prompt_side
from trainer.evidence import Evaluation, GateDecision, Role, Ruling
from trainer.faults import first_fault
from trainer.flow import Flow, Verdicts
from trainer.inference.chat_models import Access, open_models
from trainer.inference.divergence import kl_meter
from trainer.inference.remembered import remembered
from trainer.judge.open import identity_of, open_judge
from trainer.ledger.clock import clock
from trainer.ledger.evaluations import keep_ruling
from trainer.ledger.lesson_admissions import Admission
from trainer.ledger.model_lock import ModelBusy, ModelLock
from trainer.ledger.releases import Promotion, incumbent_of
from trainer.ledger.runs import Ledger
from trainer.ledger.states import NO_SIGNAL
from trainer.ledger.units import Unit
from trainer.lessons.open import open_lessons
from trainer.lessons.stage import LessonStage, kept
from trainer.patterns.faults import observed
from trainer.plan.grouping import Grouped
from trainer.progress import FailurePolicy, Progress, View, counted
from trainer.promote.canary import settle_canary
from trainer.promote.publish import IncumbentChanged, publish
from trainer.promote.ruling import rule_on
from trainer.train.carried import CarriedGroups
from trainer.train.replay import Places, StepGroups
from trainer.train.selection import VerdictStage
from trainer.train.stage import TrainStage
from trainer.types import Group, Judge, JudgedGroup, JudgeFailure, PlannedWindow, PreparedBatch, Release
from trainer.workers.elsewhere import Workers
from trainer.workers.judging import groups_of, read_unit, with_rows
from trainer.workers.units import units_of
from trainer.world.agents import EXPLORER

logger = logging.getLogger(__name__)

_UNITS_AHEAD, _BATCHES_AHEAD = 4, 1


@dataclass(frozen=True, slots=True)
class UnitGroups:
    """The groups of one unit, as planned."""

    unit: Unit
    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class AwaitedVerdict:
    """A group on its way through the judge; None marks the end of its window."""

    window_id: str
    verdict: asyncio.Future[JudgedGroup | JudgeFailure] | None


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The parts of a pass, each opened and closed by the caller."""

    run_id: str
    reader: WindowReader
    judge: Judge
    judge_concurrency: int
    places: Places
    ledger: Ledger
    lock: ModelLock
    view: View
    progress: Progress
    verdicts: VerdictStage
    trainer: TrainStage
    carried: CarriedGroups
    stop: asyncio.Event
    lessons: LessonStage | None = None
    workers: Workers | None = None
    """Who reads and judges; None: this process."""

    async def run(self, windows: Sequence[PlannedWindow], refs: Sequence[WindowRef]) -> None:
        """Train on ``windows``, whose rows ``refs`` locates. Interrupted if a stop is requested before the end."""
        awaited = Flow[AwaitedVerdict](self.judge_concurrency)
        batches = Flow[StepGroups](_BATCHES_AHEAD)
        self.progress.plan(windows)
        self.progress.window = windows[0].window_id if windows else ""
        self.progress.doing("judging", self.progress.window)
        try:
            async with asyncio.TaskGroup() as tasks, kept(self.lessons, self.stop):
                judging = self._judge_here if self.workers is None else partial(self._judge_elsewhere, self.workers)
                units = units_of(zip(windows, refs, strict=True))
                upstream = [
                    tasks.create_task(awaited.feed(partial(judging, units, awaited)), name="judge"),
                    tasks.create_task(batches.feed(partial(self._batch, windows, awaited, batches)), name="batch"),
                    tasks.create_task(self._watch_lock(), name="watch the lock"),
                ]
                await self._train(batches)
                for task in upstream:
                    task.cancel()
        except BaseExceptionGroup as faults:
            raise first_fault(faults) from faults
        if self.stop.is_set():
            raise Interrupted("Stopped after the current step; the same command resumes the run.")

    async def _judge_here(self, units: Iterator[Unit], awaited: Flow[AwaitedVerdict]) -> None:
        """Read and judge in this process; reading is ahead by a few units."""
        groups = Flow[UnitGroups](_UNITS_AHEAD)
        try:
            async with asyncio.TaskGroup() as tasks:
                reading = tasks.create_task(groups.feed(partial(self._read, units, groups)), name="read")
                await self._judge(groups, awaited)
                reading.cancel()
        except BaseExceptionGroup as faults:
            raise first_fault(faults) from faults

    async def _read(self, units: Iterator[Unit], groups: Flow[UnitGroups]) -> None:
        """Read and check each unit, and put its rows into the groups that were planned."""
        async with aclosing(self._windows(units)) as windows:
            async for unit, window in windows:
                lasting = await self.ledger.lasting(self.trainer.model, [window.window_id])
                grouped = groups_of(unit, window, self.reader.rules, lasting)
                await self._note_read(unit, window, grouped)
                await groups.put(UnitGroups(unit, grouped.groups))

    async def _windows(self, units: Iterator[Unit]) -> AsyncGenerator[tuple[Unit, Window], None]:
        """The rows of each unit: whole windows as a stream, windows of several units slice by slice."""
        for is_whole, some in groupby(units, key=lambda unit: unit.parts == 1):
            if is_whole:
                whole = deque(some)
                async with aclosing(self.reader.stream([unit.ref for unit in whole])) as stream:
                    async for window in stream:
                        yield whole.popleft(), window
            else:
                for unit in some:
                    yield unit, await read_unit(unit, self.reader)

    async def _note_read(self, unit: Unit, window: Window, grouped: Grouped) -> None:
        await self.ledger.exclude(self.run_id, grouped.excluded)
        await self.ledger.observe(self.run_id, map(observed, window.trajectories))
        self.ledger.folder(self.run_id).append("windows.jsonl", [_line(unit.planned, grouped.groups)])
        self.progress.read(window.window_id)
        if self.progress.stage == "judging":
            self.progress.unit = window.window_id
        self.progress.window = window.window_id
        self.view.show(self.progress)

    async def _judge(self, groups: Flow[UnitGroups], awaited: Flow[AwaitedVerdict]) -> None:
        """Start judging each group as soon as there is room; the judge limits its own calls."""
        async with Verdicts(self.judge) as verdicts:
            while (read := await groups.take()) is not None:
                window_id = read.unit.planned.window_id
                for group in read.groups:
                    await awaited.put(AwaitedVerdict(window_id, verdicts.start(group)))
                if read.unit.is_last:
                    await awaited.put(AwaitedVerdict(window_id, None))
            await verdicts.finish()

    async def _judge_elsewhere(self, workers: Workers, units: Iterator[Unit], awaited: Flow[AwaitedVerdict]) -> None:
        """Let workers read and judge; what they judged is read again here, for training."""
        async with aclosing(workers.in_order(units)) as results:
            async for done in results:
                window, judged = await read_unit(done.unit, self.reader), done.result
                verdicts = with_rows(judged.groups, window, self.reader.rules.world)
                grouped = Grouped(tuple(verdict.group for verdict in verdicts), judged.excluded)
                await self._note_read(done.unit, window, grouped)
                for verdict in verdicts:
                    known = asyncio.get_running_loop().create_future()
                    known.set_result(verdict)
                    await awaited.put(AwaitedVerdict(window.window_id, known))
                if done.unit.is_last:
                    await awaited.put(AwaitedVerdict(window.window_id, None))

    async def _batch(
        self, windows: Sequence[PlannedWindow], awaited: Flow[AwaitedVerdict], batches: Flow[StepGroups]
    ) -> None:
        """Collect judged groups into batches of one gradient step, those first that the last pass left over."""
        for left_over in await self.carried.taken_up(windows):
            if (step := self.places.take(left_over, left_over.group)) is not None:
                await batches.put(step)
        missing = len(windows)
        while (item := await awaited.take()) is not None:
            if item.verdict is None:
                missing -= 1
                await self.verdicts.window_done(item.window_id)
                continue
            verdict = await item.verdict
            judged = await self.verdicts.accept(verdict)
            if self.lessons is not None and isinstance(verdict, JudgedGroup):
                self.lessons.start(verdict)
            self.view.show(self.progress)
            takes_place = isinstance(verdict, JudgedGroup) or verdict.reason in NO_SIGNAL
            if takes_place and (step := self.places.take(judged, verdict.group)) is not None:
                await batches.put(step)
        if (step := await self.carried.unless_handed_on(self.places.rest())) is not None:
            await batches.put(step)
        if missing:
            lost = counted(missing, "planned window")
            raise StageGone(f"Whoever reads and judges never returned {lost}: run again, the same command resumes.")
        self.verdicts.check_failures()

    async def _train(self, batches: Flow[StepGroups]) -> None:
        """Steps until the batches end, enough steps are done, or a stop is requested."""
        prepared = Flow[PreparedBatch](_BATCHES_AHEAD)
        async with asyncio.TaskGroup() as tasks:
            ahead = tasks.create_task(prepared.feed(partial(self._prepare, batches, prepared)), name="prepare")
            while not self.stop.is_set() and not self.trainer.has_enough_steps:
                batch = await self._unless_stopped(prepared.take())
                if batch is None:
                    break
                await self.trainer.step(batch)
                self.view.show(self.progress)
            ahead.cancel()

    async def _prepare(self, batches: Flow[StepGroups], prepared: Flow[PreparedBatch]) -> None:
        """Convert and score the next batch, ahead of its turn if training does not use this machine."""
        while (step := await batches.take()) is not None:
            ready = await self.trainer.prepare(step)
            if ready is not None:
                await prepared.put(ready)

    async def _unless_stopped(self, work: Coroutine[Any, Any, PreparedBatch | None]) -> PreparedBatch | None:
        """The result of ``work``, or None if a stop is requested first."""
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


def _line(planned: PlannedWindow, groups: Sequence[Group]) -> dict[str, Any]:
    return {
        "window": planned.window_id,
        "hours": planned.hours,
        "groups": {group.group_id: [one.trajectory_id for one in group.trajectories] for group in groups},
    }


async def evaluate(
    database: Database,
    settings: TrainSettings | EvaluateSettings | LessonsCommand | PromptsCommand,
    candidate: Release,
    incumbent: Release | None,
    *,
    run_id: str | None,
    now: datetime | None = None,
    admission: Admission | None = None,
    random_prompts: RandomPrompts | None = None,
    say: Callable[[str], None] = logger.info,
) -> Evaluation:
    """Compare candidate, incumbent, base model and controls on later windows; the result is stored. With an
    ``admission`` the two differ by its lessons alone, at decisions that can be shown them; ``random_prompts`` are, by
    role, what a random mutation would have made of the prompt that the candidate replaces."""
    now = now or await clock(database, settings.windows.until)
    ruled_on = admission is not None or incumbent == await incumbent_of(database, candidate.model)
    how: dict[str, Any] = {"is_ruled_on": ruled_on, "now": now, "admission": admission}
    windows = await evaluation_windows(database, settings.evaluation, settings.windows, candidate, incumbent, **how)
    plan = TrialPlan(
        points_per_window=settings.evaluation.eval_points,
        samples=settings.evaluation.eval_samples,
        purposes=settings.judge.purposes,
        drawn=(EXPLORER,),
        min_gain=settings.gate.min_gain,
        failures=FailurePolicy(settings.judge.max_judge_failures),
        seed=settings.chance.seed,
        questions=settings.evaluation.eval_questions if admission is None else 0,
        agents=None if admission is None else admission.agents,
    )
    away = database.gone_after
    access = Access(settings.common.home, settings.model, settings.promotion, settings.secrets, away)
    examiner, keys = judged_by(settings.judge, settings.evaluation), keys_of(settings.evaluation, settings.secrets)
    asked_for = run_id or f"evaluation of {candidate.name}"
    async with AsyncExitStack() as stack:
        models = await open_models(stack, access, await models_to_ask(database, candidate, incumbent))
        judge = await stack.enter_async_context(open_judge(examiner, keys, database, asked_for))
        base = stack.enter_context(remembered(models.get(Role.BASE, models[Role.INCUMBENT]), settings.common.home))
        recall = await stack.enter_async_context(open_lessons(database, settings.embedding, settings.secrets))
        ids = None if admission is None else admission.lesson_ids
        asking = None if ids is None else AdmissionSide(recall.admitting(ids), ids)
        return await evaluate_release(
            database,
            plan,
            candidate,
            incumbent,
            models,
            judge,
            run_id,
            training_judge=identity_of(settings.judge).judge,
            windows=windows,
            measure_kl=kl_meter(candidate, settings.model.base_model, settings.common.home),
            reading_base=base,
            lessons=LessonSide(recall, settings.lessons.game, asking),
            prompts=await prompt_side(database, candidate, incumbent, random_prompts or {}),
            say=say,
        )


@dataclass(frozen=True, slots=True)
class Considered:
    """The gate's decision on a checkpoint, and the promotion if it passed."""

    evaluation: Evaluation
    decision: GateDecision
    promotion: Promotion | None

    def refusal(self) -> PromotionRefused | None:
        """The error that a command ends with if the checkpoint did not pass the gate."""
        if self.decision.ruling is Ruling.PROMOTE:
            return None
        word = "refused" if self.decision.ruling is Ruling.REFUSE else "undecided"
        return PromotionRefused(
            f"{self.evaluation.candidate.name} is not promoted ({word}): {self.decision.sentence}. The agents keep "
            "what they have; `promote.py --force --reason WHY` overrides the gate."
        )


async def consider(
    database: Database,
    settings: TrainSettings,
    candidate: Release,
    *,
    run_id: str | None,
    now: datetime | None = None,
    say: Callable[[str], None] = logger.info,
) -> Considered:
    """Evaluate ``candidate`` against what the agents use, and publish it if the gate and ``--promote`` say so.

    A canary that is still running is settled first, so that the incumbent is what the agents really keep. If the
    incumbent changes during the evaluation, nothing is decided: the evidence is about a release that is out of use.
    """
    home, now = settings.common.home, now or await clock(database, settings.windows.until)
    await settle_canary(database, home, candidate.model, now=now)
    incumbent = await incumbent_of(database, candidate.model)
    evaluation = await evaluate(database, settings, candidate, incumbent, run_id=run_id, now=now, say=say)
    decision = await rule_on(database, evaluation, settings.gate)
    logger.info("gate: %s for %s: %s", decision.ruling, candidate.name, decision.sentence)
    promotion = None
    if decision.ruling is Ruling.PROMOTE and settings.run.promote:
        try:
            promotion = await publish(
                database,
                home,
                candidate,
                candidate.checkpoint.served_at(settings.promotion),
                reason=decision.sentence,
                evaluation=evaluation,
                canary=settings.promotion.canary,
            )
        except IncumbentChanged:
            changed = ("the incumbent changed during the evaluation; evaluate again",)
            decision = replace(decision, ruling=Ruling.UNDECIDED, reasons=changed, expected_gain=None)
            await keep_ruling(database.pool, evaluation, decision)
    return Considered(evaluation, decision, promotion)
