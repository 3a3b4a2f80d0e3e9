"""One run in the ledger: started with a plan or resumed after a crash, trained window by window, ended once.

``open_run`` owns the run's judge, folder and tracker, and records in the ledger how the run ended: done, interrupted
(by the user) or failed (with the error). The next start can resume any run that is not done.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict

import msgspec

from data_bridge.discovery import WindowRef
from data_bridge.errors import BackendError, ConfigurationError, HindsightError, Interrupted, NotEnoughData
from data_bridge.quality import Reason
from data_bridge.reader import WindowReader
from data_bridge.redaction import redact
from trainer.config.derived import feeds_patterns_back, pattern_weight, window_rules
from trainer.config.settings import public_values
from trainer.judge.open import known_noise, open_judge
from trainer.ledger.clock import clock
from trainer.ledger.curriculum import arms_of_run
from trainer.ledger.events import EventKind
from trainer.ledger.read.run_facts import gather
from trainer.ledger.run_folder import RunFolder
from trainer.ledger.runs import Ledger, LoopState, new_run_id
from trainer.ledger.states import RunState
from trainer.ledger.verdicts import release_claims_of_dead
from trainer.lessons.stage import LessonStage
from trainer.pipeline import Pipeline
from trainer.progress import FailurePolicy, Progress, counted
from trainer.report.page import write as write_page
from trainer.rewards import Baseline
from trainer.run.code_version import code_version
from trainer.run.distilling import catch_up, keep_procedures_of, open_distilling
from trainer.run.gone import naming_the_unit
from trainer.run.leave_one_out import LeaveOneOut
from trainer.run.reporting import reported
from trainer.run.session import Session, fingerprint
from trainer.train.backends.forks import start_step_of
from trainer.train.carried import CarriedGroups
from trainer.train.replay import ReplayedGroups, places_of
from trainer.train.selection import VerdictStage
from trainer.train.stage import TrainStage
from trainer.train.thresholds import Collapsed
from trainer.train.tracking import Tracker, tracking
from trainer.types import Judge, JudgedGroup, PlannedWindow, RunPlan
from trainer.workers.elsewhere import Workers, open_workers
from trainer.workers.sections import section_of

logger = logging.getLogger(__name__)


class RunSummary(TypedDict, total=False):
    """The results of a run, as in the ledger, ``summary.json`` and ``--json``."""

    started_at: str
    state: str
    model: str
    step: int
    steps: int
    windows: int
    groups_judged: int
    groups_cached: int
    groups_failed: int
    groups_without_signal: int
    trainable_tokens: int
    rescored: int
    pattern_groups: int
    """Groups that counted more in their step because they show an error pattern."""
    cost_usd: float
    seconds: float
    left_out: dict[str, int]
    curriculum: dict[str, int]
    """How often each arm was drawn, with --curriculum."""


@dataclass(slots=True)
class TrainingRun:
    """A run in progress. ``summary`` is complete when the run has ended."""

    session: Session
    run_id: str
    judge: Judge
    folder: RunFolder
    tracker: Tracker
    progress: Progress
    is_resumed: bool
    lessons: LessonStage | None = None
    workers: Workers | None = None
    loop: LoopState | None = None
    """The days of the closed loop so far."""
    now: datetime | None = None
    """The simulated market's time, once the hours that decide have been played."""
    summary: RunSummary = field(default_factory=RunSummary)

    @property
    def full_summary(self) -> dict[str, Any]:
        """The summary for JSON, with the closed loop's days."""
        return {**self.summary, **(msgspec.to_builtins(self.loop) if self.loop is not None else {})}

    @property
    def report(self) -> Path:
        """The page about this run, written when it ends."""
        return self.folder.path / "report.html"

    async def train(self, reader: WindowReader, windows: Sequence[PlannedWindow], refs: Sequence[WindowRef]) -> None:
        """One pass over ``windows``. Raises if the run trained nothing although there were groups to train.

        Does not raise if the run trained something before: a resumed run may have only untrainable groups left, and
        its checkpoint must still be evaluated.
        """
        session, settings, before = self.session, self.session.settings, replace(self.progress)
        trainer = TrainStage(
            settings.training,
            settings.model.model,
            settings.training.scale_rewards,
            settings.training.max_staleness,
            self.run_id,
            session.backend,
            session.ledger,
            session.lock,
            self.tracker,
            session.view,
            self.progress,
            self._replay(reader),
            settings.training.groups_per_step if self._scales_remainder else 0,
            settings.training.baseline,
            (session.base_model, *settings.training.base_names),
            self._counterfactual(reader),
            pattern_weight(settings.training, settings.run),
            settings.training.replay_lag,
        )
        if not windows or trainer.has_enough_steps:
            return
        await trainer.recover()
        model, carries = settings.model.model, settings.training.remainder == "carry"
        carried = CarriedGroups(model, self.run_id, session.ledger, reader, is_on=carries)
        failures = FailurePolicy(settings.judge.max_judge_failures)
        verdicts = VerdictStage(settings.groups, failures, self.run_id, session.ledger, self.progress)
        pipeline = Pipeline(
            run_id=self.run_id,
            reader=reader,
            judge=self.judge,
            judge_concurrency=settings.judge.judge_concurrency,
            places=places_of(settings.training, settings.training.groups_per_step),
            ledger=session.ledger,
            lock=session.lock,
            view=session.view,
            progress=self.progress,
            verdicts=verdicts,
            trainer=trainer,
            carried=carried,
            stop=session.stop,
            lessons=self.lessons,
            workers=self.workers,
        )
        await pipeline.run(windows, refs)
        if self.is_resumed:
            await catch_up(self.lessons, reader, settings.model.model, self.run_id)
        if self.progress.steps == before.steps:
            fault = self._why_nothing(before, verdicts, trainer, carried)
            if self.progress.steps == 0:
                raise fault
            session.view.say(str(fault))
        logger.info(
            "run %s: %d steps, %d tokens",
            self.run_id,
            self.progress.steps - before.steps,
            self.progress.trainable_tokens - before.trainable_tokens,
        )

    @property
    def _scales_remainder(self) -> bool:
        """A day of the simulated market is followed by the next: its last step counts as any other."""
        chosen = self.session.settings.training.remainder
        return chosen == "scale" or (chosen == "auto" and self.loop is None)

    def _replay(self, reader: WindowReader) -> ReplayedGroups | None:
        session, settings = self.session, self.session.settings
        if settings.training.replay == "off":
            return None
        chance, model = settings.chance.seed, settings.model.model
        return ReplayedGroups(
            *(settings.training, chance, model, session.database, session.ledger, reader),
            feeds_patterns_back=feeds_patterns_back(settings.training, settings.run),
        )

    def _counterfactual(
        self, reader: WindowReader
    ) -> Callable[[Sequence[JudgedGroup]], Awaitable[dict[str, Baseline]]] | None:
        settings = self.session.settings
        if settings.training.baseline != "leave-one-out":
            return None
        discount = settings.training.step_discount if settings.judge.step_credit else None
        return LeaveOneOut(self.session.database, reader, discount).baselines

    def _why_nothing(
        self, before: Progress, verdicts: VerdictStage, trainer: TrainStage, carried: CarriedGroups
    ) -> HindsightError:
        judged = self.progress.groups_judged - before.groups_judged
        with_signal = judged - (self.progress.groups_without_signal - before.groups_without_signal)
        nothing = "Nothing was trained" if before.steps == 0 else "Nothing more was trained"
        if carried.handed_on > 0:
            return NotEnoughData(
                f"{nothing}: {counted(carried.handed_on, 'judged group')} of the "
                f"{self.session.settings.training.groups_per_step} of a step (--groups-per-step) "
                "are carried to the next pass: run again when there are more windows, or with --remainder scale."
            )
        if with_signal > 0:
            return BackendError(
                f"{nothing}: none of {counted(with_signal, 'judged group')} has a trainable token "
                f"({_reasons(trainer.left_out)}); check --purposes and --foreign, and the agents' log."
            )
        if judged == 0:
            return NotEnoughData(
                f"{nothing}: no group has a verdict ({_reasons(verdicts.left_out)}); check --max-cost and "
                "--judge-context, and run `scripts/check_windows.py` to see what is wrong with the windows."
            )
        return NotEnoughData(
            f"{nothing}: none of {counted(judged, 'judged group')} has scores that differ by "
            f"--min-spread {self.session.settings.groups.min_spread} ({_reasons(verdicts.left_out)}); "
            "try more agents or another judge."
        )


