"""The gate over a hundred comparisons each: policies of known skill, through the real trial and judge, and faster
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
from trainer.evidence import Look, Role, Ruling
from trainer.judge.outcome import OutcomeJudge
from trainer.promote.gate import Evidence, decide, evidence_of
from trainer.statistics.gain import (
    HARM,
    YEARLY_BUDGET,
    lower_end,
    power_for,
    rules_out_harm,
    shrunk_gain,
    spend,
)

COMPARISONS = 100
FIRST_LOOK = Look(1, spend(0.0))
PLAN = Plan(points_per_window=1, samples=2)


async def _rulings(candidate: float, incumbent: float, *, windows: int = 24) -> Counter[Ruling]:
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
        rulings[decide(evidence_of(evaluation), GateSettings(), FIRST_LOOK).ruling] += 1
    return rulings


async def test_the_incumbent_against_itself_is_promoted_in_at_most_five_percent() -> None:
    rulings = await _rulings(0.6, 0.6)
    assert rulings[Ruling.PROMOTE] <= 0.05 * COMPARISONS, rulings


async def test_a_clear_gain_is_promoted_nine_times_in_ten() -> None:
    rulings = await _rulings(0.95, 0.5, windows=40)
    assert rulings[Ruling.PROMOTE] >= 0.9 * COMPARISONS, rulings


async def test_a_worse_model_is_never_promoted() -> None:
    rulings = await _rulings(0.5, 0.8)
    assert rulings[Ruling.PROMOTE] == 0, rulings
    assert rulings[Ruling.REFUSE] > 0, rulings


def _promoted(differences: np.ndarray, look: Look = FIRST_LOOK) -> bool:
    return decide(Evidence(tuple(differences), 0.0, 0.0, 1.0, None), GateSettings(), look).ruling is Ruling.PROMOTE


def _drawn(family: str, windows: int, number: int, gain: float = 0.0) -> np.ndarray:
    """``number`` histories of differences between hours, true mean ``gain``."""
    chance = np.random.default_rng([7, windows])
    if family == "rare losses":
        return gain + np.where(chance.random((number, windows)) < 0.1, -0.45, 0.05)
    correlation = {"independent": 0.0, "AR(1) 0.3": 0.3, "AR(1) 0.5": 0.5}[family]
    noise = chance.normal(0, 0.25, (number, windows))
    for hour in range(1, windows):
        noise[:, hour] = correlation * noise[:, hour - 1] + np.sqrt(1 - correlation**2) * noise[:, hour]
    return gain + noise


FAMILIES = ["independent", "AR(1) 0.3", "AR(1) 0.5", "rare losses"]


@pytest.mark.parametrize("windows", [15, 25, 40])
@pytest.mark.parametrize("family", FAMILIES)
def test_an_equal_model_is_promoted_at_one_look_hardly_more_often_than_nominal(family: str, windows: int) -> None:
    """At most one and a half times 2.5 %, by the gain alone: the budget for harm is not needed for this."""
    drawn = _drawn(family, windows, 2_000)
    assert np.mean([lower_end(differences, 0.025) > 0 for differences in drawn]) <= 0.0375


@pytest.mark.parametrize("windows", [15, 40])
@pytest.mark.parametrize("differing", [1.0, 0.2, 0.05])
def test_equal_models_that_rarely_differ_are_not_promoted_either(windows: int, differing: float) -> None:
    """Near the end of training two checkpoints give the same reply in most windows: all the evidence is in a few."""
    chance = np.random.default_rng(7)
    drawn = chance.choice([-0.5, 0.5], (COMPARISONS, windows)) * (chance.random((COMPARISONS, windows)) < differing)
    assert sum(_promoted(differences) for differences in drawn) <= 0.05 * COMPARISONS


@pytest.mark.parametrize("family", FAMILIES)
def test_harm_in_a_year_of_weekly_looks_stays_in_its_budget(family: str) -> None:
    """Every week a candidate that is worse by 0.02: at most 5 % of the years may hand one out."""
    years, promoted, spent = 150, 0, 0.0
    drawn = _drawn(family, 40, years * 52, gain=-HARM).reshape(years, 52, 40)
    looks = []
    for _ in range(52):
        looks.append(Look(1, spend(spent)))
        spent += looks[-1].harm_chance
    assert spent < YEARLY_BUDGET
    for year in drawn:
        promoted += any(
            rules_out_harm(week, look.harm_chance) and _promoted(week, look)
            for week, look in zip(year, looks, strict=True)
        )
    assert promoted <= 0.05 * years


def test_it_can_say_yes() -> None:
    drawn = _drawn("independent", 40, COMPARISONS, gain=0.2)
    assert sum(_promoted(differences) for differences in drawn) >= 0.8 * COMPARISONS


@pytest.mark.parametrize("family", ["independent", "AR(1) 0.3", "rare losses"])
def test_it_can_say_yes_with_the_year_s_budget_spent(family: str) -> None:
    spent = 0.0
    for _ in range(52):
        spent += spend(spent)
    drawn = _drawn(family, 60, COMPARISONS, gain=0.3)
    assert sum(_promoted(differences, Look(1, spend(spent))) for differences in drawn) >= 0.8 * COMPARISONS


@pytest.mark.parametrize("windows", [15, 40])
def test_a_loss_of_the_same_size_never_is(windows: int) -> None:
    drawn = np.random.default_rng(9).normal(-0.2, 0.3, (COMPARISONS, windows))
    assert not any(_promoted(differences) for differences in drawn)


def test_the_reported_gain_is_corrected_for_having_been_selected() -> None:
    drawn = _drawn("independent", 40, 3_000, gain=0.08)
    passed = [one for one in drawn if lower_end(one, 0.025) > 0 and rules_out_harm(one, FIRST_LOOK.harm_chance)]
    naive = np.mean([one.mean() for one in passed])
    corrected = np.median([shrunk_gain(one, 0.0, FIRST_LOOK) for one in passed])
    assert naive > 0.12
    assert corrected == pytest.approx(0.08, abs=0.03)


def test_the_power_that_is_told_is_the_power_there_is() -> None:
    drawn = _drawn("independent", 40, 600, gain=0.15)
    told = np.median([power_for(one, 0.15, 0.0, FIRST_LOOK).chance for one in drawn])
    assert told == pytest.approx(np.mean([_promoted(one) for one in drawn]), abs=0.12)
