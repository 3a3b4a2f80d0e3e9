"""One pass over the agents' log: what a run on the game's own database does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from data_bridge.database import Database
from data_bridge.errors import NotEnoughData
from data_bridge.reader import WindowReader
from trainer.config.sections import TrainSettings, window_rules
from trainer.judge.cost import CostEstimate, estimate
from trainer.ledger.clock import clock
from trainer.ledger.runs import Ledger, StoredRun
from trainer.plan.outlook import Outlook, check_ready, look_ahead
from trainer.run.session import Session, fingerprint
from trainer.run.training_run import TrainingRun, open_run

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LogPlan:
    """What is going to be trained, how it is read, and the run that it goes on with, if any."""

    reader: WindowReader
    outlook: Outlook
    cost: CostEstimate
    saved_usd: float | None
    """What dropout saves: the text of those left out; the groups are judged all the same."""
    unfinished: StoredRun | None


async def plan_log(settings: TrainSettings, database: Database, ledger: Ledger | None) -> LogPlan:
    """Survey and plan. NotEnoughData if a new run would have too little; one taken up only finishes its plan."""
    rules = window_rules(settings, now=await clock(database, settings.until))
    reader = WindowReader(database, rules)
    unfinished = None
    if ledger is not None and settings.resume:
        unfinished = await ledger.find_unfinished_run(settings.model, fingerprint(settings))
    outlook = await look_ahead(
        reader,
        ledger,
        settings,
        model=settings.model,
        seed=settings.seed,
        run_id=unfinished.run_id if unfinished else None,
        dropout_rate=unfinished.dropout_rate if unfinished else None,
    )
    if unfinished is None:
        check_ready(outlook, settings.min_windows, settings.lookback)
    cost = estimate(outlook.groups, outlook.judge_tokens, settings)
    whole = estimate(outlook.groups, outlook.judge_tokens + outlook.dropped_tokens, settings)
    saved = None if cost.usd is None or whole.usd is None else whole.usd - cost.usd
    return LogPlan(reader, outlook, cost, saved, unfinished)


async def train_on_log(
    session: Session, plan: LogPlan, then: Callable[[TrainingRun], Awaitable[T]]
) -> tuple[TrainingRun, T]:
    """Train what ``plan`` says, do what is to be done ``then``, and end the run; the run and what came of it.

    The run ends after that and not before: one that is killed while its checkpoint is evaluated is taken up, though
    there is nothing left to train.
    """
    unfinished = plan.unfinished.run_id if plan.unfinished else None
    async with open_run(session, plan.outlook.plan, unfinished) as run:
        run.folder.write("plan.json", summary_of(plan))
        if not plan.outlook.windows and run.progress.steps == 0:
            raise NotEnoughData(
                f"Run {run.run_id} has nothing left to train and trained nothing before; "
                "`--no-resume` begins a new run with the windows that there are."
            )
        await run.train(plan.reader, plan.outlook.windows, plan.outlook.refs)
        result = await then(run)
    return run, result


def summary_of(plan: LogPlan) -> dict[str, object]:
    """The plan in numbers, for ``--json`` and the run folder."""
    outlook, cost = plan.outlook, plan.cost
    return {
        "windows": len(outlook.windows),
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
