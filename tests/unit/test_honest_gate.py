"""The gate over two hundred comparisons each: policies of known skill, through the real trial and judge, and faster
ones at the numbers of windows and the kinds of differences where a careless interval fails."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from tests.builders_evaluation import SkilledPolicy, UpOrDownReplay, make_checkpoint, up_or_down_windows
from trainer.config.training import GateSettings
from trainer.evaluate.blind_trial import compare_policies
from trainer.evaluate.comparison import TrialPlan as Plan
from trainer.evaluate.comparison import summarise
from trainer.evidence import Role, Ruling
from trainer.judge.outcome import OutcomeJudge
from trainer.promote.gate import Evidence, decide, evidence_of
from trainer.statistics.intervals import mean_interval

COMPARISONS = 200
PLAN = Plan(points_per_window=1, samples=2)


async def _rulings(candidate: float, incumbent: float, *, windows: int = 17) -> Counter[Ruling]:
    chance = random.Random(1)
    rulings: Counter[Ruling] = Counter()
    for trial in range(COMPARISONS):
        policies = {
            Role.CANDIDATE: SkilledPolicy(candidate, "candidate", chance=chance),
            Role.INCUMBENT: SkilledPolicy(incumbent, "incumbent", chance=chance),
        }
        judge = OutcomeJudge()
        held_out = up_or_down_windows(windows, seed=trial, agents=1)
        outcome = await compare_policies(held_out, policies, judge, PLAN, UpOrDownReplay())
        evaluation = summarise(
            outcome,
            policies,
            PLAN,
            judge,
            candidate=make_checkpoint(2).as_release(),
            incumbent=make_checkpoint(1).as_release(),
        )
        rulings[decide(evidence_of(evaluation), GateSettings()).ruling] += 1
    return rulings


async def test_the_incumbent_against_itself_is_promoted_in_at_most_five_percent() -> None:
    rulings = await _rulings(0.6, 0.6)
    assert rulings[Ruling.PROMOTE] <= 0.05 * COMPARISONS, rulings


async def test_a_clear_gain_is_promoted_nine_times_in_ten() -> None:
    rulings = await _rulings(0.95, 0.5)
    assert rulings[Ruling.PROMOTE] >= 0.9 * COMPARISONS, rulings


async def test_a_worse_model_is_never_promoted() -> None:
    rulings = await _rulings(0.5, 0.8)
    assert rulings[Ruling.PROMOTE] == 0, rulings
    assert rulings[Ruling.REFUSE] > 0, rulings


def _promoted(differences: np.ndarray, seed: int) -> bool:
    gain = mean_interval(differences, seed=seed)
    return decide(Evidence(gain, 0.0, 0.0, 1.0, None), GateSettings()).ruling is Ruling.PROMOTE


@pytest.mark.parametrize("windows", [6, 15, 40])
@pytest.mark.parametrize("differing", [1.0, 0.2, 0.05])
def test_equal_models_that_rarely_differ_are_not_promoted_either(windows: int, differing: float) -> None:
    """Near the end of training two checkpoints give the same reply in most windows: all the evidence is in a few."""
    chance = np.random.default_rng(7)
    drawn = chance.choice([-0.5, 0.5], (COMPARISONS, windows)) * (chance.random((COMPARISONS, windows)) < differing)
    promoted = sum(_promoted(differences, trial) for trial, differences in enumerate(drawn))
    assert promoted <= 0.05 * COMPARISONS


@pytest.mark.parametrize(("windows", "gain"), [(15, 0.35), (40, 0.2)])
def test_a_gain_of_twice_what_the_windows_can_tell_is_promoted(windows: int, gain: float) -> None:
    drawn = np.random.default_rng(8).normal(gain, 0.3, (COMPARISONS, windows))
    assert sum(_promoted(differences, trial) for trial, differences in enumerate(drawn)) >= 0.9 * COMPARISONS


@pytest.mark.parametrize("windows", [15, 40])
def test_a_loss_of_the_same_size_never_is(windows: int) -> None:
    drawn = np.random.default_rng(9).normal(-0.2, 0.3, (COMPARISONS, windows))
    assert not any(_promoted(differences, trial) for trial, differences in enumerate(drawn))
