"""Error bars of verdicts: what a group is worth, which spread counts, and how large a step is then."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest

from data_bridge.quality import Reason
from tests.builders_training import judged, make_batch, make_trainee, replying
from tests.unit.test_art_converter import FixedScorer
from trainer.train.backends.prepare import prepare
from trainer.train.selection import trust, why_no_signal
from trainer.types import JudgedGroup, PreparedBatch


def group(scores: Sequence[float], uncertainty: float, name: str = "group-1") -> JudgedGroup:
    members = [
        replying(f"agent-{place}", f"{reply} ACME", prompt=name) for place, reply in enumerate(("BUY", "SELL", "WAIT"))
    ]
    made = judged(members, scores, group_id=name)
    return replace(made, verdicts=tuple(replace(one, uncertainty=uncertainty) for one in made.verdicts))


async def prepared(*groups: JudgedGroup, share: float = 1.0, **settings: Any) -> PreparedBatch:
    batch = replace(make_batch(*groups), share=share)
    return await prepare(batch, make_trainee(min_spread=0.02, **settings), FixedScorer())


def test_a_group_is_worth_its_signal_over_signal_and_noise() -> None:
    assert trust([0.0, 1.0], [0.0, 0.0]) == 1.0
    assert trust([0.0, 1.0], [0.5, 0.5]) == pytest.approx(1 - 0.25 / 0.5)  # the variance 0.5 is half noise
    assert trust([0.4, 0.6], [0.5, 0.5]) == 0.0
    assert trust([0.5, 0.5], [0.1, 0.1]) == 0.0


def test_over_many_groups_the_worth_is_the_share_of_the_variance_that_is_signal() -> None:
    """Two orders, each the true score plus noise: what is estimated of large groups is what was planted."""
    chance, found = random.Random(3), []
    for _ in range(60):
        truth = [chance.gauss(0.5, 0.2) for _ in range(200)]
        orders = [[one + chance.gauss(0, 0.2) for one in truth] for _ in range(2)]
        scores = [(one + other) / 2 for one, other in zip(*orders, strict=True)]
        found.append(trust(scores, [abs(one - other) / 2 for one, other in zip(*orders, strict=True)]))
    assert fmean(found) == pytest.approx(0.04 / (0.04 + 0.02), abs=0.02)


@pytest.mark.parametrize(
    ("scores", "uncertainty", "reason"),
    [
        ((0.5, 0.51, 0.5), 0.0, Reason.NO_SPREAD),
        ((0.5, 0.5, 0.5), 0.3, Reason.NO_SPREAD),
        ((0.4, 0.5, 0.6), 0.15, Reason.WITHIN_NOISE),
        ((0.4, 0.5, 0.6), 0.0, None),
        ((0.0, 0.5, 1.0), 0.15, None),
    ],
)
async def test_the_least_spread_that_counts_is_what_the_judge_differs_with_itself(
    scores: Sequence[float], uncertainty: float, reason: Reason | None
) -> None:
    one = group(scores, uncertainty)
    missing = why_no_signal(one.scores, one.uncertainties, 0.02)
    assert (missing and missing[0]) == reason
    reasons = {exclusion.reason for exclusion in (await prepared(one)).exclusions}
    assert (reason in reasons) is (reason is not None)


async def test_a_doubtful_group_counts_less_beside_a_sure_one_and_makes_the_step_smaller() -> None:
    sure, doubtful = group((0.0, 0.5, 1.0), 0.0, "sure"), group((0.0, 0.5, 1.0), 0.35, "doubtful")
    worth = 1 - 0.35**2 / 0.25
    both = await prepared(sure, doubtful)
    rewards = [[one.reward for one in made.trajectories] for made in both.groups]
    assert rewards[1] == pytest.approx([worth * one for one in rewards[0]])
    assert both.pace == both.metrics["pace"] == pytest.approx((1 + worth) / 2)
    assert (await prepared(sure)).pace == 1.0


async def test_on_the_absolute_scale_small_differences_make_a_small_step() -> None:
    clear, close = group((0.0, 0.5, 1.0), 0.0), group((0.45, 0.5, 0.55), 0.0)
    assert (await prepared(close)).pace == 1.0
    assert (await prepared(clear, advantage_scale="absolute")).pace == 1.0
    small = (await prepared(close, advantage_scale="absolute")).pace
    assert small == pytest.approx((0.05 + 0.05) / 3 / 0.25)


async def test_a_batch_of_few_groups_is_trained_at_its_share_of_the_learning_rate() -> None:
    assert (await prepared(group((0.0, 0.5, 1.0), 0.0), share=0.25)).pace == 0.25
