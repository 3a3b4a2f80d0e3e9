"""The gate's rulings, one by one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from data_bridge.window_ids import windows_from
from tests.builders_evaluation import make_evaluation
from trainer.config.training import GateSettings
from trainer.evidence import Evaluation, GateDecision, Look, Narrowing, Role, Ruling, WindowFigures
from trainer.promote.gate import Evidence, decide, evidence_of

LOOK = Look(1, 0.002)
SPREAD = tuple(0.1 * math.sin(1.7 * hour) for hour in range(40))
BETTER = Evidence(
    differences=tuple(0.3 + noise for noise in SPREAD),
    error_rate=0.05,
    blocked_rate=0.0,
    length_ratio=1.0,
    kl_from_base=0.4,
    narrowing=Narrowing("unseen tickers", 160, candidate=0.95, base=0.9),
)


def _with(gain: float, windows: int = 40) -> Evidence:
    return replace(BETTER, differences=tuple(gain + noise for noise in SPREAD[:windows]))


def _decide(evidence: Evidence, look: Look = LOOK, **limits: float) -> GateDecision:
    return decide(evidence, GateSettings(**limits), look)


def test_a_shown_gain_without_harm_is_promoted_with_what_to_expect_and_what_could_be_seen() -> None:
    decision = _decide(BETTER)
    assert decision.ruling is Ruling.PROMOTE
    assert decision.look == LOOK
    assert decision.expected_gain is not None
    assert 0.2 < decision.expected_gain < 0.31
    assert "is to be expected" in decision.sentence
    assert "a true gain of +0.05 would have passed with a chance of" in decision.sentence


def test_the_low_end_must_be_above_the_wanted_gain() -> None:
    assert _decide(BETTER, min_gain=0.29).ruling is Ruling.UNDECIDED
    assert _decide(BETTER, min_gain=0.1).ruling is Ruling.PROMOTE


def test_a_model_that_cannot_reach_the_wanted_gain_is_refused() -> None:
    assert _decide(_with(-0.2), min_gain=0.05).ruling is Ruling.REFUSE


def test_an_equal_model_is_undecided_however_sure_and_says_what_would_decide() -> None:
    decision = _decide(_with(0.0))
    assert decision.ruling is Ruling.UNDECIDED
    assert "windows would make that 80%" in decision.sentence


def test_a_gain_that_is_shown_but_not_safe_enough_for_what_is_left_of_the_year_waits() -> None:
    shown = _with(0.08)
    assert _decide(shown).ruling is Ruling.PROMOTE
    spent = _decide(shown, Look(1, 1e-9))
    assert spent.ruling is Ruling.UNDECIDED
    assert "does not rule out a loss of 0.02" in spent.sentence
    assert _decide(shown, Look(1, 0.0)).ruling is Ruling.UNDECIDED, "nothing left in the budget is no free look"


def test_a_further_look_at_the_same_candidate_must_show_more() -> None:
    assert [Look(number).level for number in (1, 2, 3)] == [0.025, 0.0125, 0.00625]
    nearly = _with(0.075)
    assert _decide(nearly).ruling is Ruling.PROMOTE
    assert _decide(nearly, Look(9, 0.002)).ruling is Ruling.UNDECIDED


@pytest.mark.parametrize("windows", [3, 14])
def test_too_few_windows_never_decide_and_spend_nothing(windows: int) -> None:
    decision = _decide(_with(0.9, windows))
    assert decision.ruling is Ruling.UNDECIDED
    assert decision.look is None
    assert f"{windows} evaluation windows; the minimum to decide is 15" in decision.sentence


def test_one_rare_loss_that_was_not_seen_is_allowed_for() -> None:
    """Fifteen equal small gains have no spread at all: a plain interval would be certain."""
    assert _decide(replace(BETTER, differences=(0.05,) * 15)).ruling is Ruling.UNDECIDED


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
    decision = _decide(replace(BETTER, **change))
    assert decision.ruling is Ruling.REFUSE
    assert named in decision.sentence


def test_a_guard_that_could_not_be_measured_does_not_refuse_and_is_named() -> None:
    decision = _decide(replace(BETTER, kl_from_base=None, blocked_rate=None))
    assert decision.ruling is Ruling.PROMOTE
    assert decision.reasons[-1] == "not measured: safety blocks, KL from the base model"
    assert "not measured" not in _decide(BETTER).sentence


def test_a_candidate_that_lost_validity_on_unseen_tickers_is_refused_in_words() -> None:
    decision = _decide(replace(BETTER, narrowing=Narrowing("unseen tickers", 160, candidate=0.14, base=0.9)))
    assert decision.ruling is Ruling.REFUSE
    assert "validity on unseen tickers fell to 0.14 from the base model's 0.90" in decision.sentence
    assert "answers only what it was trained on" in decision.sentence


def test_greedy_replies_about_unseen_tickers_are_guarded_apart_from_sampled_ones() -> None:
    """A sampled base is seldom valid, so that beside it alone a candidate that learnt a name would pass."""
    narrowing = Narrowing("unseen tickers", 80, 0.9, 0.3, greedy_candidate=0.02, greedy_base=0.98)
    decision = _decide(replace(BETTER, narrowing=narrowing))
    assert decision.ruling is Ruling.REFUSE
    assert decision.reasons[0].startswith("greedy validity on unseen tickers fell to 0.02 from the base model's 0.98")
    assert len(decision.reasons) == 1, "what was sampled broke nothing"
    assert _decide(replace(BETTER, narrowing=replace(narrowing, greedy_candidate=0.94))).ruling is Ruling.PROMOTE
    both = _decide(replace(BETTER, narrowing=replace(narrowing, candidate=0.1)))
    assert len(both.reasons) == 2


@pytest.mark.parametrize(("candidate", "ruling"), [(0.851, Ruling.PROMOTE), (0.849, Ruling.REFUSE)])
def test_validity_may_be_lower_by_what_chance_can_do_and_no_more(candidate: float, ruling: Ruling) -> None:
    narrowing = Narrowing("the rarest states of the log", 20, candidate=candidate, base=0.9)
    assert _decide(replace(BETTER, narrowing=narrowing)).ruling is ruling


def test_narrowing_that_could_not_be_measured_is_said_with_its_reason() -> None:
    few = Narrowing("the rarest states of the log", 3, None, None, "a quarter of 12 decision points is less than 10")
    decision = _decide(replace(BETTER, narrowing=few))
    assert decision.ruling is Ruling.PROMOTE
    assert decision.reasons[-1].endswith("of the log (a quarter of 12 decision points is less than 10)")
    assert "unseen tickers or rare states" in _decide(replace(BETTER, narrowing=None)).sentence


def test_every_broken_guard_is_named() -> None:
    assert len(_decide(replace(BETTER, error_rate=0.9, blocked_rate=0.9)).reasons) == 2


@pytest.mark.parametrize(("first", "ruling"), [(0.4, Ruling.REFUSE), (0.05, Ruling.PROMOTE)])
def test_a_guard_sees_all_evaluations_of_a_held_candidate_not_its_last_few_windows(
    first: float, ruling: Ruling
) -> None:
    before = _evaluation("first", 40, error_rate=first)
    after = _evaluation("second", 2, error_rate=0.45 - first)
    evidence = evidence_of(after, [before, after])
    assert evidence.error_rate == pytest.approx((40 * first + 2 * (0.45 - first)) / 42)
    assert _decide(evidence).ruling is ruling


def test_evaluating_again_without_the_questions_does_not_get_rid_of_what_they_found() -> None:
    asked = replace(_evaluation("first", 40, error_rate=0.0), narrowing=Narrowing("unseen tickers", 80, 0.2, 0.9))
    unasked = Narrowing("the rarest states of the log", 1, None, None, "too few")
    again = replace(_evaluation("second", 4, error_rate=0.0), narrowing=unasked)
    assert _decide(evidence_of(again, [asked, again])).ruling is Ruling.REFUSE


def _evaluation(name: str, number: int, *, error_rate: float) -> Evaluation:
    made = make_evaluation(evaluation_id=name, error_rate=error_rate)
    hours = windows_from("2026-11-02T00:00" if name == "first" else "2026-11-09T00:00", number)
    scores = {Role.CANDIDATE: 0.8, Role.INCUMBENT: 0.4}
    figures = tuple(replace(one, error_rate=replace(one.error_rate, windows=number)) for one in made.figures)
    return replace(made, windows=tuple(WindowFigures(hour, scores, {}) for hour in hours), figures=figures)
