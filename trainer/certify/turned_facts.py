"""The same decisions with other facts afterwards, for worlds that are no market: mirrored and swapped. Pure.

What is known of a subject that all acted on is mirrored: what went up went down. What is known of single agents is
swapped between them, the best result for the worst. Which action was right is left alone: that is no outcome.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from data_bridge.models import Fact, WindowOutcomes
from trainer.types import Group


def facts_turned(group: Group) -> WindowOutcomes:
    """The facts of ``group`` turned round."""
    world = group.world
    ranked = sorted(group.trajectories, key=lambda one: (_value(group, one.trajectory_id), one.trajectory_id))
    names = [one.agent_id for one in ranked]
    other = dict(zip(names, reversed(names), strict=True))
    facts = [_turned(fact, other, world.right_answer) for fact in group.outcomes.facts]
    return msgspec.structs.replace(group.outcomes, facts=tuple(sorted(facts, key=lambda one: (one.subject, one.kind))))


def _value(group: Group, trajectory_id: str) -> float:
    one = next(one for one in group.trajectories if one.trajectory_id == trajectory_id)
    success = group.world.success(one, group.outcomes)
    return 0.0 if success is None else success.value


def _turned(fact: Fact, other: Mapping[str, str], right_answer: str | None) -> Fact:
    agent = fact.agent if fact.agent in other else next((name for name in other if fact.is_of(name)), None)
    if agent is not None:
        return msgspec.structs.replace(fact, subject=other[agent] + fact.subject[len(agent) :], agent=other[agent])
    if fact.kind == right_answer or fact.visible or fact.before is None or fact.after is None:
        return fact
    return msgspec.structs.replace(fact, before=fact.after, after=fact.before)


def gains_by_turn(group: Group, turned: Group) -> dict[str, float]:
    """By trajectory, what it achieves more (or less) with the turned facts; without those that cannot be measured."""
    found: dict[str, float] = {}
    for before, after in zip(group.trajectories, turned.trajectories, strict=True):
        one, other = group.world.success(before, group.outcomes), group.world.success(after, turned.outcomes)
        if one is not None and other is not None:
            found[before.trajectory_id] = other.value - one.value
    return found
