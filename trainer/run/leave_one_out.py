"""``--baseline leave-one-out``: the score that HOLD would have had in a member's place, by replay of the market.

The window is played again with HOLD for one member (with ``--step-credit`` for one of its decisions), and the offline
judge scores its group again at the prices that come of it. That score does not depend on what the member decided, so
taking it off adds no bias. It needs the simulated market, whose exchange can be played again, and the offline judge,
which can be asked about a decision that nobody took.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from data_bridge.database import Database
from data_bridge.errors import ConfigurationError
from data_bridge.models import Action, AgentTrajectory
from data_bridge.reader import WindowReader
from trainer.config.commands import TrainSettings
from trainer.judge.cost import uses_llm
from trainer.judge.outcome import assess, scores, scores_of_decisions
from trainer.rewards import Baseline
from trainer.train.step_credit import decided, decision_name, returns
from trainer.types import Group, JudgedGroup
from trainer.world.leave_one_out import PlayedOrders, played_orders
from trainer.world.replay import load_windows

logger = logging.getLogger(__name__)

HELD = "HOLD in its place"
"""Whose score the baseline is, in the reward history."""


def refuse_unknown_counterfactual(settings: TrainSettings, *, simulated: bool) -> None:
    """ConfigurationError if nobody can say what would have happened without a decision."""
    if settings.training.baseline != "leave-one-out":
        return
    if not simulated:
        raise ConfigurationError(
            "--baseline leave-one-out replays the simulated market: what would have happened without a decision is not "
            "known in a log; choose agent or role."
        )
    if settings.windows.world != "market":
        raise ConfigurationError(
            "--baseline leave-one-out replays the simulated market only: choose agent or role for another --world."
        )
    if uses_llm(settings.judge):
        raise ConfigurationError(
            "--baseline leave-one-out needs --judge outcome: an LLM was not asked about a decision that nobody took."
        )


@dataclass(frozen=True, slots=True)
class LeaveOneOut:
    """Replays the windows of a step's groups."""

    database: Database
    reader: WindowReader
    discount: float | None
    """Of --step-discount, if decisions are credited by themselves."""

    async def baselines(self, groups: Sequence[JudgedGroup]) -> dict[str, Baseline]:
        """By trajectory and, if decisions are credited, by decision; none for a window that cannot be replayed."""
        windows = await load_windows(self.database, {judged.group.window_id for judged in groups})
        found: dict[str, Baseline] = {}
        for judged in groups:
            window, simulated = await self.reader.read(judged.group.window_id), windows.get(judged.group.window_id)
            played = None if window is None or simulated is None else played_orders(simulated, window.trajectories)
            if played is None:
                logger.warning("window %s cannot be replayed: its groups have no baseline", judged.group.window_id)
                continue
            found |= baselines_of(judged.group, played, self.discount)
        return found


def baselines_of(group: Group, played: PlayedOrders, discount: float | None) -> dict[str, Baseline]:
    """What each member (and, with ``discount``, each of its decisions) would have scored with HOLD."""
    found: dict[str, Baseline] = {}
    for place, member in enumerate(group.trajectories):
        name = member.trajectory_id
        other = _with(group, place, _held(member, None), played.without(name))
        assessed = [assess(one, other.outcomes) for one in other.trajectories]
        known = [one for one in assessed if one is not None]
        if len(known) == len(assessed):
            found[name] = Baseline(HELD, scores(known)[place])
        if discount is None:
            continue
        for number in range(len(decided(member))):
            other = _with(group, place, _held(member, number), played.without(name, number))
            own = returns(scores_of_decisions(other)[place], discount)
            if number < len(own) and (value := own[number]) is not None:
                found[decision_name(name, number)] = Baseline(HELD, value)
    return found


def _with(group: Group, place: int, member: AgentTrajectory, played: PlayedOrders) -> Group:
    rows = (*group.trajectories[:place], member, *group.trajectories[place + 1 :])
    return replace(group, trajectories=rows, outcomes=played.outcomes())


def _held(member: AgentTrajectory, number: int | None) -> AgentTrajectory:
    """``member`` as if it had held: in all decisions, or in one."""
    hold = Action(action_type="HOLD", parameters={}, success=True)
    own = decided(member)
    changed = {id(step) for place, step in enumerate(own) if number is None or place == number}
    steps = [msgspec.structs.replace(step, action=hold) if id(step) in changed else step for step in member.steps]
    return msgspec.structs.replace(member, steps=steps)
