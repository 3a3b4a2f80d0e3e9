"""One training command from start to end: the model's lock, what a crash left behind, the run, and what follows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from data_bridge.database import Database
from data_bridge.errors import NotEnoughData
from data_bridge.game_writes import check_writable
from data_bridge.quality import Reason
from data_bridge.reader import WindowReader
from trainer.config.commands import TrainSettings
from trainer.config.derived import window_rules
from trainer.config.training import CpuTrainee
from trainer.judge.cost import CostEstimate, estimate
from trainer.judge.open import measured_by
from trainer.ledger.clock import clock
from trainer.ledger.evaluations import is_undecided, way_back
from trainer.ledger.model_lock import hold
from trainer.ledger.runs import Ledger, StoredRun
from trainer.plan.plan import Outlook, look_ahead, survey_log
from trainer.progress import View, counted
from trainer.run.after_training import AfterTraining, after_training
from trainer.run.closed_loop import play_for_evaluation, train_in_closed_loop
from trainer.run.curriculum import in_curriculum_order
from trainer.run.session import Session, fingerprint
from trainer.run.shutdown import stop_on_signal, unless_stopped
from trainer.run.training_run import TrainingRun, open_run
from trainer.statistics.gain import MIN_WINDOWS_TO_RULE
from trainer.train.backends.choose import open_backend
from trainer.train.backends.forks import Forks, start_step_of
from trainer.train.recovery import recover
from trainer.train.settle import mend, needs_mending
from trainer.train.thresholds import parse_thresholds
from trainer.types import NOTHING_PLANNED
from trainer.world.agents import EXPLORER

T = TypeVar("T")


async def train(
    settings: TrainSettings, database: Database, base_model: str, view: View, *, simulated: bool
) -> tuple[TrainingRun, AfterTraining]:
    """Train and evaluate; returns the run and its result. Interrupted if a signal stopped it after the current step."""
    await check_writable(database)
    ledger = Ledger(database, settings.common.home)
    with stop_on_signal(view.say) as stop:
        async with hold(database, settings.model.model, stop=stop) as lock:
            # Too little data is reported before the model is loaded, unless a repair must come first.
            plan, is_held = None, settings.run.hold and await is_undecided(database, settings.model.model)
            if not simulated and not is_held and not await needs_mending(ledger, settings.model.model):
                plan = await plan_log(settings, database, ledger)
            async with open_backend(
                trainee_of(settings, simulated=simulated),
                settings.backend,
                settings.promotion,
                settings.secrets.wandb_api_key,
                settings.database.gone_after,
            ) as backend:
                for sentence in await mend(ledger, lock, backend, settings.training.stop_on):
                    view.say(sentence)
                    plan = None  # the repair changed what there is to train
                if settings.training.init_from is not None:
                    await ledger.begun_from(backend.checkpoint(1), settings.training.init_from)
                session = Session(settings, database, ledger, lock, backend, base_model, view, stop)
                is_held = is_held and await is_undecided(database, settings.model.model)
                if not is_held:
                    await _go_back(session)
                before = None if is_held else backend.checkpoint(await start_step_of(backend))

                async def evaluated(run: TrainingRun) -> AfterTraining:
                    return await unless_stopped(
                        after_training(session, run, before),
                        stop,
                        f"Stopped while {settings.model.model}@step{run.progress.step} was evaluated; it is trained "
                        "and stored, and the same command evaluates it.",
                    )

                if is_held:
                    return await _hold(session, evaluated, simulated=simulated)
                if simulated:
                    return await train_in_closed_loop(session, evaluated)
                plan = plan or await plan_log(settings, database, ledger)
                _say_plan(session.view, plan, settings)
                return await train_on_log(session, plan, evaluated)


async def _go_back(session: Session) -> None:
    """Start from what the agents use if the gate did not want the newest step, or from before its collapse.

    And from what they use again if it was that healthy step that the gate did not want.
    """
    settings, backend = session.settings, session.backend
    newest, model = await backend.current_step(), settings.model.model
    back = await way_back(session.database, model, newest, settings.run.max_undecided)
    if back is None:
        undo_on = parse_thresholds(settings.training.undo_on, "--undo-on")
        await recover(backend, session.ledger, model, None, undo_on, session.view)
        healthy = await start_step_of(backend)
        if healthy != newest:
            back = await way_back(session.database, model, healthy, settings.run.max_undecided)
    if back is None:
        return
    if not isinstance(backend, Forks):
        session.view.say(f"warning: {back.reason}; the {backend.name} backend can only continue from it.")
        return
    await backend.start_from(back.step)
    session.view.say(f"Starting from {backend.checkpoint(back.step).name}, which the agents use: {back.reason}.")


async def _hold(
    session: Session, then: Callable[[TrainingRun], Awaitable[T]], *, simulated: bool
) -> tuple[TrainingRun, T]:
    """A run that trains nothing: the evidence on the newest checkpoint grows by the windows that came since."""
    settings, held = session.settings, session.backend.checkpoint(await session.backend.current_step())
    session.view.say(f"--hold: the gate is undecided about {held.name}; evaluating it on new windows, training nothing")
    unfinished = None
    if settings.run.resume:
        unfinished = await session.ledger.find_unfinished_run(settings.model.model, fingerprint(settings))
    async with open_run(session, NOTHING_PLANNED, unfinished.run_id if unfinished is not None else None) as run:
        run.progress.newest = held
        if simulated:
            run.progress.doing("playing", "the hours that decide")
            run.now = await play_for_evaluation(session)
        result = await then(run)
    return run, result


def trainee_of(settings: TrainSettings, *, simulated: bool = False) -> CpuTrainee:
    """The settings that backends get; each backend reads its part.

    Only in the simulated market is an explorer known to be one: in a log anybody may write under that name.
    """
    return CpuTrainee(
        settings.common.home,
        settings.backend.wandb_project,
        settings.model,
        settings.training,
        settings.judge.purposes,
        settings.judge.step_credit,
        settings.groups.min_spread,
        (EXPLORER,) if simulated else (),
        settings.chance.seed,
        settings.model.threads,
    )


def _say_plan(view: View, plan: LogPlan, settings: TrainSettings) -> None:
    outlook = plan.outlook
    if plan.unfinished is not None:
        view.say(f"Resuming run {plan.unfinished.run_id} ({plan.unfinished.state.value}).")
    saved = f" and saves about ${plan.saved_usd:.2f}" if plan.saved_usd else ""
    before = ", ".join(f"{reason} {count}" for reason, count in outlook.decided_before.items())
    view.say(
        f"Plan: {counted(len(outlook.windows), 'window')}, {counted(outlook.groups, 'group')}, "
        f"{counted(outlook.trajectories, 'trajectory')}; "
        f"dropout {outlook.plan.dropout_rate:.0%} leaves out {outlook.plan.dropped}{saved}"
        + (f"; an earlier run left out {before}." if before else ".")
    )
    view.say(f"Judge: {plan.cost}.")
    if plan.unfinished is None and settings.windows.held_out_share > 0 and outlook.held_out < MIN_WINDOWS_TO_RULE:
        view.say(
            f"warning: {counted(outlook.held_out, 'window')} kept for the gate, which needs {MIN_WINDOWS_TO_RULE} to "
            "decide: the result cannot be promoted before that many have come after its training "
            "(`evaluate.py`, then `promote.py`); a longer --lookback may have enough."
        )
    unmeasured = outlook.excluded.get(Reason.NO_PNL, 0)
    if unmeasured:
        view.say(
            f"warning: the offline judge cannot measure {counted(unmeasured, 'trajectory')} (no_pnl), as the log does "
            "not say what was earned; an LLM can judge them: set JUDGE_MODEL."
        )


@dataclass(frozen=True, slots=True)
class LogPlan:
    """What will be trained, how it is read, and the run to resume, if any."""

    reader: WindowReader
    outlook: Outlook
    cost: CostEstimate
    saved_usd: float | None
    """What dropout saves: the text of the trajectories left out; their groups are still judged."""
    unfinished: StoredRun | None


async def plan_log(settings: TrainSettings, database: Database, ledger: Ledger | None) -> LogPlan:
    """Survey and plan. NotEnoughData if a new run would have too little; a resumed run only finishes its plan."""
    rules = window_rules(settings.windows, now=await clock(database, settings.windows.until))
    log = await survey_log(
        database,
        rules,
        settings.judge.purposes,
        measured_by(settings.judge),
        model=settings.model.model,
        has_ledger=ledger is not None,
        with_gains=settings.run.curriculum != "off",
    )
    unfinished = None
    if ledger is not None and settings.run.resume:
        unfinished = await ledger.find_unfinished_run(settings.model.model, fingerprint(settings))
    outlook = await look_ahead(
        log.surveyed,
        log.reader,
        ledger,
        settings.groups,
        model=settings.model.model,
        seed=settings.chance.seed,
        run_id=unfinished.run_id if unfinished else None,
        dropout_rate=unfinished.dropout_rate if unfinished else None,
        min_windows=0 if unfinished else settings.windows.min_windows,
        held_out=settings.windows,
        consulted=log.consulted,
    )
    scored = outlook.decisions if settings.judge.step_credit else 0
    cost = estimate(outlook.groups, outlook.judge_tokens, settings.judge, scored_decisions=scored)
    text = outlook.judge_tokens + outlook.dropped_tokens
    whole = estimate(outlook.groups, text, settings.judge, scored_decisions=scored)
    saved = None if cost.usd is None or whole.usd is None else whole.usd - cost.usd
    return LogPlan(log.reader, outlook, cost, saved, unfinished)


async def train_on_log(
    session: Session, plan: LogPlan, then: Callable[[TrainingRun], Awaitable[T]]
) -> tuple[TrainingRun, T]:
    """Train what ``plan`` says, await ``then``, and end the run; returns the run and the result of ``then``.

    The run ends only after ``then``: a run killed while its checkpoint is evaluated is resumed, even if nothing is
    left to train.
    """
    unfinished = plan.unfinished.run_id if plan.unfinished else None
    async with open_run(session, plan.outlook.plan, unfinished) as run:
        run.folder.write("plan.json", summary_of(plan))
        if not plan.outlook.windows and run.progress.steps == 0:
            raise NotEnoughData(
                f"Run {run.run_id} has nothing left to train and trained nothing before; "
                "`--no-resume` starts a new run with the available windows."
            )
        windows, refs = await in_curriculum_order(session, run.run_id, plan.outlook)
        await run.train(plan.reader, windows, refs)
        result = await then(run)
    return run, result


def summary_of(plan: LogPlan) -> dict[str, object]:
    """The plan in numbers, for ``--json`` and the run folder."""
    outlook, cost = plan.outlook, plan.cost
    return {
        "windows": len(outlook.windows),
        "evaluation_windows": outlook.held_out,
        "groups": outlook.groups,
        "trajectories": outlook.trajectories,
        "dropout_rate": outlook.plan.dropout_rate,
        "dropped": outlook.plan.dropped,
        "judge_calls": cost.calls,
        "judge_tokens": cost.prompt_tokens + cost.completion_tokens,
        "estimated_cost_usd": cost.usd,
        "cost_saved_usd": plan.saved_usd,
        "left_out": dict(outlook.excluded),
        "left_out_before": dict(outlook.decided_before),
    }
