"""Which rows can be trained on, and for each of the others the one reason why not.

``check`` is the only place that decides this: the trainer and ``check_windows`` both call it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from data_bridge.models import AgentTrajectory, Window


class Reason(StrEnum):
    """Why a trajectory was not used. A closed list: every stage that leaves something out picks from it."""

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
    NO_SPREAD = "no_spread"
    NO_TRAINABLE_TOKENS = "no_trainable_tokens"
    NO_LOGPROBS = "no_logprobs"
    FOREIGN_NEGATIVE = "foreign_negative"
    TOO_LONG = "too_long"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class Exclusion:
    """One trajectory that was not used, and the one reason."""

    trajectory_id: str
    agent_id: str
    window_id: str
    reason: Reason
    detail: str = ""


@dataclass(frozen=True, slots=True)
class CheckedWindow:
    """A window after ``check``: every one of its rows is in exactly one of the two lists."""

    window: Window
    usable: tuple[AgentTrajectory, ...]
    excluded: tuple[Exclusion, ...]
