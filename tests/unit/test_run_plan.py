"""The plan of a run: groups and dropout before anything is paid, and the same groups after a restart."""

from __future__ import annotations

from dataclasses import dataclass

from data_bridge.models import AgentTrajectory
from data_bridge.quality import Reason, Rules, check
from tests.builders import NOW, WINDOW, make_trajectory, make_window
from trainer.config.sections import GroupSettings
from trainer.plan.grouping import assemble, form_groups
from trainer.plan.plan import make_plan
from trainer.types import PlannedGroup, PlannedWindow

RULES = Rules(now=NOW)


@dataclass(frozen=True)
class Surveyed:
    window_id: str
    hours: int
    usable: tuple[AgentTrajectory, ...]


def surveyed(agents: int, window_id: str = WINDOW) -> Surveyed:
    return Surveyed(window_id, 1, tuple(make_window(window_id, agents=agents).trajectories))


def test_the_plan_has_the_groups_that_form_groups_makes() -> None:
    window = make_window(agents=11)
    plan = make_plan([Surveyed(WINDOW, 1, window.trajectories)], GroupSettings(max_group=4), seed=3)
    formed = form_groups(check(window, RULES), GroupSettings(max_group=4), seed=3)
    assert [group.trajectory_ids for group in plan.windows[0].groups] == [
        tuple(one.trajectory_id for one in group.trajectories) for group in formed.groups
    ]


def test_everyone_is_planned_or_left_out_with_a_reason() -> None:
    windows = [surveyed(9, "2026-11-02T09:00"), surveyed(5, "2026-11-02T08:00")]
    plan = make_plan(windows, GroupSettings(dropout=0.3), seed=0)
    assert plan.trajectories + plan.dropped == plan.total == 14
    assert {one.reason for one in plan.excluded} == {Reason.DROPOUT}
    assert min(len(group.trajectory_ids) for window in plan.windows for group in window.groups) >= 2


def test_assembled_groups_hold_what_could_still_be_read() -> None:
    members = [make_trajectory(f"agent-{n}", trajectory_id=f"t{n}", pnl=10.0 * n) for n in range(4)]
    checked = check(make_window(trajectories=members), RULES)
    planned = PlannedWindow(
        WINDOW, 1, (PlannedGroup(f"{WINDOW}/1", ("t1", "t0", "gone")), PlannedGroup(f"{WINDOW}/2", ("t2", "away")))
    )
    grouped = assemble(checked, planned, {})
    assert [[one.trajectory_id for one in group.trajectories] for group in grouped.groups] == [["t1", "t0"]]
    assert [(one.trajectory_id, one.reason) for one in grouped.excluded] == [("t2", Reason.NO_COMPARABLE_PEER)]