@asynccontextmanager
async def open_run(session: Session, plan: RunPlan, unfinished: str | None) -> AsyncIterator[TrainingRun]:
    """Start a run with ``plan``, or resume ``unfinished`` with ``plan`` as its additional windows."""
    settings, ledger = session.settings, session.ledger
    run_id = unfinished or await _free_id(ledger, settings.run.run_id)
    public = {**public_values(settings), "code_version": code_version()}
    if unfinished is None:
        await ledger.start_run(
            run_id,
            model=settings.model.model,
            base_model=session.base_model,
            backend=session.backend.name,
            fingerprint=fingerprint(settings),
            settings=public,
            plan=plan,
        )
    else:
        await ledger.resume_run(run_id, public, plan)
        # We hold the model's lock, so the process that started the run is gone: its verdict claims need not expire.
        await release_claims_of_dead(session.database, run_id)
    folder = ledger.folder(run_id)
    folder.write("config.json", public)
    progress = await ledger.progress_of(run_id)
    progress.step = await start_step_of(session.backend)
    started = time.monotonic()
    with tracking(settings.backend, settings.secrets.wandb_api_key, run_id, folder.path, public) as tracker:
        async with (
            naming_the_unit(session.database, session.lock.is_unreachable, f"Run {run_id}", progress),
            open_judge(
                settings.judge, settings.secrets, session.database, run_id, with_steps=settings.judge.step_credit
            ) as judge,
            AsyncExitStack() as stack,
        ):
            run = TrainingRun(session, run_id, judge, folder, tracker, progress, unfinished is not None)
            run.lessons = await stack.enter_async_context(
                open_distilling(session.database, settings.lessons, settings.judge, settings.secrets, run_id, judge)
            )
            run.workers = await stack.enter_async_context(_workers_of(session, run_id))
            run.summary["started_at"] = datetime.now(UTC).isoformat(timespec="seconds")
            try:
                async with reported(ledger, run_id, progress, settings.judge.max_cost):
                    yield run
                    await keep_procedures_of(run.lessons, run_id, session.view.say)
            except Interrupted as error:
                await _finish(run, RunState.INTERRUPTED, started, str(error))
                raise
            except Exception as error:
                if isinstance(error, Collapsed):
                    await ledger.tell(run_id, EventKind.COLLAPSE, {"reason": redact(str(error))})
                await _finish(run, RunState.FAILED, started, str(error) or type(error).__name__)
                raise
            await _finish(run, RunState.DONE, started, None)


