"""Dropout: the rate, fair shares for every agent, no group under its minimum, the same ones on a rerun."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.config.sections import GroupSettings
from trainer.plan.dropout import Droppable as Member
from trainer.plan.dropout import plan_dropout as plan
from trainer.plan.dropout import rate_for
from trainer.types import MIN_GROUP


@pytest.mark.parametrize(
    ("total", "fixed", "expected"),
    [(500, None, 0.0), (1000, None, 0.0), (1250, None, 0.2), (10_000, None, 0.3), (10, 0.5, 0.5), (0, None, 0.0)],
)
def test_the_rate_comes_from_the_totals_within_its_bounds(total: int, fixed: float | None, expected: float) -> None:
    assert rate_for(total, GroupSettings(dropout=fixed)) == pytest.approx(expected)


@st.composite
def runs(draw: st.DrawFn) -> list[Member]:
    agents = [f"a{n}" for n in range(draw(st.integers(2, 14)))]
    members: list[Member] = []
    for number in range(draw(st.integers(1, 25))):
        size = draw(st.integers(2, min(8, len(agents))))
        chosen = draw(st.permutations(agents))[:size]
        members += [Member(f"g{number}-{agent}", agent, f"g{number}") for agent in chosen]
    return members


@settings(max_examples=300, deadline=None)
@given(members=runs(), rate=st.floats(0.01, 0.9), seed=st.integers(0, 2**40))
def test_shares_minimum_and_total_hold_at_once(members: list[Member], rate: float, seed: int) -> None:
    made = plan(members, GroupSettings(dropout=rate), seed)

    sizes = Counter(member.group_id for member in members)
    left = Counter(member.group_id for member in members if member.trajectory_id not in made.left_out)
    assert all(left[group] >= MIN_GROUP for group in sizes)

    share = {group: min(Fraction(rate), Fraction(max(size - MIN_GROUP, 0), size)) for group, size in sizes.items()}
    for agent in {member.agent_id for member in members}:
        own = [member for member in members if member.agent_id == agent]
        lost = sum(member.trajectory_id in made.left_out for member in own)
        assert abs(lost - sum((share[member.group_id] for member in own), Fraction(0))) < 1 + Fraction(1, 10**6)
    assert made.kept + len(made.left_out) == made.total == len(members)


def test_a_run_of_ordinary_groups_loses_exactly_what_the_rate_says() -> None:
    members = [Member(f"{g}-{a}", f"agent{a}", f"g{g}") for g in range(200) for a in range(8)]
    made = plan(members, GroupSettings(target_trajectories=1200), 3)
    assert made.rate == pytest.approx(0.25)
    assert len(made.left_out) in (399, 400)
    lost = Counter(member.agent_id for member in members if member.trajectory_id in made.left_out)
    assert set(lost.values()) <= {49, 50}


def test_a_rerun_leaves_out_the_same_and_another_seed_others() -> None:
    members = [Member(f"{g}-{a}", f"agent{a}", f"g{g}") for g in range(50) for a in range(6)]
    rules = GroupSettings(dropout=0.3)
    assert plan(members, rules, 1) == plan(members[::-1], rules, 1)
    assert plan(members, rules, 1).left_out != plan(members, rules, 2).left_out


def test_groups_of_two_lose_nobody() -> None:
    members = [Member(f"{g}-{a}", f"agent{a}", f"g{g}") for g in range(9) for a in range(2)]
    assert plan(members, GroupSettings(dropout=0.5), 0).left_out == frozenset()
