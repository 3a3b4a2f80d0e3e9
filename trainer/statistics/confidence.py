"""What a proposal's score means, once it is calibrated. Without numpy: the console reads it while it starts."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Label:
    """A proposal's score, and whether it turned out right. ``window_id`` is the hour that decided it."""

    window_id: str
    score: float
    is_right: bool


@dataclass(frozen=True, slots=True)
class Calibration:
    """What a score means. ``threshold``: the lowest score that is shown; None if nothing is."""

    scores: tuple[float, ...]
    shares: tuple[float, ...]
    threshold: float | None
    precision_low: float | None
    """What the precision above the threshold is at least, with the confidence that the tests left."""
    coverage: float
    """The share of the labels' scores that are above the threshold."""
    labels: int
    since: str
    """The oldest window that counted."""

    def confidence(self, score: float) -> float:
        """The share of proposals with such a score that were right: between two knots of the curve, on their line."""
        after = bisect_right(self.scores, score)
        if after in (0, len(self.scores)):
            return self.shares[0 if after == 0 else -1]
        (low, high), (first, last) = self.scores[after - 1 : after + 1], self.shares[after - 1 : after + 1]
        return first + (last - first) * (score - low) / (high - low)

    def shows(self, score: float) -> bool:
        return self.threshold is not None and score >= self.threshold
