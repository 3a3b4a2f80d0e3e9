"""Canaries of known worth, and what becomes of them. ``benchmarks/canary.py`` is the long version."""

from __future__ import annotations

import numpy as np
import pytest

from tests.builders_canary import played, settled, shares
from trainer.promote.canary import LOOKS, MARGIN, CanaryEvidence, CanaryRuling, decide
from trainer.statistics.units import MIN_OTHERS, critical_values, trimmed

TRIALS = 300
FINISH, ROLL_BACK, WAIT = CanaryRuling.FINISH, CanaryRuling.ROLL_BACK, CanaryRuling.WAIT


@pytest.mark.parametrize("effects", [0.0, 0.05, 0.1])
def test_an_equal_model_is_seldom_rolled_back_and_a_worse_one_seldom_finished_whoever_was_chosen(
    effects: float,
) -> None:
    equal, worse = shares(TRIALS, 1, effects=effects), shares(TRIALS, 2, effects=effects, worth=-MARGIN)
    assert equal[ROLL_BACK] <= 0.05, equal
    assert worse[FINISH] <= 0.05, worse
    assert min(equal[FINISH] + equal[ROLL_BACK], worse[FINISH] + worse[ROLL_BACK]) >= 0.8, (equal, worse)


def test_a_better_model_is_finished_and_a_disaster_is_rolled_back_within_a_day() -> None:
    assert shares(100, 3, worth=MARGIN)[FINISH] == 1
    rng = np.random.default_rng(4)
    assert {settled(played(rng, worth=-0.6, windows=24)) for _ in range(50)} == {(ROLL_BACK, LOOKS[0][0])}


def test_agents_that_change_by_themselves_are_not_the_canarys_doing() -> None:
    """Windows as units would see thousands of hours of the same two agents, and be certain."""
    equal, worse = shares(200, 5, drift=0.05), shares(200, 6, drift=0.05, worth=-MARGIN)
    assert equal[ROLL_BACK] <= 0.05, equal
    assert worse[FINISH] <= 0.05, worse


def test_what_was_ruled_stays_ruled_however_often_and_late_one_looks() -> None:
    rng = np.random.default_rng(7)
    for worth in (0.0, -MARGIN):
        evidence = played(rng, worth=worth)
        looks = [CanaryEvidence(evidence.changes[:, :number], evidence.is_canary) for number in range(0, 606, 6)]
        rulings = [decide(look).ruling for look in looks]
        first = next((place for place, ruling in enumerate(rulings) if ruling is not WAIT), len(rulings))
        assert len(set(rulings[first:])) <= 1
        assert set(rulings[:first]) == {WAIT}


def test_critical_values_keep_the_chance_that_each_look_may_add() -> None:
    rng, trials = np.random.default_rng(8), 4000
    values = critical_values(2, 18, LOOKS)
    sums, crossed, before = np.zeros((trials, 20)), np.zeros(trials, dtype=bool), 0
    for (windows, _), value in zip(LOOKS, values, strict=True):
        sums += rng.normal(0, np.sqrt(windows - before), sums.shape)
        before = windows
        centre, spread = trimmed(sums[:, 2:])
        crossed |= (sums[:, :2].mean(axis=1) - centre) / spread > value
    assert 0.04 < crossed.mean() < 0.06


def test_one_agent_moves_the_centre_by_no_more_than_its_neighbour_and_hardly_the_spread() -> None:
    others = np.random.default_rng(9).normal(0, 1, 18)
    centre, spread = trimmed(others)
    for lie in (-1e6, 1e6):
        moved, widened = trimmed(np.append(others, lie))
        assert abs(moved - centre) < 0.2 * spread
        assert 0.8 * spread < widened < 1.4 * spread


def test_too_few_others_are_refused() -> None:
    with pytest.raises(ValueError, match=f"4 agents to compare with, of at least {MIN_OTHERS}"):
        trimmed(np.arange(MIN_OTHERS - 1))
