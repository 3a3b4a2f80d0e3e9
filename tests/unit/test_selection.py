"""``--select max-variance N``: the kept trajectories have the largest variance of all choices."""

from __future__ import annotations

from itertools import combinations
from statistics import pvariance

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_bridge.errors import ConfigurationError
from data_bridge.quality import Reason
from tests.builders_ledger import make_judged
from trainer.train.selection import most_telling, parse_rule, select


@given(scores=st.lists(st.floats(0, 1), min_size=2, max_size=8), number=st.integers(2, 8))
def test_no_other_choice_has_a_larger_variance(scores: list[float], number: int) -> None:
    kept = [scores[index] for index in most_telling(scores, number)]
    size = min(number, len(scores))
    assert len(kept) == size
    assert pvariance(kept) >= max(pvariance(choice) for choice in combinations(scores, size)) - 1e-9


def test_those_left_out_have_a_reason_and_verdicts_stay_with_their_trajectories() -> None:
    judged = make_judged((0.5, 0.9, 0.45, 0.0))
    kept, excluded = select(judged, 2)
    assert [verdict.score for verdict in kept.verdicts] == [0.9, 0.0]
    assert [one.trajectory_id for one in kept.group.trajectories] == [v.trajectory_id for v in kept.verdicts]
    assert {one.reason for one in excluded} == {Reason.NOT_SELECTED}
    assert len(excluded) == 2


def test_without_a_rule_all_are_kept() -> None:
    judged = make_judged()
    assert select(judged, parse_rule(None)) == (judged, ())


@pytest.mark.parametrize("text", ["max-variance", "max-variance 1", "best 3", "max-variance x"])
def test_another_rule_is_refused_with_the_right_spelling(text: str) -> None:
    with pytest.raises(ConfigurationError, match="max-variance N"):
        parse_rule(text)


def test_the_rule_can_be_written_as_one_word_or_two() -> None:
    assert parse_rule("max-variance 4") == parse_rule("max-variance:4") == 4
