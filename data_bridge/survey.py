"""One pass over the windows that keeps only numbers: what there is, what is usable, and why the rest is not.

``check_windows``, the dry run, the dropout plan, the cost estimate and the scheduler all start from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field

from data_bridge.discovery import WindowRef
from data_bridge.models import DECISIONS, AgentTrajectory, LLMCall
from data_bridge.quality import CheckedWindow, Exclusion, Measured, Reason, Rules, check, leave_out_unmeasured
from data_bridge.reader import WindowReader
from data_bridge.stakes import gain_of

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
    gain: float | None = None
    """What its decisions gained by the game's own prices; None if that was not asked for or is not known."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """The number of markets with a known outcome."""

    stocks_known: int
    stocks: int
    predictions_known: int
    predictions: int


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
    """The smallest and the largest P&L that an agent made in this window."""
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


@dataclass(frozen=True, slots=True)
class Totals:
    windows: int = 0
    usable_windows: int = 0
    trajectories: int = 0
    usable: int = 0
    judge_tokens: int = 0
    train_tokens: int = 0
    reasons: Mapping[Reason, int] = field(default_factory=dict)
    """The number of excluded rows by reason, the most frequent first."""
    examples: Mapping[Reason, Exclusion] = field(default_factory=dict)
    """The first row excluded for each reason."""


@dataclass(frozen=True, slots=True)
class Survey:
    """All windows of the lookback in order. ``refs`` points to those with usable rows, for reading them again."""

    windows: tuple[WindowSummary, ...]
    refs: tuple[WindowRef, ...]
    totals: Totals


async def survey(
    reader: WindowReader,
    rules: Rules,
    purposes: Collection[str] = DECISIONS,
    *,
    is_measured: Measured | None = None,
    with_gains: bool = False,
    is_wanted: Callable[[str], bool] | None = None,
    on_window: Callable[[int, int], None] | None = None,
    on_read: Callable[[AgentTrajectory], None] | None = None,
) -> Survey:
    """Read and check every window of the lookback, eligible or not: every window is reported.

    With ``is_wanted`` only windows with such an id.

    ``purposes`` selects the calls that are trained. With ``is_measured``, rows that the judge could not score are left
    out, before they are put into a group; ``with_gains`` adds what each gained. ``on_window`` is called after each
    window with the number of windows done and the total, ``on_read`` with each trajectory that could be read.
    """
    found = [ref for ref in await reader.discover(everything=True) if is_wanted is None or is_wanted(ref.window_id)]
    summaries: list[WindowSummary] = []
    async with aclosing(reader.stream(found)) as windows:
        async for window in windows:
            if on_read is not None:
                for trajectory in window.trajectories:
                    on_read(trajectory)
            checked = check(window, rules)
            if is_measured is not None:
                checked = leave_out_unmeasured(checked, rules, is_measured)
            summaries.append(summarise(checked, purposes, with_gains=with_gains))
            if on_window is not None:
                on_window(len(summaries), len(found))
    refs = tuple(ref for ref, summary in zip(found, summaries, strict=True) if summary.usable)
    return Survey(tuple(summaries), refs, total(summaries))


def summarise(
    checked: CheckedWindow, purposes: Collection[str] = DECISIONS, *, with_gains: bool = False
) -> WindowSummary:
    window = checked.window
    outcomes = window.outcomes
    made = [pnl for pnl in (trajectory.window_pnl for trajectory in window.trajectories) if pnl is not None]
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
        ),
        pnl_range=(min(made), max(made)) if made else None,
        usable=tuple(_usable(one, purposes, gain_of(one, outcomes) if with_gains else None) for one in checked.usable),
        excluded=checked.excluded,
    )


def total(windows: list[WindowSummary]) -> Totals:
    reasons: Counter[Reason] = Counter()
    examples: dict[Reason, Exclusion] = {}
    for window in windows:
        for exclusion in window.excluded:
            reasons[exclusion.reason] += 1
            examples.setdefault(exclusion.reason, exclusion)
    return Totals(
        windows=len(windows),
        usable_windows=sum(bool(window.usable) for window in windows),
        trajectories=sum(window.trajectories for window in windows),
        usable=sum(len(window.usable) for window in windows),
        judge_tokens=sum(window.judge_tokens for window in windows),
        train_tokens=sum(window.train_tokens for window in windows),
        reasons=dict(reasons.most_common()),
        examples=examples,
    )


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
