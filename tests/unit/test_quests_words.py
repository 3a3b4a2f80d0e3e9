"""What is told of roads: sentences that say what they are meant to say, and words and names that nobody trains on."""

from __future__ import annotations

import re
from string import Formatter

import pytest

from data_bridge.window_ids import windows_from
from tests.content_words import content_words, in_common, texts_of
from trainer.evidence import TRAINED_WORDS, UNSEEN_PLACES, UNSEEN_WORDS
from trainer.world.grammar import FamilyName, SentenceReader, sentence
from trainer.world.quests.carrying import GO, GUARD
from trainer.world.quests.errands import STAGES, Quests
from trainer.world.quests.questions import questions
from trainer.world.quests.view import EXAMPLES, messages_for, view_of
from trainer.world.quests.vocabulary import ITEMS, PLACES, WORDS, fingerprint_of_unseen

TRAINED, UNSEEN = (texts_of(WORDS[family]) for family in ("trained", "unseen"))
NAMES = {family: [*PLACES[family], *ITEMS[family]] for family in PLACES}
READING = SentenceReader.of(WORDS.values())


def prompts() -> list[str]:
    """Everything that is the same in every hour."""
    found = []
    for stage in STAGES:
        hour = Quests(1, stage=stage).hour("2026-03-02T08:00")
        seen = view_of(hour, 0, hour.start, hour.supplies)
        found += [str(message.content) for message in messages_for(seen, stage)[:-1]]
    return found


def test_no_content_word_and_no_name_of_the_unseen_family_is_a_trained_one() -> None:
    assert len(content_words(UNSEEN)) > 60
    assert in_common(UNSEEN, TRAINED) == set()
    assert in_common(NAMES["trained"], NAMES["unseen"]) == set()
    assert in_common([*NAMES["trained"], *NAMES["unseen"]], [*TRAINED, *UNSEEN]) == set()
    trained, unseen = WORDS["trained"], WORDS["unseen"]
    assert not {*trained.pointed, *trained.neutral, *trained.mixed} & {*unseen.pointed, *unseen.neutral, *unseen.mixed}


def test_worked_examples_use_no_word_and_no_name_that_is_trained_or_asked_about() -> None:
    errands = [errand for stage in EXAMPLES.values() for example in stage for errand in example.errands]
    shown = [text for errand in errands for text in (errand.news, errand.name)]
    assert in_common(shown, [*TRAINED, *UNSEEN, *NAMES["trained"], *NAMES["unseen"]]) == set()


def test_worked_examples_show_both_answers_equally_often_and_nothing_states_the_rule() -> None:
    verbs = [example.choice.verb for example in EXAMPLES["one"]]
    assert (verbs.count(GO), verbs.count(GUARD)) == (2, 2)
    assert not re.search(r"\b(safe|danger|robber|ambush)", "\n".join(prompts()), re.IGNORECASE)


def test_the_unseen_words_are_those_that_were_fixed_before_anything_was_trained() -> None:
    """They stay as they are: a changed list can no longer show that a model was not trained on it."""
    assert fingerprint_of_unseen() == "30c5213e5d41e3ff6621e15603daecbc78ce565a795746331d21b65b30680611"


@pytest.mark.parametrize("words", ["trained", "unseen"])
@pytest.mark.parametrize("direction", [1, 0, -1])
def test_sentences_say_what_they_are_meant_to_say(words: FamilyName, direction: int) -> None:
    texts = {
        sentence(WORDS[words], direction, {"place": place}, "test", number): place
        for place in PLACES[words]
        for number in range(600)
    }
    assert len(texts) > 300
    assert {READING.direction(text, place) for text, place in texts.items()} == {direction}
    assert all(place in text and "{" not in text for text, place in texts.items())


def test_sentences_of_both_directions_have_the_same_patterns() -> None:
    for family in WORDS.values():
        used = {slot for pattern in family.pointed for _, slot, _, _ in Formatter().parse(pattern)}
        assert set(family.up) == set(family.down) <= used


@pytest.mark.parametrize(
    ("words", "names"), [("trained", "trained"), ("unseen", "trained"), ("trained", "unseen"), ("unseen", "unseen")]
)
def test_questions_are_balanced_different_and_always_the_same(words: FamilyName, names: FamilyName) -> None:
    asked = questions(80, words, names)
    assert len({question.headline for question in asked}) == 80
    assert [sum(one.direction == way for one in asked) for way in (1, -1)] == [40, 40]
    assert asked == questions(80, words, names)
    assert {question.headline for question in asked} != {one.headline for one in questions(80, words, names, 1)}
    for question in asked:
        [errand] = question.seen.errands
        assert errand.place in PLACES[names]
        assert errand.item in ITEMS[names]
        assert question.read() == question.direction
        assert question.headline in str(question.messages[-1].content)
        assert [question.taken(question.answer(way)) for way in (1, -1)] == [1, -1]
        wrong_place = next(place for place in PLACES["trained"] if place != errand.place)
        for reply in (
            f"GO {errand.item} to {wrong_place}",
            f"{GO} {errand.name} now",
            "WAIT",
            "",
            "JOIN " + errand.name,
        ):
            assert question.taken(reply) is None


def test_agents_play_with_trained_words_and_names_only() -> None:
    for window_id in windows_from("2026-03-02T00:00", 60):
        hour = Quests(3, stage="several").hour(window_id)
        for errand in hour.board(0, hour.start):
            assert {errand.place, hour.start} <= set(PLACES["trained"])
            assert errand.item in ITEMS["trained"]
            assert not content_words([errand.news.replace(errand.place, "")]) & content_words(UNSEEN)


def test_the_columns_of_the_two_worlds_have_names_of_their_own() -> None:
    from trainer.evaluate.reading import columns_of
    from trainer.world.worlds import QUESTS

    columns = columns_of(QUESTS, 16)
    assert list(columns) == [TRAINED_WORDS, UNSEEN_WORDS, UNSEEN_PLACES]
    assert [len(own) for own in columns.values()] == [2, 16, 8]
