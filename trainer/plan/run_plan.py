"""What one run is going to judge and train, decided before anything is paid for. Pure.

The plan fixes the groups and the dropout of every window. It is stored with the run, so that a run that was
killed half-way and taken up again judges the very same groups (whose verdicts it already has) and not new
mixtures of what is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from data_bridge.quality import CheckedWindow, Exclusion, Reason
from trainer.config.sections import PlanSettings
from trainer.plan import dropout
from trainer.plan.grouping import Comparable, Grouped, group_id, partition
from trainer.types import MIN_GROUP, Group, PlannedGroup, PlannedWindow, RunPlan


class SurveyedWindow(Protocol):
    """What the plan needs to know of a window: its id, its length and who is usable in it."""

    @property
    def window_id(self) -> str: ...
    @property
    def hours(self) -> int: ...
    @property
    def usable(self) -> Sequence[Comparable]: ...


def make_plan(windows: Iterable[SurveyedWindow], settings: PlanSettings, seed: int) -> RunPlan:
    """Group every window, then leave out what the totals ask for."""
    formed: list[tuple[SurveyedWindow, list[tuple[str, tuple[Comparable, ...]]]]] = []
    excluded: list[Exclusion] = []
    members: list[dropout.Member] = []
    for window in windows:
        parts = partition(window.usable, settings, seed)
        groups = [(group_id(window.window_id, number), own) for number, own in enumerate(parts.groups, start=1)]
        formed.append((window, groups))
        members += [dropout.Member(one.trajectory_id, one.agent_id, name) for name, own in groups for one in own]
        excluded += [
            Exclusion(one.trajectory_id, one.agent_id, window.window_id, reason) for one, reason in parts.left_out
        ]
    thinning = dropout.plan(members, settings, seed)
    planned: list[PlannedWindow] = []
    for window, groups in formed:
        kept: list[PlannedGroup] = []
        for name, own in groups:
            kept.append(
                PlannedGroup(name, tuple(o.trajectory_id for o in own if o.trajectory_id not in thinning.left_out))
            )
            excluded += [
                Exclusion(one.trajectory_id, one.agent_id, window.window_id, Reason.DROPOUT)
                for one in own
                if one.trajectory_id in thinning.left_out
            ]
        if kept:
            planned.append(PlannedWindow(window.window_id, window.hours, tuple(kept)))
    return RunPlan(tuple(planned), tuple(excluded), thinning.rate, thinning.total)


def assemble(checked: CheckedWindow, planned: PlannedWindow) -> Grouped:
    """The planned groups with the trajectories as they were read.

    A member that is no longer usable has its own reason in ``checked``; a group that falls below its minimum by
    that is given up.
    """
    readable = {trajectory.trajectory_id: trajectory for trajectory in checked.usable}
    groups: list[Group] = []
    excluded: list[Exclusion] = []
    for plan in planned.groups:
        members = tuple(readable[name] for name in plan.trajectory_ids if name in readable)
        if len(members) >= MIN_GROUP:
            groups.append(Group(plan.group_id, planned.window_id, members, checked.window.outcomes))
        else:
            excluded += [
                Exclusion(one.trajectory_id, one.agent_id, planned.window_id, Reason.NO_COMPARABLE_PEER)
                for one in members
            ]
    return Grouped(tuple(groups), tuple(excluded))
