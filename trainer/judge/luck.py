"""Two passes: from a score without the outcome and one with it to the score that is trained. Pure.

Luck is the difference between the two. What is trained is the score without the outcome, corrected by what hindsight
shows about the reasons. A judge that is impressed by results will find that they speak for the reasons, too: so among
the members whose decisions ended alike, won or lost, only the differences between their corrections count. What the
judge adds to all winners of a group alike is about the result, and is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean


def corrected(blind: Sequence[float], corrections: Sequence[float], sides: Sequence[int | None]) -> list[float]:
    """The scores that are trained, in the order of the members."""
    typical = {
        side: fmean(own for own, its in zip(corrections, sides, strict=True) if its == side) for side in {*sides}
    }
    return [
        min(1.0, max(0.0, score + own - typical[side]))
        for score, own, side in zip(blind, corrections, sides, strict=True)
    ]
