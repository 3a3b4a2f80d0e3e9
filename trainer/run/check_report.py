"""What can be trained in the log, what cannot, and why: as ``check_windows`` prints and the console shows it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from data_bridge.database import Database
from data_bridge.quality import Exclusion, Reason
from data_bridge.reader import WindowReader
from data_bridge.survey import Survey, Totals, survey, total
from data_bridge.survey_types import WindowSummary
from data_bridge.worlds.market import MARKET
from data_bridge.worlds.world import World
from trainer.config.derived import window_rules
from trainer.config.sections import JudgeCostSettings, PlanSettings, ReadinessSettings
from trainer.judge.cost import CostEstimate, estimate
from trainer.judge.open import measured_by
from trainer.ledger.clock import clock
from trainer.ledger.evaluations import first_consulted
from trainer.ledger.runs import has_ledger
from trainer.ledger.simulation import newest_simulated
from trainer.patterns.faults import Observed, observed
from trainer.patterns.significance import MOST_SHOWN, ErrorPattern, patterns_of
from trainer.plan.plan import make_plan
from trainer.progress import counted
from trainer.run.judge_reach import doubts_of, reach_of
from trainer.statistics.hold_out import hold_out
from trainer.types import RunPlan


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The windows after grouping, the totals, and whether they are enough for a training run."""

    database: str
    windows: tuple[WindowSummary, ...]
    totals: Totals
    groups: int
    dropout_rate: float
    dropped: int
    """Usable trajectories that a training run would leave out before judging, to stay near its target."""
    missing: tuple[str, ...]
    """What a training run still needs, one sentence each; empty if it is ready."""
    cost: CostEstimate
    patterns: tuple[ErrorPattern, ...] = ()
    """What goes wrong in the same way in several trajectories, significant ones first."""
    world: World = MARKET
    reach: tuple[str, ...] = ()
    """What the chosen judge can and cannot do here."""
    doubts: str | None = None
    """What is to be said of facts that do not count."""

    @property
    def ready(self) -> bool:
        return not self.missing

    @property
    def unmeasured(self) -> int:
        """Trajectories that the offline judge could not score; an LLM reads all of them."""
        return self.totals.reasons.get(Reason.NO_PNL, 0) + self.totals.reasons.get(Reason.NOT_MEASURED, 0)

    def as_json(self) -> dict[str, Any]:
        return {
            "database": self.database,
            "world": self.world.name,
            "judge": list(self.reach),
            "facts": self.doubts,
            "windows": [_window_json(window) for window in self.windows],
            "reasons": named(self.totals.reasons),
            "examples": {reason.value: one.trajectory_id for reason, one in self.totals.examples.items()},
            "trajectories": self.totals.trajectories,
            "usable": self.totals.usable,
            "usable_windows": self.totals.usable_windows,
            "unmeasured": self.unmeasured,
            "groups": self.groups,
            "dropout_rate": self.dropout_rate,
            "dropped": self.dropped,
            "judge_tokens": self.totals.judge_tokens,
            "train_tokens": self.totals.train_tokens,
            "ready": self.ready,
            "missing": list(self.missing),
            "estimated_cost": self.cost.usd,
            "estimated_calls": self.cost.calls,
            "patterns": [pattern_json(one) for one in self.patterns[:MOST_SHOWN]],
        }


async def check_log(
    database: Database,
    reading: ReadinessSettings,
    groups: PlanSettings,
    judge: JudgeCostSettings,
    *,
    step_credit: bool = False,
    on_window: Callable[[int, int], None] | None = None,
) -> CheckReport:
    """Read every window of the lookback, and say what a training would make of it. Reads only.

    With ``step_credit`` the judge's estimate has the scores of decisions.
    """
    rules = window_rules(reading, now=await clock(database, reading.until))
    seen: list[Observed] = []
    surveyed = await survey(
        WindowReader(database, rules),
        rules,
        judge.purposes,
        is_measured=measured_by(judge),
        on_window=on_window,
        on_read=lambda trajectory: seen.append(observed(trajectory)),
    )
    has_own = await has_ledger(database)
    consulted = await first_consulted(database.pool) if has_own else ()
    found = patterns_of(seen)
    return make_report(
        surveyed,
        database.label,
        reading,
        groups,
        judge,
        step_credit=step_credit,
        consulted=consulted,
        patterns=found,
        world=rules.world,
        is_simulated=has_own and await newest_simulated(database) is not None,
    )


def make_report(
    surveyed: Survey,
    database: str,
    reading: ReadinessSettings,
    groups: PlanSettings,
    judge: JudgeCostSettings,
    *,
    step_credit: bool = False,
    seed: int = 0,
    consulted: Collection[str] = (),
    patterns: tuple[ErrorPattern, ...] = (),
    world: World = MARKET,
    is_simulated: bool = False,
) -> CheckReport:
    """Group and thin the windows as the trainer would; report what remains, what it costs and what is missing.

    ``consulted`` are the windows that an evaluation has used, so that they need not be kept for one.
    """
    usable = [window for window in surveyed.windows if window.usable]
    trained = [window.window_id for window in surveyed.windows if window.is_trained]
    held_out = hold_out(usable, consulted, reading, trained=trained)
    plan = make_plan(surveyed.windows, groups, seed, held_out, world)
    windows = _without_ungrouped(surveyed.windows, plan)
    totals = total(windows)
    judged = {name for window in plan.windows for group in window.groups for name in group.trajectory_ids}
    read = [one for window in windows for one in window.usable if one.trajectory_id in judged]
    scored = sum(one.decisions for one in read) if step_credit else 0
    return CheckReport(
        database,
        tuple(windows),
        totals,
        plan.groups,
        plan.dropout_rate,
        plan.dropped,
        tuple(_missing(totals, reading, world)),
        estimate(plan.groups, sum(one.judge_tokens for one in read), judge, scored_decisions=scored),
        patterns,
        world,
        reach_of(judge, world, totals, is_simulated=is_simulated),
        doubts_of(totals),
    )


