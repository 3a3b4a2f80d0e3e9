"""How certain a difference between two sets of agents is, with agents as the units.

When agents are chosen at random to get something, agents are what was randomised: a thousand hours of two agents are
two agents. Each comes with one number, and the spread among those that got nothing says how much an agent varies by
itself, whatever that is made of. A tenth of them, at least one on each side, is trimmed: no single agent moves the
result or widens it. Trimming has no table of quantiles, so the critical values are simulated; seeded, they are the same
on any machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

MIN_OTHERS = 5
"""Fewer leave too little between the two that are trimmed to tell how much agents vary."""

_DRAWS = 60_000
_MOST_SIMULATED = 40
"""More others than this are simulated as so many: the critical values hardly change, and err on the safe side."""
_NO_SPREAD = 1e-9


def trimmed(others: ArrayLike) -> tuple[Floats, Floats]:
    """Centre and spread of the others along the last axis: a trimmed mean, and the winsorised standard deviation."""
    ordered = np.sort(np.asarray(others, dtype=np.float64), axis=-1)
    number = ordered.shape[-1]
    if number < MIN_OTHERS:
        raise ValueError(f"{number} agents to compare with, of at least {MIN_OTHERS}")
    cut = max(1, number // 10)
    kept = ordered[..., cut : number - cut]
    winsorised = np.clip(ordered, kept[..., :1], kept[..., -1:])
    return kept.mean(axis=-1), np.maximum(winsorised.std(axis=-1, ddof=1), _NO_SPREAD)


@cache
def critical_values(chosen: int, others: int, looks: Sequence[tuple[int, float]]) -> tuple[float, ...]:
    """How far, in spreads, the mean of ``chosen`` agents must be from the others' centre at each look to be certain.

    ``looks`` are pairs of the number of windows and the chance of a false alarm, in one direction, that this look may
    add. If nothing sets the chosen apart, the chance that any look is a false alarm is the sum, however many looks are
    actually taken and whoever takes them. Agents' own pasts, which all looks share, make it less.
    """
    draws = np.random.default_rng(0)
    others = min(others, _MOST_SIMULATED)
    alive = np.ones(_DRAWS, dtype=bool)
    sums, before, found = np.zeros((_DRAWS, others + 1)), 0, []
    for windows, chance in looks:
        sums += draws.normal(0.0, np.sqrt(windows - before), sums.shape)
        before = windows
        centre, spread = trimmed(sums[:, 1:])
        distance = (sums[:, 0] / np.sqrt(chosen) - centre) / spread
        crossing = round(chance * _DRAWS)
        value = float(np.sort(distance[alive])[-crossing])
        alive &= distance < value
        found.append(value)
    return tuple(found)