@asynccontextmanager
async def _workers_of(session: Session, run_id: str) -> AsyncIterator[Workers | None]:
    """The workers that --workers asks for; None: this process judges."""
    settings, database = session.settings, session.database
    chosen = settings.workers
    if not chosen.workers and chosen.ray_address is None:
        yield None
        return
    steps = settings.judge.step_credit
    section = section_of(
        settings.judge,
        window_rules(settings.windows, now=await clock(database, settings.windows.until)),
        world=settings.windows.world,
        with_steps=steps,
        noise=await known_noise(settings.judge, database, run_id, with_steps=steps),
        model=settings.model.model,
        gone_after=database.gone_after,
    )
    async with open_workers(
        chosen, section, database, settings.secrets, run_id=run_id, home=settings.common.home
    ) as workers:
        workers.start()
        yield workers


async def _finish(run: TrainingRun, state: RunState, started: float, error: str | None) -> None:
    """Record how the run ended. An unreachable ledger must not hide the fault that ended it."""
    progress = run.progress
    run.summary |= {
        "state": state.value,
        "model": run.session.settings.model.model,
        "step": progress.step,
        "steps": progress.steps,
        "windows": progress.windows_read,
        "groups_judged": progress.groups_judged,
        "groups_cached": progress.groups_cached,
        "groups_failed": progress.groups_failed,
        "groups_without_signal": progress.groups_without_signal,
        "trainable_tokens": progress.trainable_tokens,
        "rescored": progress.rescored,
        "pattern_groups": progress.pattern_groups,
        "cost_usd": progress.cost_usd,
        "seconds": time.monotonic() - started,
    }
    try:
        left_out = run.summary["left_out"] = await run.session.ledger.exclusion_counts(run.run_id)
        if drawn := await arms_of_run(run.session.database.pool, run.run_id):
            run.summary["curriculum"] = {one.name: one.draws for one in drawn}
        if Reason.OVER_BUDGET.value in left_out:
            data = {"left_out": left_out[Reason.OVER_BUDGET.value], "max_cost": run.session.settings.judge.max_cost}
            await run.session.ledger.tell(run.run_id, EventKind.BUDGET, data)
        sentence = None if error is None else redact(error)
        await run.session.ledger.finish_run(run.run_id, state, error=sentence, summary=run.full_summary)
        run.folder.write("summary.json", run.full_summary)
        await _write_report(run)
    except Exception as fault:
        if error is None:
            raise
        logger.warning("run %s: its end could not be recorded (%s)", run.run_id, redact(str(fault)))


async def _write_report(run: TrainingRun) -> None:
    """The page can be written at any time from the ledger: a full disk does not make a run fail that is done."""
    facts = await gather(run.session.database, run.run_id)
    try:
        write_page(facts, run.report)
    except ConfigurationError as error:
        logger.warning("%s", error)


def _reasons(reasons: Counter[Reason]) -> str:
    return (
        ", ".join(f"{reason.value} {count}" for reason, count in reasons.most_common(4))
        or "their trajectories are gone"
    )


async def _free_id(ledger: Ledger, wanted: str | None) -> str:
    """The id that was asked for, unless a run has it already: that one could not be resumed, and this is another."""
    return wanted if wanted is not None and not await ledger.has_run(wanted) else new_run_id()
