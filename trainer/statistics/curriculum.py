"""What is played or trained next: arms from easy to hard, and draws that keep near what about half succeed at.

An arm is a kind of window: a stage and a luck of the simulated market, or windows of a log that are about equally hard.
Where all agents succeed, and where all fail, a group has no spread and teaches nothing. So there is an *aim*, a
difficulty between 0 and 1, which moves as AdaRFT's does: up while the agents succeed more often than ``TARGET``, down
while they succeed less often. Arms near the aim are drawn most.

No arm is ever empty: each has at least ``FLOOR`` of the draws, counted and not only expected, so that what is easy is
not forgotten and what is hard is noticed as soon as it can be learnt. Pure and seeded: the same arms, aim, counts and
key give the same draws on every host.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

FLOOR = 0.05
"""The least share of the draws that an arm has."""
TARGET = 0.4
"""The share of successes at which the aim stays where it is. AdaRFT's is a half; a guess between up and down succeeds
half of the time already, so an agent that is often invalid never gets there."""
PACE = 0.25
"""The most that the aim moves from one round to the next."""
SHARPNESS = 2.0
"""How fast the aim moves for a given distance from the target; AdaRFT's own."""
WIDTH = 0.3
"""How far from the aim an arm's chance has fallen to a third."""
MOST_ARMS = 10
"""Half of what the floors leave room for, so that at least half of the draws are by chance."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One kind of window."""

    name: str
    difficulty: float
    """From 0 to 1."""
    weight: float = 1.0
    """How much more often it is drawn than its difficulty says; 0 leaves it its floor alone."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of the windows of an arm: in how many tries, of all agents, how many succeeded."""

    succeeded: int
    tried: int


def chances(arms: Sequence[Arm], aim: float) -> list[float]:
    """The chance of each arm, from its distance to ``aim``; never below the floor."""
    if not 0 < len(arms) <= MOST_ARMS:
        raise ValueError(f"a curriculum has 1 to {MOST_ARMS} arms, not {len(arms)}")
    near = [arm.weight * math.exp(-abs(arm.difficulty - aim) / WIDTH) for arm in arms]
    free = [one / sum(near) for one in near] if any(near) else equal_chances(arms)
    return [FLOOR + (1 - FLOOR * len(arms)) * one for one in free]


def equal_chances(arms: Sequence[Arm]) -> list[float]:
    """Every arm alike: what a curriculum is compared with."""
    return [1 / len(arms)] * len(arms)


def moved(aim: float, results: Sequence[Result]) -> float:
    """The next aim, after a round with these results; where nobody tried anything it stays."""
    tried = sum(one.tried for one in results)
    if tried == 0:
        return aim
    success = sum(one.succeeded for one in results) / tried
    return min(1.0, max(0.0, aim + PACE * math.tanh(SHARPNESS * (success - TARGET))))


def draw(
    arms: Sequence[Arm], likely: Sequence[float], drawn: Mapping[str, int], places: Sequence[str], key: str
) -> list[Arm]:
    """An arm for each of ``places``, by the chances ``likely`` after ``drawn`` so many of each before.

    A draw depends on ``key`` and its place alone, and on how often each arm was drawn. An arm that would fall below its
    floor has its turn first, so early that each has its share at any moment, however many come due together.
    """
    counts = Counter({arm.name: drawn.get(arm.name, 0) for arm in arms})
    found: list[Arm] = []
    for place in places:
        number = counts.total()
        due = [arm for arm in arms if counts[arm.name] < FLOOR * (number + len(arms))]
        if due:
            chosen = min(due, key=lambda arm: (counts[arm.name], _unit(key, place, arm.name)))
        else:
            bounds = list(accumulate(likely))
            chosen = arms[bisect_right(bounds, _unit(key, place) * bounds[-1])]
        counts[chosen.name] += 1
        found.append(chosen)
    return found


def in_order(members: Mapping[Arm, Sequence[str]], aim: float, key: str) -> dict[str, Arm]:
    """All windows of all arms, each with its arm, in the order in which they are drawn: no window twice.

    An arm whose windows are all drawn is none any more; of what is drawn, every other one keeps at least its floor.
    """
    left = {arm: list(own) for arm, own in members.items() if own}
    drawn, found = Counter[str](), dict[str, Arm]()
    while left:
        arms = list(left)
        [arm] = draw(arms, chances(arms, aim), drawn, [str(len(found))], key)
        found[left[arm].pop(0)] = arm
        drawn[arm.name] += 1
        if not left[arm]:
            del left[arm]
    return found


def with_patterns(arms: Sequence[Arm], draws: Mapping[str, str], shares: Mapping[str, float]) -> list[Arm]:
    """Arms in whose windows error patterns show count up to twice.

    ``draws`` names the arm of each window drawn last, ``shares`` how much of a window shows a pattern.
    """
    found: list[Arm] = []
    for arm in arms:
        own = [shares[window_id] for window_id, name in draws.items() if name == arm.name and window_id in shares]
        found.append(replace(arm, weight=arm.weight * (1 + sum(own) / len(own))) if own else arm)
    return found


def _unit(*key: str) -> float:
    digest = hashlib.blake2b("\x1f".join(key).encode(), digest_size=8).digest()
    return (int.from_bytes(digest) >> 11) * 2.0**-53
