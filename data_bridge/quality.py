"""Which rows can be trained on, and exactly one reason for each of the others.

``check`` is the only place that decides this: the trainer and ``check_windows`` both call it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Literal

from data_bridge.models import AgentTrajectory, MarketOutcomes, Step, Window
from data_bridge.window_ids import end_of, is_closed, is_held_out


class Reason(StrEnum):
    """Why a trajectory was not used. A closed list: every stage that excludes a trajectory uses one of these."""

    # the row itself (decided while reading)
    MALFORMED_JSON = "malformed_json"
    NO_STEPS = "no_steps"
    OVERSIZED = "oversized"
    BAD_WINDOW_ID = "bad_window_id"
    # the row's content and flags (decided by ``check``)
    NO_LLM_CALLS = "no_llm_calls"
    TOO_FEW_ACTIONS = "too_few_actions"
    EVALUATION_ROW = "evaluation_row"
    NOT_TRAINING_DATA = "not_training_data"
    DUPLICATE_AGENT = "duplicate_agent"
    ALREADY_USED = "already_used"
    # the window
    WINDOW_OPEN = "window_open"
    HELD_OUT = "held_out"
    NOT_HELD_OUT = "not_held_out"
    OUTCOMES_MISSING = "outcomes_missing"
    OUTCOMES_PARTIAL = "outcomes_partial"
    TOO_FEW_AGENTS = "too_few_agents"
    NO_COMPARABLE_PEER = "no_comparable_peer"
    # later stages
    DROPOUT = "dropout"
    NOT_SELECTED = "not_selected"
    JUDGE_BAD_REPLY = "judge_bad_reply"
    JUDGE_UNAVAILABLE = "judge_unavailable"
    OVER_BUDGET = "over_budget"
    OVER_CONTEXT = "over_context"
    NO_PNL = "no_pnl"
    NO_SPREAD = "no_spread"
    NO_TRAINABLE_TOKENS = "no_trainable_tokens"
    NO_LOGPROBS = "no_logprobs"
    TOKENS_DIFFER = "tokens_differ"
    FOREIGN = "foreign"
    FOREIGN_NEGATIVE = "foreign_negative"
    TOO_LONG = "too_long"
    STALE = "stale"
    ROW_FAULT = "row_fault"


@dataclass(frozen=True, slots=True)
class Exclusion:
    """One trajectory that was not used, and the one reason."""

    trajectory_id: str
    agent_id: str
    window_id: str
    reason: Reason
    detail: str = ""
    content_hash: str = ""
    """Of the row as it was read; empty where that is not known. A row that has changed since gets another chance."""


@dataclass(frozen=True, slots=True)
class CheckedWindow:
    """A window after ``check``: every one of its rows is in exactly one of the two lists."""

    window: Window
    usable: tuple[AgentTrajectory, ...]
    excluded: tuple[Exclusion, ...]


@dataclass(frozen=True, slots=True)
class Rules:
    """The conditions under which a window and its rows are used.

    For ``evaluation`` only held-out windows are usable, for ``training`` only the others.
    """

    min_agents: int = 3
    min_actions: int = 1
    max_bytes: int = 5_000_000
    held_out_share: float = 0.1
    allow_partial_outcomes: bool = False
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    purpose: Literal["training", "evaluation"] = "training"
    lookback: timedelta = timedelta(days=7)
    """How far before ``now`` a window may start. The reader's discovery applies this; ``check`` does not."""


def check(window: Window, rules: Rules) -> CheckedWindow:
    """Every row of ``window`` as usable or excluded with one reason.

    Faults of the row itself come first, so that a malformed row of an open window counts as malformed; a fault of the
    window applies to the rows that have no fault of their own.
    """
    excluded = [
        Exclusion(row.trajectory_id, row.agent_id, row.window_id, Reason(row.reason), row.detail)
        for row in window.unreadable
    ]
    sound: list[AgentTrajectory] = []
    for trajectory in window.trajectories:
        fault = _fault_of_row(trajectory, rules)
        if fault is None:
            sound.append(trajectory)
        else:
            excluded.append(exclusion_of(trajectory, *fault))

    usable = _one_per_agent(sound)
    if len(usable) < len(sound):
        kept = {trajectory.trajectory_id for trajectory in usable}
        excluded += [
            exclusion_of(trajectory, Reason.DUPLICATE_AGENT, "another trajectory of the agent did more in this window")
            for trajectory in sound
            if trajectory.trajectory_id not in kept
        ]

    fault = _fault_of_window(window, len(usable), rules)
    if fault is not None:
        excluded += [exclusion_of(trajectory, *fault) for trajectory in usable]
        usable = []
    return CheckedWindow(window, tuple(usable), tuple(excluded))


