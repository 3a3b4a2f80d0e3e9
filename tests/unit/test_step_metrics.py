"""Metrics of a step against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from data_bridge.authorship import Lineage
from tests.builders import make_call, make_step, make_trajectory
from tests.builders_ledger import make_judged
from trainer.train.selection import advantages as advantages_of
from trainer.train.stage import histogram, sampling_ages
from trainer.train.stage import metrics_of_batch as of_batch


def test_advantages_equal_the_table_worked_out_by_hand() -> None:
    assert advantages_of([0.0, 0.5, 1.0], scale=False) == pytest.approx([-0.5, 0.0, 0.5])
    assert advantages_of([0.0, 0.5, 1.0], scale=True) == pytest.approx([-1.224745, 0.0, 1.224745], abs=1e-4)
    assert advantages_of([0.2, 0.2], scale=True) == [0.0, 0.0]


def test_the_histogram_counts_every_value_once() -> None:
    made = histogram([-0.9, -0.3, 0.0, 0.0, 0.3, 2.0])
    assert sum(made["counts"]) == 6
    assert made["counts"] == [1, 1, 0, 0, 2, 0, 0, 1, 1]


def test_a_batch_is_summed_up() -> None:
    metrics = of_batch([make_judged((0.0, 1.0)), make_judged((0.5, 0.5, 0.8))], Lineage("hindsight"), 0, scale=False)
    assert metrics["reward"] == pytest.approx((0 + 1 + 0.5 + 0.5 + 0.8) / 5)
    assert metrics["reward_spread"] == pytest.approx((1.0 + 0.3) / 2)
    assert metrics["judge_order_spread"] == pytest.approx(0.1)
    assert (metrics["groups"], metrics["trajectories"]) == (2, 5)
    assert metrics["sampled_steps_ago"] is None


def test_the_age_of_the_policy_that_played_is_read_off_the_log() -> None:
    authors = ("hindsight@step3", "wandb-artifact:///team/project/hindsight:step5", "other@step1", "hindsight")
    calls = [make_call(model=author) for author in authors]
    judged = make_judged((0.0, 1.0))
    group = replace(judged.group, trajectories=(make_trajectory(steps=[make_step(calls=calls)]),))
    assert sampling_ages([replace(judged, group=group)], Lineage("hindsight"), 6) == [3, 1]
