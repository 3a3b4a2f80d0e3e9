"""How a canary's agents did against everybody else in the windows since, and what follows from it.

The gate has already shown on held-out windows that the checkpoint is better; the canary looks for harm in the live
game. It is rolled back when its agents are clearly worse, finished when they are not worse after enough windows, and
left running in between.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from statistics import fmean

from data_bridge.database import Database
from data_bridge.models import AgentTrajectory, Window
from data_bridge.postgres_reader import WindowReader
from data_bridge.quality import Rules
from data_bridge.window_ids import is_closed, start_of, window_of
from trainer.evaluation.statistics import FEWEST_WINDOWS, Interval, mean_interval, windows_needed
from trainer.promotion.promotions import Promotion

_AN_HOUR = timedelta(hours=1)


class CanaryRuling(StrEnum):
    FINISH = "finish"
    ROLL_BACK = "roll_back"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class CanaryWindow:
    """One window since the canary began: the mean of its agents and the mean of all others."""

    window_id: str
    canary: float
    others: float


@dataclass(frozen=True, slots=True)
class CanaryDecision:
    ruling: CanaryRuling
    reason: str
    difference: Interval | None
    measure: str
    """``judge score`` where both sides were judged in enough windows, else ``return on the balance``."""


def decide(windows: Sequence[CanaryWindow], measure: str) -> CanaryDecision:
    """What follows from the windows since. Pure."""
    if len(windows) < FEWEST_WINDOWS:
        few = f"{len(windows)} windows with both canary and other agents so far, {FEWEST_WINDOWS} are needed"
        return CanaryDecision(CanaryRuling.WAIT, few, None, measure)
    differences = [window.canary - window.others for window in windows]
    difference = mean_interval(differences)
    assert difference.low is not None
    assert difference.high is not None
    shown = (
        f"{measure} of the canary's agents minus the others' {difference.mean:+.3g} "
        f"(95 % interval {difference.low:+.3g} to {difference.high:+.3g}, {difference.windows} windows)"
    )
    if difference.high < 0:
        return CanaryDecision(CanaryRuling.ROLL_BACK, f"{shown}: clearly worse", difference, measure)
    if difference.mean >= 0:
        return CanaryDecision(CanaryRuling.FINISH, f"{shown}: not worse", difference, measure)
    needed = windows_needed(differences)
    until = f", about {needed} windows would decide" if needed is not None else ""
    return CanaryDecision(CanaryRuling.WAIT, f"{shown}: not decided{until}", difference, measure)


async def windows_since(database: Database, trial: Promotion, now: datetime) -> tuple[list[CanaryWindow], str]:
    """The closed windows after the canary began in which both sides played, and what they are measured by."""
    after = trial.canary_after or window_of(trial.created_at)
    reader = WindowReader(database, Rules(min_agents=2, now=now, lookback=max(now - start_of(after), _AN_HOUR)))
    refs = [
        ref
        for ref in await reader.discover(everything=True)
        if ref.window_id > after and is_closed(ref.window_id, ref.hours, now)
    ]
    marked = await database.pool.fetch(
        "SELECT agent_id FROM hindsight.canary_agents WHERE promotion_id = $1", trial.promotion_id
    )
    agents = {row["agent_id"] for row in marked}
    judged: list[CanaryWindow] = []
    earned: list[CanaryWindow] = []
    async for window in reader.stream(refs):
        scores = await _judge_scores(database, [own.trajectory_id for own in window.trajectories])
        judged += _sides(window, agents, partial(_score_of, scores))
        earned += _sides(window, agents, _return_on_balance)
    return (judged, "judge score") if len(judged) >= FEWEST_WINDOWS else (earned, "return on the balance")


def _sides(
    window: Window, agents: Collection[str], measure: Callable[[AgentTrajectory], float | None]
) -> list[CanaryWindow]:
    """The window's two means, or nothing if one side did not play or is not measured."""
    canary = [value for own in window.trajectories if own.agent_id in agents and (value := measure(own)) is not None]
    others = [
        value for own in window.trajectories if own.agent_id not in agents and (value := measure(own)) is not None
    ]
    return [CanaryWindow(window.window_id, fmean(canary), fmean(others))] if canary and others else []


def _score_of(scores: Mapping[str, float], trajectory: AgentTrajectory) -> float | None:
    return scores.get(trajectory.trajectory_id)


def _return_on_balance(trajectory: AgentTrajectory) -> float | None:
    pnl, balance = trajectory.window_pnl, trajectory.starting_balance
    return pnl / balance if pnl is not None and balance else None


async def _judge_scores(database: Database, trajectory_ids: list[str]) -> dict[str, float]:
    rows = await database.pool.fetch(
        'SELECT "trajectoryId" AS id, "aiJudgeReward" AS score FROM trajectories'
        ' WHERE "trajectoryId" = ANY($1) AND "aiJudgeReward" IS NOT NULL',
        trajectory_ids,
    )
    return {row["id"]: row["score"] for row in rows}
