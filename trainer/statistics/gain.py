"""Whether a release is better than the one in use, from one difference per window, in the order of the hours.

Three things make a plain interval too narrow here, and each has its answer:

- Neighbouring hours are related. The number of windows is replaced by an effective one, from the correlation of
  neighbours (corrected for its bias in short series, and never taken for negative).
- Large losses can be rare: fifteen good hours may hide one in ten that loses everything. One loss that was not seen
  (a phantom) is added to the windows before a lower end is computed, and a gain before an upper end.
- Somebody looks every week. The chance of handing out a worse model is spent look by look from a yearly budget, so the
  sum over any year stays below it, whatever was looked at and why; see ``spend``.

``benchmarks/gate.py`` measures how often each of them fails.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainer.evidence import Interval, Look
from trainer.statistics.intervals import CONFIDENCE, POWER, Floats, effective_windows, student_quantile

MIN_WINDOWS_TO_RULE = 15
"""Below this one rare loss that was not seen could be the truth."""

PHANTOM = 0.5
"""Size of the loss that is added before a gain is believed."""

HARM_PHANTOM = 0.75
"""Size of the loss that is added before harm is ruled out: at its small error rates rarer losses count."""

HARM = 0.02
"""A release that is worse by this much is harmful."""

YEARLY_BUDGET = 0.05
"""The chance in any year that a harmful release is handed out."""

SHARE_OF_REST = 26
"""Each look spends this part of what is left of the budget: many looks each get less, and none gets nothing."""

_TAIL = (1 - CONFIDENCE) / 2


def lower_end(per_window: ArrayLike, level: float, phantom: float = PHANTOM) -> float:
    """A bound that the true mean gain is below with a chance of at most ``level``."""
    mean, error, degrees = _with_phantom(per_window, -phantom)
    return mean - student_quantile(1 - level, degrees) * error


def gain_interval(per_window: ArrayLike, level: float = _TAIL) -> Interval:
    """The mean gain with an interval that has ``level`` on each side; ends are None below ``MIN_WINDOWS_TO_RULE``."""
    values = np.asarray(per_window, dtype=np.float64)
    mean, count = float(values.mean()), int(values.size)
    if count < MIN_WINDOWS_TO_RULE:
        return Interval(mean=mean, low=None, high=None, windows=count)
    low, high = lower_end(values, level), -lower_end(-values, level)
    return Interval(mean=mean, low=max(-1.0, low), high=min(1.0, high), windows=count)


def spend(spent_in_a_year: float) -> float:
    """The part of the yearly budget that the next look may spend: its chance of missing harm."""
    return max(0.0, YEARLY_BUDGET - spent_in_a_year) / SHARE_OF_REST


def rules_out_harm(per_window: ArrayLike, chance: float) -> bool:
    """Whether these windows show, with an error of at most ``chance``, that the release is not harmful."""
    return chance > 0 and lower_end(per_window, chance, HARM_PHANTOM) > -HARM


@dataclass(frozen=True, slots=True)
class Power:
    """What the gate could have seen with these windows."""

    gain: float
    chance: float
    """The chance of a promotion if ``gain`` were the true gain."""
    windows: int | None
    """Windows that would raise the chance to 80 %; None if no practical number would."""


def power_for(per_window: ArrayLike, gain: float, min_gain: float, look: Look) -> Power:
    """The gate's chance to promote a release whose true gain is ``gain``, with the spread that these windows have."""
    values = np.asarray(per_window, dtype=np.float64)
    sizes = np.unique(np.geomspace(values.size, max(_MAX_WINDOWS, values.size), 100).astype(int))
    chances = _chances_to_promote(values, sizes, gain, min_gain, look)
    enough = np.flatnonzero(chances >= POWER)
    return Power(gain, float(chances[0]), int(sizes[enough[0]]) if enough.size else None)


_MAX_WINDOWS = 10_000


def _chances_to_promote(values: Floats, counts: NDArray[np.int64], gain: float, min_gain: float, look: Look) -> Floats:
    """For each number of windows, by the normal approximation; the windows vary, the phantom does not."""
    from scipy.special import ndtr, stdtrit

    if look.harm_chance <= 0:
        return np.zeros(counts.size)
    variance, totals = float(values.var(ddof=1)), counts + 1
    share = effective_windows(values, _MAX_WINDOWS) / _MAX_WINDOWS
    effective = np.maximum(totals * share, 2.0)
    spread = np.sqrt(variance / effective) * counts / totals
    found = np.ones(counts.size)
    for floor, level, phantom in ((min_gain, look.level, PHANTOM), (-HARM, look.harm_chance, HARM_PHANTOM)):
        mean = (gain * counts - phantom) / totals
        seen_variance = (variance * (counts - 1) + (gain + phantom) ** 2 * counts / totals) / counts
        margin = mean - floor - stdtrit(effective - 1, 1 - level) * np.sqrt(seen_variance / effective)
        passes = ndtr(margin / spread) if variance > 0 else (margin > 0).astype(float)
        found = np.minimum(found, passes)
    return found


def shrunk_gain(per_window: ArrayLike, min_gain: float, look: Look) -> float:
    """The gain to report once it passed the gate: corrected for having been selected for being large.

    The median-unbiased estimate given that the mean was above what the gate requires; never above the mean itself,
    and never below the lower end of the interval.
    """
    from scipy.optimize import brentq
    from scipy.stats import norm

    values = np.asarray(per_window, dtype=np.float64)
    mean = float(values.mean())
    error = float(values.std(ddof=1)) / math.sqrt(effective_windows(values))
    low = lower_end(values, look.level)
    needed = mean - max(0.0, min(low - min_gain, _slack_to_harm(values, look.harm_chance)))
    if error == 0:
        return mean

    def excess(true: float) -> float:
        """Log-probability, given selection, of a mean above the one seen, less that of one half."""
        seen, required = norm.logsf(mean, true, error), norm.logsf(needed, true, error)
        return float(seen - required - math.log(0.5))

    if excess(low) >= 0:
        return low
    return float(brentq(excess, low, mean)) if excess(mean) > 0 else mean


def _slack_to_harm(values: Floats, chance: float) -> float:
    return lower_end(values, chance, HARM_PHANTOM) + HARM if chance > 0 else 0.0


def _with_phantom(per_window: ArrayLike, phantom: float) -> tuple[float, float, float]:
    """Mean, standard error and degrees of freedom of the windows and one more."""
    values = np.asarray(per_window, dtype=np.float64)
    seen = np.append(values, phantom)
    effective = effective_windows(values, seen.size)
    return float(seen.mean()), float(seen.std(ddof=1)) / math.sqrt(effective), max(effective - 1, 1.0)
