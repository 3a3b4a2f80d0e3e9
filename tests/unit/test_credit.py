"""Validity and decision are credited apart, and no answer gains by being common."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_bridge.worlds.market import MARKET
from tests.builders import WINDOW, make_action, make_outcomes, make_step, make_trajectory
from trainer.train.credit import MOST_WEIGHT, credits_of
from trainer.train.selection import advantages
from trainer.types import Group, JudgedGroup, JudgeIdentity, Verdict

IDENTITY = JudgeIdentity("outcome", "outcome", "2", "2", is_llm=False)
Said = tuple[str | None, float]
"""An answer (None: not valid) and its score."""


def judged(*members: Said) -> JudgedGroup:
    rows = tuple(
        make_trajectory(
            f"agent-{number}",
            steps=[
                make_step(
                    action=make_action(answer or "BUY", success=answer is not None),
                )
            ],
        )
        for number, (answer, _) in enumerate(members)
    )
    verdicts = tuple(Verdict(row.trajectory_id, score, 0.0, "") for row, (_, score) in zip(rows, members, strict=True))
    return JudgedGroup(Group("g", WINDOW, rows, make_outcomes()), verdicts, IDENTITY, "key")


def credits_in(group: JudgedGroup) -> list[float]:
    """The credits of a step of this group alone."""
    [credits] = credits_of([group])
    return credits


def of(credits: Sequence[float], members: Sequence[Said], answer: str | None) -> float:
    return sum(one for one, (said, _) in zip(credits, members, strict=True) if said == answer)


def test_if_all_are_valid_the_credits_are_the_advantages() -> None:
    group = judged(("BUY", 1.0), ("SELL", 0.2), ("BUY", 0.9), ("SELL", 0.3))
    assert credits_in(group) == pytest.approx(advantages(group.scores))


def test_a_group_whose_valid_members_agree_teaches_validity_alone() -> None:
    members: list[Said] = [("SELL", 0.6), ("SELL", 0.6), (None, 0.0), (None, 0.0)]
    credits = credits_in(judged(*members))
    assert credits[0] == credits[1] > 0 > credits[2] == credits[3]


def test_what_validity_gains_is_shared_by_answers_and_not_by_members() -> None:
    members: list[Said] = [*([("SELL", 0.5)] * 5), ("BUY", 0.5), (None, 0.0), (None, 0.0)]
    credits = credits_in(judged(*members))
    assert of(credits, members, "BUY") == pytest.approx(of(credits, members, "SELL"))
    assert of(credits, members, "BUY") > 0


def test_a_wrong_decision_is_not_learnt_for_being_valid() -> None:
    members: list[Said] = [("BUY", 1.0), ("SELL", 0.25), *([(None, 0.0)] * 6)]
    right, wrong, *_ = credits_in(judged(*members))
    assert right > 0 > wrong


@given(st.lists(st.tuples(st.sampled_from(["BUY", "SELL", "HOLD", None]), st.floats(0, 1)), min_size=2, max_size=10))
def test_the_credits_of_a_group_sum_to_zero(members: list[Said]) -> None:
    assert sum(credits_in(judged(*members))) == pytest.approx(0, abs=1e-9)


def test_if_none_is_valid_the_scores_still_count() -> None:
    group = judged((None, 0.3), (None, 0.1))
    assert credits_in(group) == pytest.approx(advantages(group.scores))


def test_a_name_that_the_game_does_not_know_gains_nothing_by_calling_itself_valid() -> None:
    """Before, a member with an answer of its own received as much of the validity as all the others together."""
    members: list[Said] = [("BUY", 0.5), ("SELL", 0.5), ("TELEPORT", 0.5), (None, 0.0)]
    assert credits_in(judged(*members))[2] == 0
    alone = credits_in(judged(("BUY", 0.5), ("SELL", 0.5), (None, 0.0)))
    assert credits_in(judged(*members))[:2] == pytest.approx(alone[:2])


def gained(groups: Sequence[JudgedGroup], steps: Sequence[Sequence[Said]], answer: str) -> float:
    return sum(of(credits, members, answer) for credits, members in zip(credits_of(groups), steps, strict=True))


UP: tuple[Said, ...] = (("BUY", 1.0), ("SELL", 0.0))
DOWN: tuple[Said, ...] = (("BUY", 0.0), ("SELL", 1.0))


@pytest.mark.parametrize("ups", [3, 6, 9])
def test_a_step_with_more_hours_up_than_down_prefers_neither_answer(ups: int) -> None:
    """Without weights, nine hours in which BUY was right and three in which SELL was teach BUY, whatever the news."""
    steps = [UP] * ups + [DOWN] * (12 - ups)
    groups = [judged(*members) for members in steps]
    assert gained(groups, steps, "BUY") == pytest.approx(0, abs=1e-9)
    sizes = {members: credits[0] for members, credits in zip(steps, credits_of(groups), strict=True)}
    assert sizes[UP] > 0 > sizes[DOWN]


def test_one_odd_hour_does_not_outweigh_all_others() -> None:
    groups = [judged(*members) for members in [UP] * 11 + [DOWN]]
    credits = credits_of(groups)
    assert abs(credits[-1][0]) <= MOST_WEIGHT * abs(advantages([1.0, 0.0])[0])
    assert sum(one[0] for one in credits) > 0


def test_hours_that_agree_are_weighted_as_they_are() -> None:
    groups = [judged(*UP) for _ in range(4)]
    assert credits_of(groups) == [pytest.approx(advantages(groups[0].scores))] * 4


def test_an_answer_is_a_kind_of_deed_without_names_and_amounts() -> None:
    group = judged(("BUY", 1.0), ("OPEN_LONG", 1.0), ("SELL", 1.0), ("FLY", 1.0), ("SWIM", 1.0), (None, 0.0)).group
    buy, long, sell, fly, swim, nothing = (MARKET.answer_of(one, group.outcomes) for one in group.trajectories)
    assert buy == long != sell
    assert fly == swim == "unknown"
    assert nothing is None
