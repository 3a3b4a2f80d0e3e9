"""Two hundred canaries of known worth, each looked at every four hours for two weeks until somebody decides."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from trainer.promote.canary import MARGIN, CanaryRuling, CanaryWindow, CanaryWindows, decide
from trainer.statistics.intervals import MIN_WINDOWS

CANARIES = 200
WINDOWS = 14 * 24


def _rulings(worth: float) -> Counter[CanaryRuling]:
    """What became of canaries whose agents differ by ``worth`` standard deviations of a window."""
    drawn = np.random.default_rng(3).normal(worth, 1.0, (CANARIES, WINDOWS))
    return Counter(_first_ruling(differences.tolist()) for differences in drawn)


def _first_ruling(differences: list[float]) -> CanaryRuling:
    windows = tuple(CanaryWindow(f"window {number}", value, 0.0) for number, value in enumerate(differences))
    looks = (decide(CanaryWindows(windows[:seen], "m")).ruling for seen in range(MIN_WINDOWS, WINDOWS + 1, 4))
    return next((ruling for ruling in looks if ruling is not CanaryRuling.WAIT), CanaryRuling.WAIT)


@pytest.mark.parametrize("worth", [-MARGIN, -0.5])
def test_a_worse_canary_is_finished_in_at_most_five_percent_however_often_one_looks(worth: float) -> None:
    rulings = _rulings(worth)
    assert rulings[CanaryRuling.FINISH] <= 0.05 * CANARIES, rulings
    assert rulings[CanaryRuling.ROLL_BACK] >= 0.9 * CANARIES, rulings


def test_a_canary_that_does_as_well_is_finished_nine_times_in_ten_and_seldom_rolled_back() -> None:
    rulings = _rulings(0.0)
    assert rulings[CanaryRuling.FINISH] >= 0.9 * CANARIES, rulings
    assert rulings[CanaryRuling.ROLL_BACK] <= 0.05 * CANARIES, rulings
