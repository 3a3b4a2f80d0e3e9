"""Advice: what a reply chooses, how sure the model is, and whether what is shown is right as often as was promised.

The long version, with the latency of a proposal, is ``benchmarks/advice.py``.
"""

from __future__ import annotations

from statistics import fmean

import numpy as np
import pytest

from data_bridge.errors import ConfigurationError
from data_bridge.models import Action, Fact, WindowOutcomes
from data_bridge.replies import action_in
from data_bridge.stakes import choice_of
from data_bridge.worlds.load import load_world
from tests.builders_advice import TARGET, draw, hours, outcome, trial
from trainer.advice.advisor import is_control
from trainer.advice.proposal import answer_of, proposal_of, proposed
from trainer.run.calibrate_advice import refuse_without_right_answers
from trainer.statistics.calibration import MIN_LABELS, after_change, calibrate
from trainer.statistics.shares import share_difference
from trainer.types import Completion

SEEDS = range(100)
WEEK = 7 * 24


def test_what_is_shown_is_right_as_often_as_wanted_and_half_is_answered() -> None:
    trials = [trial(seed, luck=0.2) for seed in SEEDS]
    kept = [one.precision is not None and one.precision >= TARGET and one.answered >= 0.5 for one in trials]
    assert sum(kept) >= 95
    assert fmean(one.error for one in trials) <= 0.05
    assert sum(one.error <= 0.05 for one in trials) >= 95


def test_where_luck_decides_it_abstains() -> None:
    trials = [trial(seed, luck=1.0) for seed in SEEDS]
    assert fmean(1 - one.answered for one in trials) >= 0.95
    assert fmean(one.error for one in trials) <= 0.05


def week_after(seed: int, luck_before: float, luck: float) -> tuple[float, float | None]:
    """The share answered and the precision in the week after the first week of a change, recalibrated daily."""
    rng = np.random.default_rng(seed)
    known = [*hours(rng, luck_before, 600), *hours(rng, luck, WEEK, 600)]
    answered: list[bool] = []
    for _ in range(7):  # a day at a time keeps the test short; the console does it every minute
        found = calibrate(known, TARGET)  # None: too little is known since the change
        today = hours(rng, luck, 24, len(known))
        answered += [one.is_right for one in today if found is not None and found.shows(one.score)]
        known += today
    return len(answered) / WEEK, fmean(answered) if answered else None


def test_a_week_after_the_world_became_luck_it_abstains() -> None:
    shares = [week_after(seed, 0.2, 1.0)[0] for seed in range(20)]
    assert fmean(shares) <= 0.05


def test_a_week_after_luck_ended_it_answers_and_is_right() -> None:
    weeks = [week_after(seed, 1.0, 0.2) for seed in range(20)]
    assert fmean(share for share, _ in weeks) >= 0.5
    assert fmean(right for _, right in weeks if right is not None) >= TARGET


def test_a_change_is_noticed_and_none_is_imagined() -> None:
    noticed = imagined = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        changed = [*hours(rng, 0.2, 600), *hours(rng, 1.0, WEEK, 600)]
        noticed += len(after_change(changed)) < WEEK + 100
        steady = hours(rng, 0.2, 600 + WEEK)
        imagined += len(after_change(steady)) < len(steady)
    assert noticed >= 18
    assert imagined <= 1


def test_too_few_outcomes_calibrate_nothing() -> None:
    rng = np.random.default_rng(0)
    assert calibrate(hours(rng, 0.2, MIN_LABELS - 1), TARGET) is None


def test_a_calibration_shows_nothing_that_it_is_not_certain_of() -> None:
    rng = np.random.default_rng(0)
    found = calibrate(hours(rng, 0.2, 60), 0.9)
    assert found is not None
    assert found.threshold is None
    assert outcome(found, *draw(rng, 0.2, 100)).answered == 0.0


