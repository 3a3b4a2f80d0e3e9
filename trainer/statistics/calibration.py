"""From a score to the share of proposals that were right there, and the lowest score at which enough of them were.

The curve is an isotonic regression. The threshold comes from tests of "right less often than wanted", one for each
share of the proposals that would be shown: in a fixed order, each only if the one before was rejected, from two starts
with half of the allowed error each (Learn then Test, arXiv 2110.01052). The order depends on scores and never on what
was right, so the wanted precision holds in at least ``CONFIDENCE`` of calibrations, whatever the model and the scores.
Labels are one per window, as all over the gate: two proposals in one hour share what happened.

scipy's ``isotonic_regression`` and exact binomial bound do the work; mapie and scikit-learn would bring a second copy
of both and nothing else. scipy is imported where it is used, since that takes a second.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trainer.statistics.confidence import Calibration, Label

CONFIDENCE = 0.95
MIN_LABELS = 30
"""Below this there is no curve: a share of so few says nothing."""
STARTS = (0.5, 0.2)
"""The shares of the proposals, those with the highest scores, at which the tests begin."""
STEP = 0.1

_BLOCK = 30
"""Labels that a level of the curve rests on, at least: the ends of an isotonic fit are otherwise of one or two."""
_RECENT = 24
"""The shortest recent past that can be told from what was before: a day of hours."""
_CHANGE = 1e-3
"""How unlikely a difference between the two must be by chance to forget what was before."""
_BINS = 10

Floats = NDArray[np.float64]


def calibrate(labels: Sequence[Label], target: float) -> Calibration | None:
    """The calibration by ``labels``, one per window, of which those before a change do not count. None: too few."""
    known = after_change(sorted(labels, key=lambda one: one.window_id))
    if len(known) < MIN_LABELS:
        return None
    scores = np.array([one.score for one in known])
    right = np.array([one.is_right for one in known], dtype=np.float64)
    knots, shares = _curve(scores, right)
    threshold, low = _threshold(scores, right, target)
    coverage = 0.0 if threshold is None else float(np.mean(scores >= threshold))
    return Calibration(
        tuple(knots.tolist()), tuple(shares.tolist()), threshold, low, coverage, len(known), known[0].window_id
    )


def calibration_error(confidences: Sequence[float], right: Sequence[bool]) -> float:
    """The mean distance between what was claimed and what came, over ten bins with as many proposals each."""
    claimed, came = np.asarray(confidences, dtype=np.float64), np.asarray(right, dtype=np.float64)
    order = np.argsort(claimed, kind="stable")
    bins = [part for part in np.array_split(order, _BINS) if part.size]
    return float(sum(part.size * abs(claimed[part].mean() - came[part].mean()) for part in bins) / claimed.size)


def after_change(labels: Sequence[Label]) -> Sequence[Label]:
    """``labels`` (the oldest first) since the last change of how right the scores are.

    What a recent past of any length got right beyond the curve of all is compared with the rest; the most striking
    difference counts if chance makes one as large at any of the splits in less than ``_CHANGE``.
    """
    left = list(labels)
    while len(left) >= 2 * _RECENT:
        split = _change(left)
        if split is None:
            break
        left = left[split:]
    return left


def _change(labels: Sequence[Label]) -> int | None:
    from scipy.stats import norm

    scores = np.array([one.score for one in labels])
    right = np.array([one.is_right for one in labels], dtype=np.float64)
    knots, shares = _curve(scores, right)
    expected = np.clip(np.interp(scores, knots, shares), 0.02, 0.98)
    surplus, noise = np.cumsum(right - expected), np.cumsum(expected * (1 - expected))
    splits = np.arange(_RECENT, len(labels) - _RECENT + 1)
    before, after = splits, len(labels) - splits
    first, total = surplus[splits - 1], surplus[-1]
    spread = np.sqrt(noise[splits - 1] / before**2 + (noise[-1] - noise[splits - 1]) / after**2)
    striking = np.abs(first / before - (total - first) / after) / spread
    best = int(np.argmax(striking))
    return int(splits[best]) if striking[best] > norm.isf(_CHANGE / 2 / len(splits)) else None


def _curve(scores: Floats, right: Floats) -> tuple[Floats, Floats]:
    """Knots of the isotonic curve: the mean score and the share of each level, none with fewer than ``_BLOCK``."""
    from scipy.optimize import isotonic_regression

    order = np.argsort(scores, kind="stable")
    ordered, hits = scores[order], right[order]
    blocks = [part for part in np.array_split(np.arange(ordered.size), max(1, ordered.size // _BLOCK)) if part.size]
    sizes = np.array([part.size for part in blocks], dtype=np.float64)
    means = np.array([hits[part].mean() for part in blocks])
    fitted = isotonic_regression(means, weights=sizes).x
    return np.array([ordered[part].mean() for part in blocks]), np.asarray(fitted, dtype=np.float64)


def _threshold(scores: Floats, right: Floats, target: float) -> tuple[float | None, float | None]:
    """The lowest score whose precision passed its test, and the precision's lower bound."""
    ordered = np.sort(scores)[::-1]
    found: tuple[float | None, float | None] = (None, None)
    level = (1 - CONFIDENCE) / len(STARTS)
    for start in STARTS:
        for share in np.arange(start, 1 + STEP / 2, STEP):
            place = min(ordered.size, math.ceil(share * ordered.size)) - 1
            shown = scores >= ordered[place]
            low = _lower_bound(int(right[shown].sum()), int(shown.sum()), level)
            if low < target:
                break
            if found[0] is None or ordered[place] < found[0]:
                found = (float(ordered[place]), low)
    return found


def _lower_bound(hits: int, number: int, level: float) -> float:
    """Clopper and Pearson's: the share is at least this in all but ``level`` of samples."""
    from scipy.stats import binomtest

    found = binomtest(hits, number, alternative="greater").proportion_ci(confidence_level=1 - level, method="exact")
    return float(found.low)
