"""What is accepted of a judge's reply, and what is not."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.judge.prompt import BadReply, parse

IDS = ("aaaa", "bbbb")


def reply(*entries: tuple[str, object]) -> str:
    return json.dumps(
        {"scores": [{"trajectory_id": id_, "explanation": "so", "score": score} for id_, score in entries]}
    )


def test_scores_follow_the_ids_not_the_order_of_the_reply() -> None:
    found = parse(reply(("bbbb", 0.2), ("aaaa", 0.9)), IDS)
    assert [score.score for score in found] == [0.9, 0.2]


@given(st.permutations(list(range(6))), st.lists(st.floats(0, 1), min_size=6, max_size=6))
def test_any_order_gives_the_same_scores(order: list[int], scores: list[float]) -> None:
    ids = [f"id-{number}" for number in range(6)]
    found = parse(reply(*((ids[place], scores[place]) for place in order)), ids)
    assert [score.score for score in found] == scores


@given(st.text())
def test_no_text_at_all_is_ever_taken_for_scores(text: str) -> None:
    with pytest.raises(BadReply):
        parse(text, IDS)


def test_thinking_aloud_in_json_before_the_answer_is_passed_over() -> None:
    thinking = '<think>{"aaaa": "bold"} or {broken</think>'
    assert len(parse(thinking + reply(("aaaa", 0), ("bbbb", 1)), IDS)) == 2


def test_a_second_object_does_not_overrule_the_first() -> None:
    found = parse(reply(("aaaa", 0.1), ("bbbb", 0.2)) + reply(("aaaa", 1), ("bbbb", 1)), IDS)
    assert [score.score for score in found] == [0.1, 0.2]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('{"scores": [{"trajectory_id": "aaaa", "score": 0.1, "score": 1}]}', "same name twice"),
        ('{"scores": [{"trajectory_id": "aaaa", "score": Infinity}]}', "not finite"),
        ('{"scores": [{"trajectory_id": "aaaa", "score": null}]}', "not a number"),
        ('{"scores": {"aaaa": 1, "bbbb": 1}}', "no list named scores"),
        ('{"scores": ["aaaa"]}', "not an object"),
        ('{"scores": []}', "0 of 2"),
        ("[" * 100_000, "no complete JSON"),
        ("{" * 3_000, "no complete JSON"),
    ],
)
def test_a_fault_is_named_without_quoting_the_reply(text: str, fault: str) -> None:
    with pytest.raises(BadReply, match=fault):
        parse(text, IDS)


def test_an_explanation_cannot_carry_control_characters_or_be_endless() -> None:
    text = json.dumps({"scores": [{"trajectory_id": "aaaa", "explanation": "a\x00\x1b[31m" + "b" * 9_999, "score": 1}]})
    (found,) = parse(text, ("aaaa",))
    assert found.explanation.startswith("a[31mb")
    assert len(found.explanation) == 2_000
