"""One training command from start to end: the model's lock, what a crash left behind, the run, and what follows."""

from __future__ import annotations

from data_bridge.database import Database
from data_bridge.game_writes import check_writable
from trainer.config.sections import TrainSettings
from trainer.ledger.model_lock import hold
from trainer.ledger.runs import Ledger
from trainer.progress import View
from trainer.run.after_training import AfterTraining, after_training
from trainer.run.closed_loop import train_in_closed_loop
from trainer.run.log_training import LogPlan, plan_log, train_on_log
from trainer.run.session import Session
from trainer.run.shutdown import stop_on_signal, unless_stopped
from trainer.run.training_run import TrainingRun
from trainer.train.backends.choose import open_backend
from trainer.train.settle import mend, needs_mending


async def train(
    settings: TrainSettings, database: Database, base_model: str, view: View, *, simulated: bool
) -> tuple[TrainingRun, AfterTraining]:
    """Train and evaluate; the run and what came of it. The first signal stops after the step in hand: Interrupted."""
    await check_writable(database)
    ledger = Ledger(database, settings.home)
    with stop_on_signal(view.say) as stop:
        async with hold(database, settings.model) as lock:
            # Too little data is found out before the model is loaded, unless something must be mended first.
            plan = None
            if not simulated and not await needs_mending(ledger, settings.model):
                plan = await plan_log(settings, database, ledger)
            async with open_backend(settings) as backend:
                for sentence in await mend(ledger, lock, backend, settings.stop_on):
                    view.say(sentence)
                    plan = None  # there is more, or less, to train than was seen
                session = Session(settings, database, ledger, lock, backend, base_model, view, stop)
                before = backend.checkpoint(await backend.current_step())

                async def evaluated(run: TrainingRun) -> AfterTraining:
                    return await unless_stopped(
                        after_training(session, run, before),
                        stop,
                        f"Stopped while {settings.model}@step{run.progress.step} was evaluated; it is trained and "
                        "kept, and the same command evaluates it.",
                    )

                if simulated:
                    return await train_in_closed_loop(session, evaluated)
                plan = plan or await plan_log(settings, database, ledger)
                _say_plan(session.view, plan)
                return await train_on_log(session, plan, evaluated)


def _say_plan(view: View, plan: LogPlan) -> None:
    outlook = plan.outlook
    if plan.unfinished is not None:
        view.say(f"Taking up run {plan.unfinished.run_id} ({plan.unfinished.state.value}).")
    saved = f" and saves about ${plan.saved_usd:.2f}" if plan.saved_usd else ""
    before = ", ".join(f"{reason} {count}" for reason, count in outlook.decided_before.items())
    view.say(
        f"Plan: {len(outlook.windows)} windows, {outlook.groups} groups, {outlook.trajectories} trajectories; "
        f"dropout {outlook.plan.dropout_rate:.0%} leaves out {outlook.plan.dropped}{saved}"
        + (f"; an earlier run left out {before}." if before else ".")
    )
    view.say(f"Judge: {plan.cost}.")
