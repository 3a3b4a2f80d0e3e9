"""How certain a mean over windows is: intervals that respect the order of hours, windows needed, rank correlation.

Windows are the unit of everything here. Two decisions of the same hour share a market and are not two pieces of
evidence, so callers average within a window first and pass one number per window, in the order of the hours. Pure: the
same numbers give the same interval on any machine. scipy is imported where it is used, since that takes a second.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainer.evidence import Interval

CONFIDENCE = 0.95
MIN_WINDOWS = 6
"""Below this not even a gain in every single window is significant: a fair coin gives five heads in 3.1 % of tries."""

POWER = 0.8
MAX_WINDOWS = 100_000
"""A difference that needs more windows than this will never be detected in practice."""

_EVEN = NormalDist()

Floats = NDArray[np.float64]


Bounds = tuple[float, float]
SHARE: Bounds = (0.0, 1.0)
DIFFERENCE_OF_SHARES: Bounds = (-1.0, 1.0)
ANY: Bounds = (-math.inf, math.inf)


def mean_interval(per_window: ArrayLike, *, bounds: Bounds = ANY) -> Interval:
    """The mean of one number per window, in the order of the hours, and its 95 % confidence interval.

    Student's t with the effective number of windows: neighbouring hours are related, and a plain interval over 40 of
    them is too narrow. ``bounds`` is the range of possible means. What the gate decides on has an interval of its own,
    which also allows for rare losses: see ``gain``.
    """
    values = np.asarray(per_window, dtype=np.float64)
    count = int(values.size)
    if count == 0:
        raise ValueError("a mean needs at least one window")
    mean = float(values.mean())
    if count < MIN_WINDOWS:
        return Interval(mean=mean, low=None, high=None, windows=count)
    spread = float(values.std(ddof=1))
    if spread <= _ROUNDING * max(1.0, abs(mean)):
        return Interval(mean=mean, low=mean, high=mean, windows=count)
    effective = effective_windows(values)
    half = student_quantile((1 + CONFIDENCE) / 2, effective - 1) * spread / math.sqrt(effective)
    return Interval(mean=mean, low=max(bounds[0], mean - half), high=min(bounds[1], mean + half), windows=count)


_ROUNDING = 1e-12
_MAX_CORRELATION = 0.9
_MIN_EFFECTIVE = 2.0


def effective_windows(values: Floats, count: int | None = None) -> float:
    """How many independent windows ``count`` windows (default: as many as ``values``) with this correlation count for.

    The correlation of neighbours is that of an AR(1) series, corrected for its bias in short ones (Kendall's
    correction) and never taken for negative.
    """
    count = values.size if count is None else count
    around = values - values.mean()
    total = float(around @ around)
    # Equal windows differ by rounding errors, which are all alike: that is no correlation.
    varies = float(np.ptp(values)) > _ROUNDING * max(1.0, float(np.abs(values).max()))
    neighbours = float(around[1:] @ around[:-1]) / total if varies else 0.0
    corrected = neighbours + (1 + 3 * min(max(neighbours, 0.0), 1.0)) / max(values.size, 1)
    correlation = min(max(corrected, 0.0), _MAX_CORRELATION)
    return max(_MIN_EFFECTIVE, count * (1 - correlation) / (1 + correlation))


def student_quantile(probability: float, degrees: float) -> float:
    """The value that Student's t with ``degrees`` of freedom stays below with ``probability``."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, probability))


def windows_needed(per_window: ArrayLike, threshold: float = 0.0) -> int | None:
    """The windows needed to distinguish a difference of this size and spread from ``threshold`` with 80 % power.

    None if the mean is on the threshold, or so near that no realistic number of windows would suffice.
    """
    values = np.asarray(per_window, dtype=np.float64)
    if values.size < 2:
        return None
    distance = abs(float(values.mean()) - threshold)
    spread = float(values.std(ddof=1))
    if distance <= _ROUNDING or not math.isfinite(distance):
        return None
    factor = _EVEN.inv_cdf((1 + CONFIDENCE) / 2) + _EVEN.inv_cdf(POWER)
    needed = max(MIN_WINDOWS, math.ceil((factor * spread / distance) ** 2))
    return needed if needed <= MAX_WINDOWS else None


def spearman(first: ArrayLike, second: ArrayLike) -> float | None:
    """Rank correlation; None if there are fewer than three pairs or one side never varies."""
    from scipy.stats import spearmanr

    left, right = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if left.size != right.size:
        raise ValueError("spearman needs pairs: the two sides differ in length")
    if left.size < 3 or np.ptp(left) == 0 or np.ptp(right) == 0:
        return None
    return float(spearmanr(left, right).statistic)


def by_window(windows: Sequence[str], values: Sequence[float]) -> dict[str, float]:
    """One number per window: the mean of its values, windows in order of first appearance."""
    sums: dict[str, list[float]] = {}
    for window, value in zip(windows, values, strict=True):
        sums.setdefault(window, []).append(value)
    return {window: math.fsum(own) / len(own) for window, own in sums.items()}