def _fault_of_row(trajectory: AgentTrajectory, rules: Rules) -> tuple[Reason, str] | None:
    if trajectory.is_evaluation:
        return Reason.EVALUATION_ROW, "isEvaluation is set"
    if not trajectory.is_training_data:
        return Reason.NOT_TRAINING_DATA, "isTrainingData is not set"
    if trajectory.used_in_training:
        return Reason.ALREADY_USED, "usedInTraining is set"
    if not trajectory.steps:
        return Reason.NO_STEPS, "no steps"
    if not _has_reply(trajectory.steps):
        return Reason.NO_LLM_CALLS, f"no model reply in {len(trajectory.steps)} steps"
    actions = _count_actions(trajectory.steps, rules.min_actions)
    if actions < rules.min_actions:
        return Reason.TOO_FEW_ACTIONS, f"{actions} of at least {rules.min_actions}"
    return None


def _has_reply(steps: Sequence[Step]) -> bool:
    for step in steps:
        for call in step.llm_calls:
            if call.response or call.tool_calls:
                return True
    return False


def _count_actions(steps: Sequence[Step], enough: int) -> int:
    """The number of actions, counted only up to ``enough``, which most rows reach within their first steps."""
    actions = 0
    for step in steps:
        if actions >= enough:
            break
        if step.action is not None and not step.action.is_pending:
            actions += 1
    return actions


def _fault_of_window(window: Window, agents: int, rules: Rules) -> tuple[Reason, str] | None:
    if not is_closed(window.window_id, window.hours, rules.now):
        return Reason.WINDOW_OPEN, f"ends at {end_of(window.window_id, window.hours):%Y-%m-%d %H:%M} UTC"
    held_out = is_held_out(window.window_id, rules.held_out_share)
    if held_out and rules.purpose == "training":
        return Reason.HELD_OUT, "kept for evaluation"
    if not held_out and rules.purpose == "evaluation":
        return Reason.NOT_HELD_OUT, "a window for training"
    fault = fault_of_outcomes(window.outcomes)
    if fault is not None and not (fault[0] is Reason.OUTCOMES_PARTIAL and rules.allow_partial_outcomes):
        return fault
    if agents < rules.min_agents:
        return Reason.TOO_FEW_AGENTS, f"{agents} usable of at least {rules.min_agents}"
    return None


def fault_of_outcomes(outcomes: MarketOutcomes) -> tuple[Reason, str] | None:
    """Whether the ground truth is missing or partial; None if it is good.

    A stock whose move is unknown makes it partial: its prices were due at the end of the window. An unresolved
    prediction market does not, since most of them run longer than one window. Without a single answer it is missing.
    """
    if not outcomes.known:
        return Reason.OUTCOMES_MISSING, "no market with a known outcome"
    unknown = [stock.ticker for stock in outcomes.stocks if not stock.is_known]
    if unknown:
        return Reason.OUTCOMES_PARTIAL, f"no known move of {', '.join(unknown[:5])}"
    return None


def _one_per_agent(trajectories: Iterable[AgentTrajectory]) -> list[AgentTrajectory]:
    """Each agent's trajectory with the most actions; a tie goes to the latest, then by id: always the same one."""
    by_agent: dict[str, list[AgentTrajectory]] = {}
    for trajectory in trajectories:
        by_agent.setdefault(trajectory.agent_id, []).append(trajectory)
    return [own[0] if len(own) == 1 else max(own, key=_how_telling) for own in by_agent.values()]


def _how_telling(trajectory: AgentTrajectory) -> tuple[int, datetime, str]:
    return len(trajectory.actions), trajectory.end_time, trajectory.trajectory_id


def exclusion_of(trajectory: AgentTrajectory, reason: Reason, detail: str = "") -> Exclusion:
    return Exclusion(
        trajectory.trajectory_id, trajectory.agent_id, trajectory.window_id, reason, detail, trajectory.content_hash
    )
