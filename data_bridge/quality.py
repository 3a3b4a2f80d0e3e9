"""Which rows can be trained on, and exactly one reason for each of the others.

``check`` is the only place that decides this: the trainer and ``check_windows`` both call it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from data_bridge.models import AgentTrajectory, Step, Window, WindowOutcomes
from data_bridge.window_ids import end_of, is_closed
from data_bridge.worlds.market import MARKET
from data_bridge.worlds.world import Completeness, World


class Reason(StrEnum):
    """Why a trajectory was not used. A closed list: every stage that excludes a trajectory uses one of these."""

    # the row itself (decided while reading)
    MALFORMED_JSON = "malformed_json"
    NO_STEPS = "no_steps"
    OVERSIZED = "oversized"
    BAD_WINDOW_ID = "bad_window_id"
    BAD_ID = "bad_id"
    TOO_MANY_ROWS = "too_many_rows"
    OVER_SHARE = "over_share"
    # the row's content and flags (decided by ``check``)
    NO_LLM_CALLS = "no_llm_calls"
    TOO_FEW_ACTIONS = "too_few_actions"
    BOOKS_CONTRADICT = "books_contradict"
    EVALUATION_ROW = "evaluation_row"
    NOT_TRAINING_DATA = "not_training_data"
    DUPLICATE_AGENT = "duplicate_agent"
    ALREADY_USED = "already_used"
    # the window
    WINDOW_OPEN = "window_open"
    HELD_OUT = "held_out"
    EMBARGO = "embargo"
    OUTCOMES_MISSING = "outcomes_missing"
    OUTCOMES_PARTIAL = "outcomes_partial"
    TOO_FEW_AGENTS = "too_few_agents"
    NO_COMPARABLE_PEER = "no_comparable_peer"
    # later stages
    DROPOUT = "dropout"
    NOT_SELECTED = "not_selected"
    JUDGE_BAD_REPLY = "judge_bad_reply"
    JUDGE_UNAVAILABLE = "judge_unavailable"
    JUDGE_FILTERED = "judge_filtered"
    OVER_BUDGET = "over_budget"
    OVER_CONTEXT = "over_context"
    NO_PNL = "no_pnl"
    NOT_MEASURED = "not_measured"
    NO_SPREAD = "no_spread"
    WITHIN_NOISE = "within_noise"
    EQUAL_DECISIONS = "equal_decisions"
    INVALID = "invalid"
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
    world: World = MARKET


@dataclass(frozen=True, slots=True)
class Rules:
    """The conditions under which a window and its rows are used."""

    min_agents: int = 3
    min_actions: int = 1
    max_bytes: int = 5_000_000
    allow_partial_outcomes: bool = False
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    lookback: timedelta = timedelta(days=7)
    """How far before ``now`` a window may start. The reader's discovery applies this; ``check`` does not."""
    world: World = MARKET
    """What kind of game it is."""
    facts_view: str | None = None
    """The team's view that facts are read from; None: our own table."""


@dataclass(frozen=True, slots=True)
class Measurable:
    """Which trajectories a judge that does not read, but computes, can score; and what is said of the others."""

    can_score: Callable[[AgentTrajectory, WindowOutcomes, World], bool]
    reason: Reason
    detail: str
    known: str
    """What is known of those that it can score: ``3 of at least 4 whose profit is known``."""


def check(window: Window, rules: Rules) -> CheckedWindow:
    """Every row of ``window`` as usable or excluded with one reason.

    Faults of the row itself come first, so that a malformed row of an open window counts as malformed; a fault of the
    window applies to the rows that have no fault of their own.
    """
    rows = check_rows(window, rules)
    fault = fault_of_window(window, len(rows.usable), rules)
    if fault is None:
        return rows
    excluded = [exclusion_of(trajectory, *fault) for trajectory in rows.usable]
    return CheckedWindow(window, (), (*rows.excluded, *excluded), rules.world)


