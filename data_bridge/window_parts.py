"""A window of any size in the numbers of a survey, read part by part: no more than one part is ever in memory.

What is decided over the whole window is decided here, from all of its parts: its hours, whether it is over, whether
enough agents are usable. A part has all rows of its agents, so who is a duplicate is decided within it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Collection, Sequence, Set
from dataclasses import replace

from data_bridge.models import DECISIONS, AgentTrajectory, Window, WindowOutcomes
from data_bridge.quality import (
    CheckedWindow,
    Exclusion,
    HourVotes,
    Measurable,
    Reason,
    Rules,
    check,
    check_rows,
    fault_of_window,
    leave_out_unmeasured,
    too_few_measured,
    unmeasured,
)
from data_bridge.survey_types import UsableTrajectory, WindowSummary, summarise


async def summaries(
    parts: AsyncIterable[tuple[Window, bool]],
    rules: Rules,
    purposes: Collection[str] = DECISIONS,
    *,
    is_measured: Measurable | None = None,
    with_gains: bool = False,
    on_read: Callable[[AgentTrajectory], None] | None = None,
) -> AsyncGenerator[tuple[WindowSummary, CheckedWindow | None], None]:
    """Every window in numbers, and the window itself if it came in one part."""
    so_far: list[WindowSummary] = []
    votes, unknown = HourVotes(), set[str]()
    async for part, is_last in parts:
        if on_read is not None:
            for trajectory in part.trajectories:
                on_read(trajectory)
        if is_last and not so_far:
            checked = check(part, rules)
            if is_measured is not None:
                checked = leave_out_unmeasured(checked, rules, is_measured)
            yield summarise(checked, purposes, with_gains=with_gains), checked
            continue
        votes.count(part.trajectories)
        rows = check_rows(part, rules)
        if is_measured is not None:
            unknown |= unmeasured(rows, rules, is_measured)
        so_far.append(summarise(rows, purposes, with_gains=with_gains))
        if is_last:
            whole = _whole(so_far, votes.hours, part.outcomes, rules)
            if is_measured is not None:
                whole = _measured(whole, unknown, is_measured)
            so_far, votes, unknown = [], HourVotes(), set()
            yield whole, None
            del whole


def _whole(parts: Sequence[WindowSummary], hours: int, outcomes: WindowOutcomes, rules: Rules) -> WindowSummary:
    """The window whose parts these are."""
    first = parts[0]
    usable = tuple(one for part in parts for one in part.usable)
    excluded = [one for part in parts for one in part.excluded]
    fault = fault_of_window(Window(first.window_id, hours, (), outcomes, ()), len(usable), rules)
    if fault is not None:
        excluded += [_exclusion(one, first.window_id, *fault) for one in usable]
        usable = ()
    ranges = [part.pnl_range for part in parts if part.pnl_range is not None]
    return WindowSummary(
        window_id=first.window_id,
        hours=hours,
        trajectories=sum(part.trajectories for part in parts),
        agents=sum(part.agents for part in parts),
        actions=sum(part.actions for part in parts),
        llm_calls=sum(part.llm_calls for part in parts),
        outcomes=first.outcomes,
        pnl_range=(min(low for low, _ in ranges), max(high for _, high in ranges)) if ranges else None,
        usable=usable,
        excluded=tuple(excluded),
    )


def _measured(whole: WindowSummary, unknown: Set[str], is_measured: Measurable) -> WindowSummary:
    """As ``leave_out_unmeasured``, of a window in numbers."""
    left_out = [one for one in whole.usable if one.trajectory_id in unknown]
    known = [one for one in whole.usable if one.trajectory_id not in unknown]
    excluded = [_exclusion(one, whole.window_id, is_measured.reason, is_measured.detail) for one in left_out]
    if fault := too_few_measured(len(known), len(left_out), is_measured):
        excluded += [_exclusion(one, whole.window_id, *fault) for one in known]
        known = []
    return replace(whole, usable=tuple(known), excluded=(*whole.excluded, *excluded))


def _exclusion(one: UsableTrajectory, window_id: str, reason: Reason, detail: str) -> Exclusion:
    return Exclusion(one.trajectory_id, one.agent_id, window_id, reason, detail, one.content_hash)
