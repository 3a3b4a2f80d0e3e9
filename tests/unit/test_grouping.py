"""Grouping: an agent once per group, balanced, deterministic, nobody lost without a reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from data_bridge.quality import Reason
from trainer.config.sections import GroupSettings
from trainer.plan.grouping import partition
from trainer.types import MIN_GROUP


@dataclass(frozen=True)
class Entry:
    trajectory_id: str
    agent_id: str
    role: str | None = None
    starting_balance: float | None = None


def entries(*agents: str) -> list[Entry]:
    return [Entry(f"t{number}", agent) for number, agent in enumerate(agents)]


agent_lists = st.lists(st.sampled_from([f"a{n}" for n in range(12)]), max_size=40)


@given(agents=agent_lists, max_group=st.integers(2, 9), seed=st.integers(0, 2**32))
def test_every_member_is_in_one_group_or_left_out_with_a_reason(agents: list[str], max_group: int, seed: int) -> None:
    members = entries(*agents)
    parts = partition(members, GroupSettings(max_group=max_group), seed)

    placed = [member for group in parts.groups for member in group] + [member for member, _ in parts.left_out]
    assert sorted(placed, key=lambda m: m.trajectory_id) == sorted(members, key=lambda m: m.trajectory_id)
    for group in parts.groups:
        assert MIN_GROUP <= len(group) <= max_group
        assert max(Counter(member.agent_id for member in group).values()) == 1
    sizes = [len(group) for group in parts.groups]
    assert not sizes or max(sizes) - min(sizes) <= 1


@given(agents=agent_lists, seed=st.integers(0, 99))
def test_groups_do_not_depend_on_the_order_of_the_rows(agents: list[str], seed: int) -> None:
    members = entries(*agents)
    assert partition(members, GroupSettings(), seed) == partition(members[::-1], GroupSettings(), seed)


def test_twenty_agents_become_three_balanced_groups_of_all() -> None:
    parts = partition(entries(*(f"a{n}" for n in range(20))), GroupSettings(max_group=8), 0)
    assert sorted(len(group) for group in parts.groups) == [6, 7, 7]
    assert parts.left_out == ()


def test_another_seed_mixes_the_agents_differently() -> None:
    members = entries(*(f"a{n}" for n in range(20)))
    assert partition(members, GroupSettings(), 1) != partition(members, GroupSettings(), 2)


def test_matched_grouping_asks_for_the_same_role_and_a_similar_balance() -> None:
    members = [
        Entry("rich1", "a", "trader", 10_000),
        Entry("rich2", "b", "trader", 15_000),
        Entry("poor1", "c", "trader", 100),
        Entry("poor2", "d", "trader", 120),
        Entry("scout", "e", "scout", 100),
        Entry("new1", "f", "trader"),
        Entry("new2", "g", "trader"),
    ]
    parts = partition(members, GroupSettings(grouping="matched", match_ratio=2.0), 0)
    found = {frozenset(member.trajectory_id for member in group) for group in parts.groups}
    assert found == {frozenset({"rich1", "rich2"}), frozenset({"poor1", "poor2"}), frozenset({"new1", "new2"})}
    assert [(member.trajectory_id, reason) for member, reason in parts.left_out] == [
        ("scout", Reason.NO_COMPARABLE_PEER)
    ]


def test_an_agent_that_is_there_too_often_is_left_out_as_a_duplicate() -> None:
    parts = partition(entries("a", "a", "a", "b"), GroupSettings(), 0)
    assert [len(group) for group in parts.groups] == [2]
    assert {reason for _, reason in parts.left_out} == {Reason.DUPLICATE_AGENT}
