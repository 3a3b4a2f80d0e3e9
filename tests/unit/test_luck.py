"""Two passes: what is trained of a score without the outcome and one with it."""

from __future__ import annotations

import pytest

from data_bridge.worlds.market import MARKET
from tests.builders import make_outcomes
from tests.builders_judge import agent
from trainer.judge.luck import corrected


def test_what_the_judge_adds_to_all_winners_alike_is_luck_and_is_not_trained() -> None:
    blind, sides = [0.8, 0.3, 0.8, 0.3], [1, 1, -1, -1]
    assert corrected(blind, [0.2, 0.2, -0.2, -0.2], sides) == pytest.approx(blind)


def test_what_tells_the_reasons_of_two_winners_apart_is_trained() -> None:
    trained = corrected([0.5, 0.5, 0.5], [0.2, 0.0, -0.1], [1, 1, -1])
    assert trained == pytest.approx([0.6, 0.4, 0.5])


def test_a_score_stays_a_score() -> None:
    assert corrected([1.0, 0.0], [0.2, -0.2], [1, 1]) == [1.0, 0.0]


def test_who_won_is_known_from_the_game_s_prices_not_from_the_books() -> None:
    outcomes = make_outcomes()
    assert [MARKET.side_of(agent(1, pnl=pnl), outcomes) for pnl in (50.0, -50.0)] == [1, -1]
    assert MARKET.side_of(agent(1, pnl=50.0, action_type="HOLD", parameters={}), outcomes) == 0
    assert MARKET.side_of(agent(1, parameters={"ticker": "NOWHERE", "side": "BUY"}), outcomes) is None
