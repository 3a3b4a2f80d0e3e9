"""The gate's rulings, one by one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from trainer.config.training import GateSettings
from trainer.evidence import Interval, Ruling
from trainer.promote.gate import Evidence, decide

BETTER = Evidence(
    gain=Interval(mean=0.2, low=0.1, high=0.3, windows=20),
    error_rate=0.05,
    blocked_rate=0.0,
    length_ratio=1.0,
    kl_from_base=0.4,
)


def _gain(low: float | None, high: float | None, windows: int = 20) -> Evidence:
    return replace(BETTER, gain=Interval(mean=0.0, low=low, high=high, windows=windows), windows_needed=77)


def test_a_gain_whose_low_end_is_above_the_wanted_one_is_promoted() -> None:
    assert decide(BETTER, GateSettings()).ruling is Ruling.PROMOTE


def test_the_low_end_must_be_above_the_wanted_gain_and_not_on_it() -> None:
    assert decide(_gain(0.1, 0.3), GateSettings(min_gain=0.1)).ruling is Ruling.UNDECIDED
    assert decide(_gain(0.1, 0.3), GateSettings(min_gain=0.09)).ruling is Ruling.PROMOTE


def test_a_model_that_cannot_reach_the_wanted_gain_is_refused() -> None:
    assert decide(_gain(-0.2, 0.05), GateSettings(min_gain=0.05)).ruling is Ruling.REFUSE
    assert decide(_gain(0.0, 0.0), GateSettings()).ruling is Ruling.REFUSE


def test_an_interval_around_the_wanted_gain_is_undecided_and_says_what_would_decide() -> None:
    decision = decide(_gain(-0.1, 0.2), GateSettings())
    assert decision.ruling is Ruling.UNDECIDED
    assert "77 windows" in decision.sentence


def test_too_few_windows_never_decide() -> None:
    decision = decide(_gain(None, None, windows=3), GateSettings())
    assert decision.ruling is Ruling.UNDECIDED
    assert "3 held-out windows" in decision.sentence


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("error_rate", 0.3, "error rate"),
        ("blocked_rate", 0.2, "safety blocks"),
        ("length_ratio", 2.0, "reply length"),
        ("kl_from_base", 3.0, "KL"),
        ("error_rate", math.nan, "error rate"),
        ("kl_from_base", math.nan, "KL"),
    ],
)
def test_no_gain_buys_a_broken_guard_off(field: str, value: float, named: str) -> None:
    change: dict[str, Any] = {field: value}
    decision = decide(replace(BETTER, **change), GateSettings())
    assert decision.ruling is Ruling.REFUSE
    assert named in decision.sentence


def test_a_guard_that_could_not_be_measured_does_not_refuse_and_is_named() -> None:
    decision = decide(replace(BETTER, kl_from_base=None, blocked_rate=None), GateSettings())
    assert decision.ruling is Ruling.PROMOTE
    assert decision.reasons[-1] == "not measured: safety blocks, KL from the base model"
    assert "not measured" not in decide(BETTER, GateSettings()).sentence


def test_every_broken_guard_is_named() -> None:
    assert len(decide(replace(BETTER, error_rate=0.9, blocked_rate=0.9), GateSettings()).reasons) == 2
