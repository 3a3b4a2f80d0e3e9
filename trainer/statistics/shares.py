"""How certain a share of right answers is, where questions are the unit: they are independent, unlike hours.

Wilson's interval for one reply a question; a bootstrap over questions if a question has several replies, since two
replies to one question are not two pieces of evidence. scipy is imported where it is used, since that takes a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from trainer.evidence import Interval

_RESAMPLES = 2000
_MIN_UNITS = 6


def share_interval(hits: ArrayLike, of: ArrayLike) -> Interval | None:
    """The share of ``hits`` among ``of``, each counted per question; None if there is nothing to divide by."""
    counts, totals = np.asarray(hits, dtype=np.float64), np.asarray(of, dtype=np.float64)
    answered = totals > 0
    counts, totals, units = counts[answered], totals[answered], int(answered.sum())
    if units == 0:
        return None
    share = float(counts.sum() / totals.sum())
    if totals.max() <= 1 or share in (0.0, 1.0):  # resampling answers that are all the same would find no doubt
        from scipy.stats import binomtest

        ends = binomtest(round(share * units), units).proportion_ci(method="wilson")
        return Interval(share, float(ends.low), float(ends.high), units)
    low, high = _bootstrapped(lambda hit, out_of, axis: hit.sum(axis=axis) / out_of.sum(axis=axis), counts, totals)
    return Interval(share, low, high, units)


def share_difference(first: Sequence[tuple[int, int]], second: Sequence[tuple[int, int]]) -> Interval | None:
    """How much larger the share of hits is in ``first`` than in ``second``: (hits, number) of each unit, the units of
    both independent. The interval is a bootstrap over units; None if one side is empty, without ends below six units.
    """
    if not first or not second:
        return None
    sides = [np.asarray(side, dtype=np.float64) for side in (first, second)]
    difference = float(np.subtract(*(side[:, 0].sum() / side[:, 1].sum() for side in sides)))
    units = min(len(first), len(second))
    if units < _MIN_UNITS:
        return Interval(difference, None, None, units)
    rng = np.random.default_rng(0)
    drawn = []
    for side in sides:
        picked = side[rng.integers(len(side), size=(_RESAMPLES, len(side)))].sum(axis=1)
        # As if one more unit had been half right: units that are all alike do not prove that there are no others.
        drawn.append((picked[:, 0] + 0.5) / (picked[:, 1] + 1))
    low, high = np.quantile(drawn[0] - drawn[1], (0.025, 0.975))
    return Interval(difference, min(float(low), difference), max(float(high), difference), units)


def paired_gain(first: ArrayLike, second: ArrayLike) -> Interval:
    """Mean of ``first`` minus ``second``, one number per question, both in the same order."""
    differences = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    if differences.size == 0:
        raise ValueError("a gain needs at least one question")
    mean = float(differences.mean())
    if np.ptp(differences) == 0:
        return Interval(mean, mean, mean, int(differences.size))
    low, high = _bootstrapped(lambda own, axis: own.mean(axis=axis), differences)
    return Interval(mean, low, high, int(differences.size))


def _bootstrapped(statistic: Any, *data: Any) -> tuple[float, float]:
    from scipy.stats import bootstrap

    found = bootstrap(data, statistic, paired=True, method="percentile", n_resamples=_RESAMPLES, rng=0)
    return float(found.confidence_interval.low), float(found.confidence_interval.high)
