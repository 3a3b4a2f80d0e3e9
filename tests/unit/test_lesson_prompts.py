"""Lessons go into a prompt as one block of system text, and can be found in it and taken out again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_bridge.lesson_prompts import (
    KINDS,
    WORDINGS,
    LessonsPolicy,
    lessons_in,
    one_line,
    policy_named,
    with_lessons,
    without_lessons,
)
from data_bridge.models import ChatMessage
from trainer.certify.probes import ATTACKS
from trainer.lessons.wording import content_of, title_of

SYSTEM, USER = ChatMessage(role="system", content="Trade the news."), ChatMessage(role="user", content="$ACME up")

policies = st.builds(
    LessonsPolicy,
    st.integers(1, 10),
    st.sets(st.sampled_from(KINDS), min_size=1).map(lambda kinds: tuple(kind for kind in KINDS if kind in kinds)),
    st.sampled_from(sorted(WORDINGS)),
)
chats = st.lists(
    st.builds(ChatMessage, st.sampled_from(["system", "user", "assistant"]), st.text(max_size=40)), max_size=4
)


@given(policies)
def test_a_policys_name_says_everything(policy: LessonsPolicy) -> None:
    assert LessonsPolicy.parse(policy.name) == policy
    assert policy_named(policy.name) == policy


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("2", "lessons-2-all-notes"),
        ("3-semantic.procedural", "lessons-3-semantic.procedural-notes"),
        ("lessons-1-episodic-weighed", "lessons-1-episodic-weighed"),
    ],
)
def test_a_policy_is_written_shortly(written: str, name: str) -> None:
    assert LessonsPolicy.parse(written).name == name


@pytest.mark.parametrize("written", ["0", "11", "2-rumours", "2-all-shouted", "two", "-2", "2-all-notes-more"])
def test_what_is_no_policy_is_one_sentence(written: str) -> None:
    with pytest.raises(ValueError, match=r"write a lessons policy as NUMBER-KINDS-WORDING, such as 2-all-notes"):
        LessonsPolicy.parse(written)


@given(chats, st.lists(st.text(min_size=1, max_size=60), min_size=1, max_size=4), st.sampled_from(sorted(WORDINGS)))
def test_lessons_come_out_of_a_prompt_as_they_went_in(messages: list[ChatMessage], texts: list[str], how: str) -> None:
    messages = without_lessons(messages)
    shown = with_lessons(messages, texts, how)

    assert lessons_in(shown) == [one_line(text) for text in texts]
    # Only an empty system text, which says nothing, is not told from none.
    kept = [one for one in messages if not (one is messages[0] and one.role == "system" and not one.content)]
    assert without_lessons(shown) == kept
    assert shown[-len(messages) + 1 :] == messages[1:] if len(messages) > 1 else True


def test_without_lessons_a_prompt_stays_as_it_is() -> None:
    assert with_lessons([SYSTEM, USER], [], "notes") == [SYSTEM, USER]
    assert without_lessons([SYSTEM, USER]) == [SYSTEM, USER]
    assert lessons_in([USER]) == []
    assert with_lessons([USER], ["Sell: on strikes"], "notes")[1:] == [USER]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_no_lesson_ends_its_line_or_begins_a_turn(attack: object) -> None:
    text = f"{title_of('From outside')}: {content_of(attack.text)}"  # type: ignore[attr-defined]
    shown = with_lessons([SYSTEM, USER], [text, "Sell: on strikes"], "notes")
    assert len(shown) == 2
    assert lessons_in(shown) == [text, "Sell: on strikes"], "as it is stored, so that it is found again"
    assert "<|" not in str(shown[0].content)
