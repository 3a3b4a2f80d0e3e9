"""Every row is usable or has one reason, and the right one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_bridge.models import PredictionOutcome, StockOutcome, UnreadableRow, Window, WindowOutcomes
from data_bridge.quality import CheckedWindow, Reason, Rules, check
from tests.builders import (
    NOW,
    WINDOW,
    make_action,
    make_call,
    make_outcomes,
    make_step,
    make_trajectory,
    make_window,
)

RULES = Rules(now=NOW)
KNOWN = StockOutcome("ACME", 100, 110, 10.0)
UNKNOWN = StockOutcome("GLOBEX", 50, None, None)
RESOLVED = PredictionOutcome("m1", outcome="YES")
UNRESOLVED = PredictionOutcome("m2")


def reasons_of(checked: CheckedWindow) -> dict[str, Reason]:
    return {exclusion.agent_id: exclusion.reason for exclusion in checked.excluded}


def test_a_good_window_is_usable_as_a_whole() -> None:
    checked = check(make_window(agents=4), RULES)
    assert [trajectory.agent_id for trajectory in checked.usable] == ["agent-1", "agent-2", "agent-3", "agent-4"]
    assert checked.excluded == ()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"is_evaluation": True}, Reason.EVALUATION_ROW),
        ({"is_training_data": False}, Reason.NOT_TRAINING_DATA),
        ({"used_in_training": True}, Reason.ALREADY_USED),
        ({"steps": []}, Reason.NO_STEPS),
        ({"steps": [make_step(calls=[])]}, Reason.NO_LLM_CALLS),
        ({"steps": [make_step(calls=[make_call("")])]}, Reason.NO_LLM_CALLS),
        ({"steps": [make_step(no_action=True)]}, Reason.TOO_FEW_ACTIONS),
        ({"steps": [make_step(action=make_action("pending"))]}, Reason.TOO_FEW_ACTIONS),
    ],
)
def test_a_bad_row_costs_that_row_only(fields: dict[str, Any], reason: Reason) -> None:
    good = make_window(agents=3).trajectories
    checked = check(make_window(trajectories=[*good, make_trajectory("bad", **fields)]), RULES)
    assert checked.usable == good
    assert reasons_of(checked) == {"bad": reason}


def test_a_row_that_could_not_be_read_keeps_its_reason_and_detail() -> None:
    window = msgspec.structs.replace(
        make_window(), unreadable=(UnreadableRow("t9", "bad", WINDOW, "oversized", "7.0 MB of stepsJson"),)
    )
    [exclusion] = check(window, RULES).excluded
    assert (exclusion.reason, exclusion.detail) == (Reason.OVERSIZED, "7.0 MB of stepsJson")


def test_of_an_agent_the_trajectory_that_was_written_first_counts() -> None:
    first = make_trajectory("twice", trajectory_id="first", created_at=NOW - timedelta(hours=2))
    longer = make_trajectory(
        "twice", trajectory_id="longer", created_at=NOW - timedelta(hours=1), steps=[make_step(n) for n in range(3)]
    )
    others = make_window(agents=2).trajectories
    checked = check(make_window(trajectories=[longer, first, *others]), RULES)
    assert "first" in {trajectory.trajectory_id for trajectory in checked.usable}
    assert [(e.trajectory_id, e.reason) for e in checked.excluded] == [("longer", Reason.DUPLICATE_AGENT)]


@pytest.mark.parametrize("fields", [{"steps": []}, {"is_evaluation": True}, {"is_training_data": False}])
def test_a_bad_row_does_not_push_out_the_same_agents_good_one(fields: dict[str, Any]) -> None:
    bad = make_trajectory("agent-1", created_at=NOW - timedelta(days=9), **fields)
    checked = check(make_window(trajectories=[bad, *make_window().trajectories]), RULES)
    assert len(checked.usable) == 3
    assert list(reasons_of(checked)) == ["agent-1"]
    assert Reason.DUPLICATE_AGENT not in reasons_of(checked).values()


def test_a_used_row_keeps_its_agents_place() -> None:
    """Or an agent with five rows in a window would be trained in five runs."""
    used = make_trajectory("agent-1", used_in_training=True, created_at=NOW - timedelta(days=9))
    again = make_trajectory("agent-1", created_at=NOW - timedelta(days=8))
    checked = check(make_window(trajectories=[again, used, *make_window(agents=5).trajectories[1:]]), RULES)
    assert {one.agent_id for one in checked.usable} == {"agent-2", "agent-3", "agent-4", "agent-5"}
    assert [e.reason for e in checked.excluded] == [Reason.ALREADY_USED, Reason.DUPLICATE_AGENT]


@pytest.mark.parametrize(
    ("outcomes", "reason"),
    [
        (WindowOutcomes(), Reason.OUTCOMES_MISSING),
        (WindowOutcomes((UNKNOWN,), (UNRESOLVED,)), Reason.OUTCOMES_MISSING),
        (WindowOutcomes((), (UNRESOLVED,)), Reason.OUTCOMES_MISSING),
        (WindowOutcomes((KNOWN, UNKNOWN)), Reason.OUTCOMES_PARTIAL),
        (WindowOutcomes((UNKNOWN,), (RESOLVED,)), Reason.OUTCOMES_PARTIAL),
        (WindowOutcomes((KNOWN,), (UNRESOLVED,)), None),
        (WindowOutcomes((), (RESOLVED, UNRESOLVED)), None),
        (make_outcomes(), None),
    ],
)
def test_the_ground_truth_must_be_there(outcomes: WindowOutcomes, reason: Reason | None) -> None:
    checked = check(make_window(outcomes=outcomes), RULES)
    assert set(reasons_of(checked).values()) == ({reason} if reason else set())


def test_partial_outcomes_can_be_allowed_but_missing_ones_cannot() -> None:
    lenient = Rules(now=NOW, allow_partial_outcomes=True)
    assert check(make_window(outcomes=WindowOutcomes((KNOWN, UNKNOWN))), lenient).usable
    assert not check(make_window(outcomes=WindowOutcomes((UNKNOWN,))), lenient).usable


def test_an_open_window_waits_for_its_end_and_the_grace() -> None:
    window = make_window("2026-11-02T12:00")
    assert set(reasons_of(check(window, RULES)).values()) == {Reason.WINDOW_OPEN}
    assert check(window, Rules(now=NOW + timedelta(minutes=40))).usable


def test_too_few_usable_agents_cost_the_window_but_not_the_bad_rows_reasons() -> None:
    rows = [*make_window(agents=2).trajectories, make_trajectory("bad", is_evaluation=True)]
    checked = check(make_window(trajectories=rows), RULES)
    assert checked.usable == ()
    assert reasons_of(checked) == {
        "agent-1": Reason.TOO_FEW_AGENTS,
        "agent-2": Reason.TOO_FEW_AGENTS,
        "bad": Reason.EVALUATION_ROW,
    }


@given(
    st.lists(st.tuples(st.integers(1, 4), st.booleans(), st.booleans(), st.booleans(), st.integers(0, 3)), max_size=12),
    st.sampled_from([WindowOutcomes(), WindowOutcomes((KNOWN, UNKNOWN)), make_outcomes()]),
    st.sampled_from([WINDOW, "2026-11-02T12:00"]),
)
def test_every_row_is_in_exactly_one_of_the_two_lists(
    rows: list[tuple[int, bool, bool, bool, int]], outcomes: WindowOutcomes, window_id: str
) -> None:
    trajectories = [
        make_trajectory(
            f"agent-{agent}",
            window_id=window_id,
            trajectory_id=str(number),
            is_evaluation=evaluation,
            is_training_data=training,
            used_in_training=used,
            steps=[make_step(step) for step in range(steps)],
        )
        for number, (agent, evaluation, training, used, steps) in enumerate(rows)
    ]
    checked = check(Window(window_id, 1, tuple(trajectories), outcomes), RULES)
    listed = [t.trajectory_id for t in checked.usable] + [e.trajectory_id for e in checked.excluded]
    assert sorted(listed) == sorted(t.trajectory_id for t in trajectories)
    agents = [t.agent_id for t in checked.usable]
    assert len(agents) == len(set(agents))
    assert len(agents) == 0 or len(agents) >= RULES.min_agents