def pattern_json(one: ErrorPattern) -> dict[str, Any]:
    return {
        "source": one.source.value,
        "pattern": one.template,
        "trajectories": len(one.trajectories),
        "by_week": dict(one.by_week),
        "by_agent": dict(one.by_agent),
        "significant": list(one.significant),
        "example": one.trajectories[0],
    }


def _without_ungrouped(windows: Sequence[WindowSummary], plan: RunPlan) -> list[WindowSummary]:
    """The windows after grouping. Rows that dropout leaves out still count as usable: nothing is wrong with them."""
    ungrouped: dict[str, list[Exclusion]] = defaultdict(list)
    for one in plan.excluded:
        if one.reason is not Reason.DROPOUT:
            ungrouped[one.window_id].append(one)
    return [_leave_out(window, ungrouped[window.window_id]) for window in windows]


def _leave_out(window: WindowSummary, left_out: Sequence[Exclusion]) -> WindowSummary:
    names = {one.trajectory_id for one in left_out}
    usable = tuple(one for one in window.usable if one.trajectory_id not in names)
    return replace(window, usable=usable, excluded=(*window.excluded, *left_out))


def named(reasons: Mapping[Any, int]) -> dict[str, int]:
    """Reasons by name, the most frequent first."""
    return {reason.value: count for reason, count in Counter(reasons).most_common()}


def days_of(lookback: timedelta) -> str:
    hours = lookback / timedelta(hours=1)
    return f"{hours / 24:g} days" if hours >= 48 else f"{hours:g} hour{'' if hours == 1 else 's'}"


def _missing(totals: Totals, settings: ReadinessSettings, world: World) -> list[str]:
    period = f"in the last {days_of(settings.lookback)}"
    if totals.trajectories == 0:
        return [f"There are no trajectories {period}: is the game writing to this database, and is --lookback enough?"]
    if totals.usable_windows >= settings.min_windows:
        return []
    lacking = settings.min_windows - totals.usable_windows
    sentences = [
        f"{counted(totals.usable_windows, 'usable window')} {period}; a training run needs "
        f"{settings.min_windows} (--min-windows): {lacking} more."
    ]
    for reason, count in list(totals.reasons.items())[:3]:
        advice = _ADVICE.get(reason.value) if world.reads_markets else {**_ADVICE, **_ADVICE_ON_FACTS}.get(reason.value)
        if advice:
            sentences.append(f"{counted(count, 'row')} left out as {reason.value}: {advice}")
    return sentences


_ADVICE = {
    "outcomes_missing": "write market_outcomes for these windows.",
    "outcomes_partial": "complete market_outcomes, or allow it with --allow-partial-outcomes.",
    "too_few_agents": "let more agents play in the same window, or lower --min-agents.",
    "too_few_actions": "lower --min-actions if waiting is a decision in this game.",
    "books_contradict": "their prices or profits cannot be true by market_outcomes; are both in the same unit?",
    "no_llm_calls": "the writer of these rows logs no model calls; nothing can be learned from them.",
    "already_used": "they were already trained on: wait for new windows, or raise --lookback.",
    "window_open": "wait until the window has ended.",
    "held_out": "the newest windows are kept to decide about the result; --held-out-share sets how many.",
    "embargo": "hours just before the evaluation windows are not trained (--embargo).",
    "oversized": "raise --max-trajectory-mb to include them.",
    "too_many_rows": "an agent wrote more rows into one window than are read; does it end each trajectory once?",
    "over_share": "an agent's rows fill its share of the window; raise --max-trajectory-mb to read more of them.",
    "no_pnl": "the offline judge needs trades with prices, or balance and P&L, in the log; or set JUDGE_MODEL.",
    "no_comparable_peer": "`--grouping window` compares all agents of the hour.",
}


_ADVICE_ON_FACTS = {
    "outcomes_missing": "write facts about these windows (docs/worlds.md), or name the view with --facts-view.",
    "outcomes_partial": "complete the facts, or allow it with --allow-partial-outcomes.",
    "not_measured": "write facts about what these agents acted on, or set JUDGE_MODEL.",
    "no_comparable_peer": "the world compares agents of one role only; more of them must play in one window.",
}


def _window_json(window: WindowSummary) -> dict[str, Any]:
    known = window.outcomes
    return {
        "id": window.window_id,
        "hours": window.hours,
        "agents": window.agents,
        "trajectories": window.trajectories,
        "usable": len(window.usable),
        "reasons": named(window.reasons),
        "actions": window.actions,
        "llm_calls": window.llm_calls,
        "judge_tokens": window.judge_tokens,
        "train_tokens": window.train_tokens,
        "outcomes": {
            "stocks": known.stocks,
            "stocks_known": known.stocks_known,
            "predictions": known.predictions,
            "predictions_known": known.predictions_known,
            "facts": known.facts,
        },
        "pnl": None if window.pnl_range is None else {"lowest": window.pnl_range[0], "highest": window.pnl_range[1]},
    }
