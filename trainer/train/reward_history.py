"""Computes the advantages of a step again from its reward history, and says where they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby

from trainer.rewards import MemberReward, RewardHistory
from trainer.train.credit import rewards_of


def rebuilt(history: RewardHistory) -> list[MemberReward]:
    """What the history's verdicts and answers come to by its own rule."""
    together = groupby(history.members, key=lambda one: (one.place, one.group_id))
    groups = [(group_id, [one.graded for one in members]) for (_, group_id), members in together]
    return [one for rewards in rewards_of(groups, history.rule) for one in rewards]


def differences(history: RewardHistory, scores: Mapping[str, float]) -> list[str]:
    """A sentence about each number that is not, to the last bit, what it was; none: the history is whole.

    ``scores`` are the verdicts that the batch was stored with: each must be in the history.
    """
    known = {one.graded.trajectory_id for one in history.members}
    told = {one.graded.trajectory_id: one.graded.score for one in history.members if one.graded.step is None}
    found = [f"{name} was trained, and the history does not have it" for name in sorted(scores.keys() - known)]
    found += _differing("verdict", {name: told[name] for name in scores if name in told}, scores)
    for one, again in zip(history.members, rebuilt(history), strict=True):
        was, becomes = asdict(one), asdict(again)
        for name in ("validity", "decision", "weight", "shaped", "pattern_weight", "credit", "advantage"):
            found += _differing(name, {one.graded.trajectory_id: was[name]}, {one.graded.trajectory_id: becomes[name]})
    return found


def _differing(name: str, stored: Mapping[str, float], computed: Mapping[str, float]) -> Sequence[str]:
    return [
        f"{who}: {name} is stored as {value!r} and comes to {computed[who]!r}"
        for who, value in stored.items()
        if value.hex() != computed[who].hex()
    ]
