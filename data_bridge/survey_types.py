"""A window in numbers: what a survey keeps of it, and how that is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from data_bridge.models import DECISIONS, NO_DOUBTS, AgentTrajectory, FactDoubts, LLMCall
from data_bridge.quality import CheckedWindow, Exclusion, Reason

CHARACTERS_PER_TOKEN = 3
"""For estimates without a tokenizer. English has about four, JSON full of numbers about three: an overestimate."""


@dataclass(frozen=True, slots=True)
class UsableTrajectory:
    """What grouping, dropout and the cost estimate need to know about a usable trajectory."""

    trajectory_id: str
    agent_id: str
    role: str | None
    starting_balance: float | None
    judge_tokens: int
    train_tokens: int
    content_hash: str = ""
    decisions: int = 0
    """Steps in which something was decided."""
    gain: float | int | None = None
    """What its decisions gained by the game's own prices; None if that was not asked for or is not known."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """The number of markets with a known outcome."""

    stocks_known: int
    stocks: int
    predictions_known: int
    predictions: int
    facts: int = 0
    doubts: FactDoubts = NO_DOUBTS


@dataclass(frozen=True, slots=True)
class WindowSummary:
    """One window in numbers. The counts include all rows that could be read, usable or not."""

    window_id: str
    hours: int
    trajectories: int
    agents: int
    actions: int
    llm_calls: int
    outcomes: Coverage
    pnl_range: tuple[float, float] | None
    """The smallest and the largest P&L that an agent claims to have made in this window; the success that is known of
    agents in a world that is no market."""
    usable: tuple[UsableTrajectory, ...]
    excluded: tuple[Exclusion, ...]

    @property
    def reasons(self) -> Counter[Reason]:
        return Counter(exclusion.reason for exclusion in self.excluded)

    @property
    def is_trained(self) -> bool:
        """Whether rows of it were trained before, as the game's own flag says."""
        return any(one.reason is Reason.ALREADY_USED for one in self.excluded)

    @property
    def judge_tokens(self) -> int:
        return sum(one.judge_tokens for one in self.usable)

    @property
    def train_tokens(self) -> int:
        return sum(one.train_tokens for one in self.usable)


def summarise(
    checked: CheckedWindow, purposes: Collection[str] = DECISIONS, *, with_gains: bool = False
) -> WindowSummary:
    window = checked.window
    outcomes = window.outcomes
    told = (one.window_pnl if checked.world.reads_markets else _gain(one, checked) for one in window.trajectories)
    made = [figure for figure in told if figure is not None]
    readable = {trajectory.agent_id for trajectory in window.trajectories}
    return WindowSummary(
        window_id=window.window_id,
        hours=window.hours,
        trajectories=len(window.trajectories) + len(window.unreadable),
        agents=len(readable | {row.agent_id for row in window.unreadable}),
        actions=sum(len(trajectory.actions) for trajectory in window.trajectories),
        llm_calls=sum(len(trajectory.llm_calls) for trajectory in window.trajectories),
        outcomes=Coverage(
            sum(stock.is_known for stock in outcomes.stocks),
            len(outcomes.stocks),
            sum(market.is_known for market in outcomes.predictions),
            len(outcomes.predictions),
            len(outcomes.facts),
            outcomes.doubts,
        ),
        pnl_range=(min(made), max(made)) if made else None,
        usable=tuple(_usable(one, purposes, _gain(one, checked) if with_gains else None) for one in checked.usable),
        excluded=checked.excluded,
    )


def _gain(trajectory: AgentTrajectory, checked: CheckedWindow) -> float | None:
    success = checked.world.success(trajectory, checked.window.outcomes)
    return None if success is None else success.value


def _usable(trajectory: AgentTrajectory, purposes: Collection[str], gain: float | None) -> UsableTrajectory:
    calls = trajectory.llm_calls
    shown = sum(len(call.user_prompt) + len(call.response) + len(call.reasoning or "") for call in calls)
    trained = sum(_tokens_of_call(call) for call in calls if call.purpose in purposes)
    return UsableTrajectory(
        trajectory.trajectory_id,
        trajectory.agent_id,
        trajectory.role,
        trajectory.starting_balance,
        judge_tokens=_tokens(shown),
        train_tokens=trained,
        content_hash=trajectory.content_hash,
        decisions=sum(step.action is not None or bool(step.llm_calls) for step in trajectory.steps),
        gain=gain,
    )


def _tokens_of_call(call: LLMCall) -> int:
    """The endpoint's count where the log has it, otherwise an estimate."""
    if call.prompt_tokens is not None and call.completion_tokens is not None:
        return int(call.prompt_tokens + call.completion_tokens)
    return _tokens(len(call.system_prompt) + len(call.user_prompt) + len(call.response))


def _tokens(characters: int) -> int:
    return -(-characters // CHARACTERS_PER_TOKEN)