def check_rows(window: Window, rules: Rules) -> CheckedWindow:
    """As ``check``, but without the faults of the window as a whole: also for a part of one, with whole agents."""
    excluded = [
        Exclusion(row.trajectory_id, row.agent_id, row.window_id, Reason(row.reason), row.detail)
        for row in window.unreadable
    ]
    sound: list[AgentTrajectory] = []
    for trajectory in window.trajectories:
        fault = _fault_of_row(trajectory, window.outcomes, rules)
        if fault is None:
            sound.append(trajectory)
        else:
            excluded.append(exclusion_of(trajectory, *fault))

    usable: list[AgentTrajectory] = []
    for first, later in _by_agent(sound):
        if first.used_in_training:
            excluded.append(exclusion_of(first, Reason.ALREADY_USED, _USED))
        else:
            usable.append(first)
        excluded += [exclusion_of(one, Reason.DUPLICATE_AGENT, WRITTEN_LATER) for one in later]
    return CheckedWindow(window, tuple(usable), tuple(excluded), rules.world)


_MAX_HOURS = 24 * 7
"""A row that claims a longer window is wrong; it has no vote."""


def hours_of(trajectories: Iterable[AgentTrajectory]) -> int:
    """The length of a window in hours, by vote: one for each agent, the lower median decides.

    So a minority of agents, however many rows they write, can neither keep a window open nor close it early. Agents
    that show a model's reply vote; only where there are none, the others. A claim out of range is no vote.
    """
    votes = HourVotes()
    votes.count(trajectories)
    return votes.hours


class HourVotes:
    """The vote of ``hours_of``, counted part by part; all rows of an agent are in one part."""

    def __init__(self) -> None:
        self._with_reply: list[int] = []
        self._all: list[int] = []

    def count(self, trajectories: Iterable[AgentTrajectory]) -> None:
        readable = [one for one in trajectories if 1 <= one.window_hours <= _MAX_HOURS]
        self._all += _votes(readable)
        self._with_reply += _votes(one for one in readable if _has_reply(one.steps))

    @property
    def hours(self) -> int:
        return _lower_median(self._with_reply or self._all or [1])


def _votes(trajectories: Iterable[AgentTrajectory]) -> list[int]:
    """One vote for each agent."""
    claims: dict[str, list[int]] = {}
    for one in trajectories:
        claims.setdefault(one.agent_id, []).append(one.window_hours)
    return [_lower_median(own) for own in claims.values()]


