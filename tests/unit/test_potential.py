"""Shaping by a potential: the terms telescope, and the order of whole trajectories cannot change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import make_step, make_trajectory
from trainer.config.commands import TrainSettings
from trainer.config.settings import settings_from
from trainer.rewards import CreditRule, Graded
from trainer.train.credit import rewards_of
from trainer.train.potential import equity, shaping
from trainer.train.step_credit import returns

scores = st.floats(0, 1)
potentials = st.floats(-1, 1)
discounts = st.floats(0, 1)


def shaped_step_by_step(own: Sequence[float], states: Sequence[float], discount: float) -> list[float]:
    """The returns of scores that were each changed by ``discount * next potential - potential``: the definition."""
    after = [*states[1:], 0.0]
    changed = [score + discount * then - now for score, now, then in zip(own, states, after, strict=True)]
    found = returns(changed, discount)
    return [value for value in found if value is not None]


def shaped(own: Sequence[float], states: Sequence[float], discount: float) -> list[float]:
    """As it is credited."""
    plain = returns(own, discount)
    return [
        (value or 0.0) + shaping(state, len(own) - place, discount)
        for place, (value, state) in enumerate(zip(plain, states, strict=True))
    ]


trajectories = st.integers(1, 8).flatmap(
    lambda number: st.tuples(*(st.lists(kind, min_size=number, max_size=number) for kind in (scores, potentials)))
)


@given(trajectories, discounts)
def test_what_is_credited_is_the_sum_of_the_terms_of_each_step(
    trajectory: tuple[list[float], list[float]], discount: float
) -> None:
    own, states = trajectory
    assert shaped(own, states, discount) == pytest.approx(shaped_step_by_step(own, states, discount), abs=1e-9)


@st.composite
def of_one_beginning(draw: Any) -> list[tuple[list[float], list[float]]]:
    """Whole trajectories of one length that begin in states of the same potential, wherever they then go."""
    number, beginning = draw(st.integers(1, 6)), draw(potentials)
    own = st.lists(scores, min_size=number, max_size=number)
    later = st.lists(potentials, min_size=number - 1, max_size=number - 1)
    return [(draw(own), [beginning, *draw(later)]) for _ in range(draw(st.integers(2, 6)))]


@given(of_one_beginning(), discounts)
def test_whole_trajectories_that_began_alike_keep_their_order(
    found: list[tuple[list[float], list[float]]], discount: float
) -> None:
    plain = [returns(own, discount)[0] or 0.0 for own, _ in found]
    moved = [shaped_step_by_step(own, states, discount)[0] for own, states in found]
    for one, after in zip(plain, moved, strict=True):
        for other, its in zip(plain, moved, strict=True):
            if one > other + 1e-9:
                assert after > its
            assert after - its == pytest.approx(one - other, abs=1e-9)


@given(of_one_beginning(), discounts)
def test_the_first_decisions_of_such_trajectories_have_the_same_advantages_with_and_without(
    found: list[tuple[list[float], list[float]]], discount: float
) -> None:
    rule = CreditRule(0.2, 3.0, discount=discount)

    def gains(*, is_shaped: bool) -> list[float]:
        members = [
            Graded(
                str(number),
                returns(own, discount)[0] or 0.0,
                0.0,
                "stake +1",
                1.0,
                step=0,
                potential=states[0] if is_shaped else 0.0,
                ahead=len(own) if is_shaped else 0,
            )
            for number, (own, states) in enumerate(found)
        ]
        [rewards] = rewards_of([("group", members)], rule)
        return [one.advantage for one in rewards]

    assert gains(is_shaped=True) == pytest.approx(gains(is_shaped=False), abs=1e-9)


def test_a_terminal_potential_that_is_not_zero_would_change_the_order() -> None:
    """What the tests above rest on: the state after the last decision counts for nothing, whoever got rich."""
    worse, better = [0.4], [0.6]
    ends = (1.0, 0.0)
    wrong = [own[0] + 1.0 * end - 0.0 for own, end in zip((worse, better), ends, strict=True)]
    assert wrong[0] > wrong[1]
    assert shaped(worse, [0.0], 1.0) < shaped(better, [0.0], 1.0)


def test_equity_is_the_gain_on_the_balance_at_the_beginning_and_begins_at_nothing() -> None:
    own = [make_step(0, pnl=500.0), make_step(1, pnl=600.0), make_step(2, pnl=450.0), make_step(3, pnl=None)]
    assert equity(make_trajectory(steps=own), own) == pytest.approx([0.0, 0.1, -0.05, 0.0])
    lies = [make_step(0, pnl=0.0), make_step(1, pnl=1e300), make_step(2, pnl=float("nan"))]
    assert equity(make_trajectory(steps=lies), lies) == [0.0, 1.0, 0.0]
    broke = [make_step(0, balance=0.0), make_step(1, pnl=5.0, balance=0.0)]
    assert equity(make_trajectory(steps=broke), broke) == [0.0, 0.0]
    unknown = [make_step(0, balance=None), make_step(1, pnl=5.0, balance=None)]
    assert equity(make_trajectory(steps=unknown), unknown) == [0.0, 0.0]


def test_a_potential_without_step_credit_is_refused() -> None:
    with pytest.raises(ValueError, match="--potential shapes the returns of decisions: it needs --step-credit"):
        settings_from(TrainSettings, potential="equity")
    assert settings_from(TrainSettings, potential="equity", step_credit=True).training.potential == "equity"
