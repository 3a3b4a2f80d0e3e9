"""``--stop-on``: thresholds are read strictly, and a metric that is not a number has crossed them."""

from __future__ import annotations

import math

import pytest

from data_bridge.errors import ConfigurationError
from trainer.config.training import TrainingSettings
from trainer.train.thresholds import first_crossed, parse_thresholds


def test_the_default_thresholds_can_be_read() -> None:
    assert [str(one) for one in parse_thresholds(TrainingSettings().stop_on)] == ["entropy<0.01", "kl>5"]


@pytest.mark.parametrize(
    ("metrics", "crossed"),
    [
        ({"entropy": 0.5, "kl": 0.1}, None),
        ({"entropy": 0.001, "kl": 0.1}, "entropy<0.01"),
        ({"entropy": 0.5, "kl": 7.0}, "kl>5"),
        ({"entropy": math.nan}, "entropy<0.01"),
        ({"kl": math.inf}, "kl>5"),
        ({}, None),
    ],
)
def test_the_first_crossed_threshold_is_named(metrics: dict[str, float], crossed: str | None) -> None:
    found = first_crossed(parse_thresholds(["entropy<0.01", "kl>5"]), metrics)
    assert (None if found is None else str(found)) == crossed


@pytest.mark.parametrize("rule", ["entropy", "entropy=1", "<3", "kl>five", "kl>1.2.3"])
def test_what_cannot_be_read_is_refused(rule: str) -> None:
    with pytest.raises(ConfigurationError, match=r"entropy<0\.01"):
        parse_thresholds([rule])


@pytest.mark.parametrize(("rule", "hint"), [("entrpy<0.01", "did you mean entropy"), ("zzz>1", "the metrics are")])
def test_a_metric_that_no_step_reports_is_refused(rule: str, hint: str) -> None:
    with pytest.raises(ConfigurationError, match=hint):
        parse_thresholds([rule])
    assert parse_thresholds(["loss/probs_corr<0.5"])[0].metric == "loss/probs_corr"


def test_off_means_no_threshold() -> None:
    assert parse_thresholds(["off"]) == ()
