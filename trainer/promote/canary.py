"""How a canary's agents did against all others in the windows since it started, and what follows.

The gate has already shown on held-out windows that the checkpoint is better; the canary looks for harm in the live
game. It is rolled back when its agents are clearly worse, finished when they are clearly no worse by more than a small
margin, and left running in between. Checking every hour is as safe as checking once: the interval covers all checks.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from statistics import fmean

import numpy as np

from data_bridge.database import Database
from data_bridge.game_writes import judge_scores
from data_bridge.models import AgentTrajectory, Author
from data_bridge.quality import Rules
from data_bridge.reader import WindowReader
from data_bridge.window_ids import is_closed, start_of, window_of
from trainer.evidence import Interval
from trainer.ledger.releases import Promotion, canary_agents_of, running_canary
from trainer.progress import counted
from trainer.promote.publish import end_canary, finish_canary
from trainer.statistics.intervals import MIN_WINDOWS, lasting_half_width, lasting_interval
from trainer.types import Checkpoint

_AN_HOUR = timedelta(hours=1)
MARGIN = 0.25
"""How much worse a finished canary may still be, in standard deviations of a window's difference. For two equally good
models, about a week of hourly windows is enough to rule that out."""


class CanaryRuling(StrEnum):
    FINISH = "finish"
    ROLL_BACK = "roll_back"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class CanaryWindow:
    """One window since the canary started: the mean of its agents and the mean of all others."""

    window_id: str
    canary: float
    others: float


@dataclass(frozen=True, slots=True)
class CanaryWindows:
    """The windows since a canary started that measure it, and the number of those that do not."""

    compared: tuple[CanaryWindow, ...]
    measure: str
    """``judge score`` where both sides were judged in enough windows, else ``return on the balance``."""
    untried: int = 0
    """Windows in which the canary's agents played, but their log does not name its checkpoint."""


@dataclass(frozen=True, slots=True)
class CanaryDecision:
    ruling: CanaryRuling
    reason: str
    difference: Interval | None
    measure: str


def decide(since: CanaryWindows) -> CanaryDecision:
    """The ruling that follows from the windows. Pure."""
    measure, number = since.measure, len(since.compared)
    if number < MIN_WINDOWS:
        few = f"{counted(number, 'window')} with both canary and other agents so far, {MIN_WINDOWS} are needed"
        return CanaryDecision(CanaryRuling.WAIT, few + _told_of_untried(since), None, measure)
    differences = [window.canary - window.others for window in since.compared]
    difference, spread = lasting_interval(differences), float(np.std(differences, ddof=1))
    assert difference.low is not None
    assert difference.high is not None
    shown = (
        f"{measure} of the canary's agents minus the others' {difference.mean:+.3g} "
        f"(95% interval over all checks {difference.low:+.3g} to {difference.high:+.3g}, {counted(number, 'window')})"
    )
    if difference.high < 0:
        return CanaryDecision(CanaryRuling.ROLL_BACK, f"{shown}: clearly worse", difference, measure)
    if difference.low >= -MARGIN * spread:
        margin = f"not worse by more than {MARGIN * spread:.3g}"
        return CanaryDecision(CanaryRuling.FINISH, f"{shown}: {margin}", difference, measure)
    needed = counted(_windows_needed(difference.mean / spread, number), "window")
    undecided = f"{shown}: not decided, about {needed} would decide"
    return CanaryDecision(CanaryRuling.WAIT, undecided + _told_of_untried(since), difference, measure)


def _windows_needed(effect: float, number: int) -> int:
    """How many windows would decide if the trend continued: ``effect`` is in standard deviations."""
    distance = max(effect + MARGIN, -effect)
    return next(windows for windows in itertools.count(number + 1) if lasting_half_width(windows) < distance)


def _told_of_untried(since: CanaryWindows) -> str:
    if not since.untried:
        return ""
    return (
        f"; in {counted(since.untried, 'window')} the canary's agents did not use it, according to their log: "
        "they must send their agent id as `user`, and log the model that the reply names"
    )


async def windows_since(database: Database, trial: Promotion, now: datetime) -> CanaryWindows:
    """The closed windows since the canary started in which both sides played, and their measure."""
    after = trial.canary_after or window_of(trial.created_at)
    reader = WindowReader(database, Rules(min_agents=2, now=now, lookback=max(now - start_of(after), _AN_HOUR)))
    refs = [
        ref
        for ref in await reader.discover(everything=True)
        if ref.window_id > after and is_closed(ref.window_id, ref.hours, now)
    ]
    agents = await canary_agents_of(database.pool, trial)
    judged: list[CanaryWindow] = []
    earned: list[CanaryWindow] = []
    untried = 0
    async for window in reader.stream(refs):
        theirs = [own for own in window.trajectories if own.agent_id in agents]
        canary = [own for own in theirs if used(own, trial.checkpoint)]
        others = [own for own in window.trajectories if own.agent_id not in agents]
        untried += bool(theirs and not canary)
        scores = await judge_scores(database, [own.trajectory_id for own in window.trajectories])
        returns = {own.trajectory_id: _return_on_balance(own) for own in window.trajectories}
        judged += _sides(window.window_id, canary, others, scores)
        earned += _sides(window.window_id, canary, others, returns)
    if len(judged) >= MIN_WINDOWS:
        return CanaryWindows(tuple(judged), "judge score", untried)
    return CanaryWindows(tuple(earned), "return on the balance", untried)


def used(trajectory: AgentTrajectory, checkpoint: Checkpoint) -> bool:
    """Whether the log says that ``checkpoint`` answered, and no other checkpoint of its model."""
    authors = {author for call in trajectory.llm_calls if (author := call.author).model == checkpoint.model}
    return authors == {Author(checkpoint.model, checkpoint.step)}


def _sides(
    window_id: str,
    canary: Sequence[AgentTrajectory],
    others: Sequence[AgentTrajectory],
    measured: Mapping[str, float | None],
) -> list[CanaryWindow]:
    """The window's two means, or None if one side did not play or was not measured."""
    sides = [
        [value for own in side if (value := measured.get(own.trajectory_id)) is not None] for side in (canary, others)
    ]
    return [CanaryWindow(window_id, *map(fmean, sides))] if all(sides) else []


def _return_on_balance(trajectory: AgentTrajectory) -> float | None:
    pnl, balance = trajectory.window_pnl, trajectory.starting_balance
    return pnl / balance if pnl is not None and balance else None


async def settle_canary(database: Database, home: Path, model: str, *, now: datetime) -> CanaryDecision | None:
    """Finish, roll back or leave the running canary, by its agents' results; None if none is running."""
    trial = await running_canary(database, model)
    if trial is None:
        return None
    decision = decide(await windows_since(database, trial, now))
    if decision.ruling is CanaryRuling.FINISH:
        await finish_canary(database, home, model, outcome=decision.reason)
    elif decision.ruling is CanaryRuling.ROLL_BACK:
        await end_canary(database, home, model, outcome=decision.reason)
    return decision