def _lower_median(numbers: Sequence[int]) -> int:
    return sorted(numbers)[(len(numbers) - 1) // 2]


def _fault_of_row(trajectory: AgentTrajectory, outcomes: WindowOutcomes, rules: Rules) -> tuple[Reason, str] | None:
    if trajectory.is_evaluation:
        return Reason.EVALUATION_ROW, "isEvaluation is set"
    if not trajectory.is_training_data:
        return Reason.NOT_TRAINING_DATA, "isTrainingData is not set"
    fault = _fault_of_content(trajectory, outcomes, rules)
    return (Reason.ALREADY_USED, _USED) if fault is not None and trajectory.used_in_training else fault


def _fault_of_content(trajectory: AgentTrajectory, outcomes: WindowOutcomes, rules: Rules) -> tuple[Reason, str] | None:
    if not trajectory.steps:
        return Reason.NO_STEPS, "no steps"
    if not _has_reply(trajectory.steps):
        return Reason.NO_LLM_CALLS, f"no model reply in {len(trajectory.steps)} steps"
    actions = _count_actions(trajectory.steps, rules.min_actions)
    if actions < rules.min_actions:
        return Reason.TOO_FEW_ACTIONS, f"{actions} of at least {rules.min_actions}"
    untrue = rules.world.contradiction(trajectory, outcomes)
    return None if untrue is None else (Reason.BOOKS_CONTRADICT, untrue)


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


MIN_MEASURED = 2
"""Of a window's agents, which are enough by their number: two whose result is known can be compared."""


def leave_out_unmeasured(checked: CheckedWindow, rules: Rules, is_measured: Measurable) -> CheckedWindow:
    """``checked`` without the rows that the judge cannot measure; without the others too if they are too few then."""
    names = unmeasured(checked, rules, is_measured)
    known = [one for one in checked.usable if one.trajectory_id not in names]
    excluded = [
        exclusion_of(one, is_measured.reason, is_measured.detail)
        for one in checked.usable
        if one.trajectory_id in names
    ]
    if fault := too_few_measured(len(known), len(excluded), is_measured):
        excluded += [exclusion_of(one, *fault) for one in known]
        known = []
    return CheckedWindow(checked.window, tuple(known), (*checked.excluded, *excluded), checked.world)


def unmeasured(checked: CheckedWindow, rules: Rules, is_measured: Measurable) -> set[str]:
    """The ids of the usable rows that the judge cannot measure; also of a part of a window."""
    outcomes = checked.window.outcomes
    return {one.trajectory_id for one in checked.usable if not is_measured.can_score(one, outcomes, rules.world)}


def too_few_measured(known: int, left_out: int, is_measured: Measurable) -> tuple[Reason, str] | None:
    """Why the others of a window are left out, too, after ``left_out`` could not be measured."""
    if not left_out or known >= MIN_MEASURED:
        return None
    return Reason.TOO_FEW_AGENTS, f"{known} of at least {MIN_MEASURED} {is_measured.known}"


def fault_of_window(window: Window, agents: int, rules: Rules) -> tuple[Reason, str] | None:
    if not is_closed(window.window_id, window.hours, rules.now):
        return Reason.WINDOW_OPEN, f"ends at {end_of(window.window_id, window.hours):%Y-%m-%d %H:%M} UTC"
    fault = fault_of_outcomes(window.outcomes, rules.world)
    if fault is not None and not (fault[0] is Reason.OUTCOMES_PARTIAL and rules.allow_partial_outcomes):
        return fault
    if agents < rules.min_agents:
        return Reason.TOO_FEW_AGENTS, f"{agents} usable of at least {rules.min_agents}"
    return None


def fault_of_outcomes(outcomes: WindowOutcomes, world: World = MARKET) -> tuple[Reason, str] | None:
    """Whether the ground truth is missing or partial, as the world says; None if it is good."""
    known = world.known(outcomes)
    if known.completeness is Completeness.COMPLETE:
        return None
    is_partial = known.completeness is Completeness.PARTIAL
    return Reason.OUTCOMES_PARTIAL if is_partial else Reason.OUTCOMES_MISSING, known.detail


_USED = "usedInTraining is set"
"""A plan takes a row once. Only replay gives it back, by our own ledger, and counts each use."""
WRITTEN_LATER = "another trajectory of the agent in this window was written earlier"


def _by_agent(trajectories: Iterable[AgentTrajectory]) -> list[tuple[AgentTrajectory, list[AgentTrajectory]]]:
    """Each agent's trajectory that was written first, which stands for it in the window, and its later ones.

    Nothing that a row contains is weighed: whoever writes more rows, longer ones, or one more when the outcome is
    known, gains nothing by it. One that was already used still takes its agent's place, so that a second row is not
    trained by the next run.
    """
    by_agent: dict[str, list[AgentTrajectory]] = {}
    for trajectory in trajectories:
        by_agent.setdefault(trajectory.agent_id, []).append(trajectory)
    ordered = [own if len(own) == 1 else sorted(own, key=_written) for own in by_agent.values()]
    return [(own[0], own[1:]) for own in ordered]


def _written(trajectory: AgentTrajectory) -> tuple[datetime, str]:
    """By the database's time of the row. The id only makes the order complete; it was chosen with the row."""
    return trajectory.created_at or trajectory.end_time, trajectory.trajectory_id


def exclusion_of(trajectory: AgentTrajectory, reason: Reason, detail: str = "") -> Exclusion:
    return Exclusion(
        trajectory.trajectory_id, trajectory.agent_id, trajectory.window_id, reason, detail, trajectory.content_hash
    )
