"""The news: thousands of headlines that say what they are meant to say, and words that nobody is trained on."""

from __future__ import annotations

import re
from string import Formatter

import pytest

from tests.content_words import content_words, in_common, is_same_word, lemma, texts_of
from trainer.world.exchange import Exchange
from trainer.world.headlines import direction_of, headline
from trainer.world.market import STAGES, Market, StageName
from trainer.world.observation import EXAMPLES, messages_for, observe
from trainer.world.questions import COLUMNS, questions
from trainer.world.vocabulary import (
    EVENTS,
    LIKELY,
    TICKERS,
    UNLIKELY,
    WORDS,
    FamilyName,
    fingerprint_of_unseen,
)

TRAINED = [*texts_of(WORDS["trained"]), *EVENTS, *LIKELY, *UNLIKELY]
UNSEEN = texts_of(WORDS["unseen"])


def prompt(stage: StageName) -> list[str]:
    """Everything that a model is shown before the hour itself."""
    hour = Market(1, stage=stage).hour("2026-03-02T00:00")
    return [str(message.content) for message in messages_for(observe(hour, 0, Exchange(hour).quotes(0)), stage)[:-1]]


@pytest.mark.parametrize(
    ("form", "other"),
    [
        ("failed", "failure"),
        ("grew", "growth"),
        ("orders", "order"),
        ("dropped", "drops"),
        ("launches", "launched"),
        ("expands", "expansion"),
    ],
)
def test_forms_of_a_word_are_taken_for_one(form: str, other: str) -> None:
    assert is_same_word(lemma(form), lemma(other))


def test_no_content_word_of_the_unseen_family_is_a_trained_one() -> None:
    assert len(content_words(UNSEEN)) > 80
    assert in_common(UNSEEN, TRAINED) == set()


def test_no_pattern_and_no_ticker_belongs_to_both_families() -> None:
    trained, unseen = WORDS["trained"], WORDS["unseen"]
    assert not set(trained.pointed + trained.neutral + trained.mixed) & set(
        unseen.pointed + unseen.neutral + unseen.mixed
    )
    assert len(TICKERS["trained"]) >= 4
    assert len(TICKERS["unseen"]) >= 4
    assert not set(TICKERS["trained"]) & set(TICKERS["unseen"])


def test_worked_examples_use_no_word_and_no_ticker_that_is_trained_or_asked_about() -> None:
    shown = [text for stage in STAGES for text in prompt(stage)]
    assert in_common(shown, [*TRAINED, *UNSEEN]) == set()
    tickers = {quote.symbol for stage in EXAMPLES.values() for example in stage for quote in example.quotes}
    assert len(tickers) == 4
    assert not tickers & {*TICKERS["trained"], *TICKERS["unseen"]}


def test_nothing_in_the_prompt_states_the_rule() -> None:
    for stage in STAGES:
        assert not re.search(r"good|bad|positive|negative|rise|fall", "\n".join(prompt(stage)), re.IGNORECASE)


@pytest.mark.parametrize("stage", list(STAGES))
def test_worked_examples_show_every_order_equally_often(stage: str) -> None:
    verbs = [example.decision.verb for example in EXAMPLES["one" if stage == "one" else "several"]]
    assert {verbs.count(verb) for verb in verbs} == {len(verbs) // len(set(verbs))}
    assert {"BUY", "SELL"} <= set(verbs)


def test_the_unseen_words_are_those_that_were_fixed_before_anything_was_trained() -> None:
    """They stay as they are: a changed list can no longer show that a model was not trained on it."""
    assert fingerprint_of_unseen() == "74cfbbaef99ba2266a7ecf3e707f46ec248e3eddbf44604343a7d73571658e46"


@pytest.mark.parametrize("words", ["trained", "unseen"])
@pytest.mark.parametrize("direction", [1, 0, -1])
def test_thousands_of_headlines_say_what_they_are_meant_to_say(words: FamilyName, direction: int) -> None:
    ticker = TICKERS[words][0]
    texts = [headline(ticker, direction, words, "test", number) for number in range(6_000)]
    assert len(set(texts)) > 1_000
    assert {direction_of(text, ticker) for text in texts} == {direction}
    assert {direction_of(text, "$NOPE") for text in texts} == {0}
    assert all(ticker in text and "{" not in text for text in texts)
    assert any(re.search(r"\d", text) for text in texts)


def test_headlines_of_both_directions_have_the_same_patterns() -> None:
    """So no pattern gives the direction away: only its words do."""
    for family in WORDS.values():
        used = {slot for pattern in family.pointed for _, slot, _, _ in Formatter().parse(pattern)}
        assert set(family.up) == set(family.down) <= used


@pytest.mark.parametrize("column", list(COLUMNS))
def test_questions_are_balanced_different_and_always_the_same(column: str) -> None:
    words, tickers = COLUMNS[column]
    asked = questions(160, words, tickers)
    assert len({question.headline for question in asked}) == 160
    assert {question.ticker for question in asked} == set(TICKERS[tickers])
    for is_up in (True, False):
        pointed = [question.direction for question in asked if question.seen.quotes[0].is_up is is_up]
        assert (pointed.count(1), pointed.count(-1)) == (40, 40)
    assert asked == questions(160, words, tickers)
    assert {question.headline for question in asked} != {one.headline for one in questions(160, words, tickers, 1)}
    for question in asked:
        assert direction_of(question.headline, question.ticker) == question.direction
        assert question.headline in str(question.messages[-1].content)
        assert question.taken(f"BUY {question.ticker} 20%") == 1
        assert question.taken(f"SELL {question.ticker} 5%") == -1
        assert question.taken("BUY $NOPE 20%") is None
        assert question.taken(f"BUY {question.ticker} 21%") is None
        assert question.taken("I do not know") is None