@pytest.mark.parametrize(
    ("reply", "choice"),
    [
        ("BUY $COIN 20%", "BUY COIN"),
        (" buy COIN ", "BUY COIN"),
        ("SELL $COIN 3%\n", "SELL COIN"),
        ("HOLD", "HOLD"),
        ('{"action": "BUY", "parameters": {"ticker": "COIN", "amount": 100}}', "BUY COIN"),
        ('```json\n{"actionType": "trade", "ticker": "$coin", "side": "short"}\n```', "SELL COIN"),
        ('{"action": {"type": "BUY_NO", "params": {"marketId": "m1"}}}', "NO M1"),
    ],
)
def test_the_same_choice_has_one_spelling(reply: str, choice: str) -> None:
    action = action_in(reply)
    assert action is not None
    assert choice_of(action) == answer_of(reply) == choice


@pytest.mark.parametrize("reply", ["", "I would buy", "BUY", "{", '{"a": 1}', "[1]", "BUY COIN 20% now", "x" * 30_000])
def test_what_is_no_action_is_none(reply: str) -> None:
    assert action_in(reply) is None


def test_a_proposal_is_what_most_replies_choose_whatever_its_size() -> None:
    replies = [
        Completion("BUY $COIN 20%", (1, 2), (-0.1, -0.1)),
        Completion("BUY $COIN 10%", (1, 2), (-0.2, -0.2)),
        Completion("SELL $COIN 20%", (1, 2), (-0.01, -0.01)),
        Completion("", (), ()),
    ]
    found = proposal_of(replies)
    assert found is not None
    assert (found.text, found.answer, found.agreement) == ("BUY $COIN 20%", "BUY COIN", 0.5)
    assert found.likelihood == pytest.approx(np.exp(-0.15))
    assert 0 < found.score < 1
    assert proposal_of([Completion("  ")]) is None
    without = proposal_of([Completion("HOLD"), Completion("hold")])
    assert without is not None
    assert (without.likelihood, without.score) == (None, 1.0)


def test_the_draw_is_the_wanted_share_and_the_same_ever_after() -> None:
    digests = [f"{number:032x}" for number in range(4000)]
    drawn = [is_control(digest, 0.1) for digest in digests]
    assert drawn == [is_control(digest, 0.1) for digest in digests]
    assert 0.08 < fmean(drawn) < 0.12
    assert not any(is_control(digest, 0.0) for digest in digests)


def test_a_lift_has_an_interval_that_holds_a_true_difference() -> None:
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(40):
        shown = [(int(rng.random() < 0.8), 1) for _ in range(120)]
        none = [(int(rng.random() < 0.6), 1) for _ in range(40)]
        found = share_difference(shown, none)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 0.2 <= found.high
    assert held >= 35
    few = share_difference([(1, 1)], [(0, 1)])
    assert few is not None
    assert few.low is None
    assert share_difference([], [(1, 1)]) is None


def test_elsewhere_a_proposal_is_read_and_settled_by_the_world() -> None:
    desk = load_world("desk")
    found = proposal_of([Completion("REFUND"), Completion("REFUND, at once"), Completion("CLOSE")], desk)
    assert found is not None
    assert (found.answer, round(found.agreement, 2)) == ("REFUND", 0.67)
    logged = Action("CLOSE", parameters={"ticket": "T-1"}, success=True)
    facts = WindowOutcomes(facts=(Fact("T-1", "right_action", text="REFUND"),))
    proposal = proposed(found.text, desk, logged)
    assert proposal is not None
    assert (desk.is_right(proposal, facts), desk.is_right(logged, facts)) == (True, False)
    assert desk.is_right(proposal, WindowOutcomes()) is None


def test_advice_is_not_calibrated_where_nobody_knows_what_was_right() -> None:
    refuse_without_right_answers(load_world("market"))
    refuse_without_right_answers(load_world("desk"))
    with pytest.raises(ConfigurationError, match="The world quests cannot say whether a proposal was right"):
        refuse_without_right_answers(load_world("quests"))
