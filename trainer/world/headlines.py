"""Writes the market's headlines, and reads them as a careful reader does.

A headline is about one ticker, or one question of a prediction market. It points up, points down, or points nowhere:
because it says nothing of value (neutral), or something good and something bad (mixed). A family of ``vocabulary`` has
thousands of each.
"""

from __future__ import annotations

from trainer.world.chance import pick
from trainer.world.grammar import FamilyName, SentenceReader, sentence
from trainer.world.vocabulary import LIKELY, UNLIKELY, WORDS


def headline(ticker: str, direction: int, words: FamilyName, *key: object) -> str:
    """A headline on ``ticker`` (``$COIN``) that points up (+1), down (-1) or nowhere (0)."""
    return sentence(WORDS[words], direction, {"ticker": ticker}, *key)


def hint(event: str, direction: int, *key: object) -> str:
    """A headline on whether ``event`` will happen."""
    return pick(LIKELY if direction > 0 else UNLIKELY, *key).format(event)


def direction_of(text: str, subject: str) -> int:
    """What ``text`` says about ``subject`` to a reader who understands it: up (+1), down (-1) or nothing (0)."""
    return _READING.direction(text, subject)


def _bare(hints: tuple[str, ...]) -> list[str]:
    return [text.format("").lower().strip() for text in hints]


_READING = SentenceReader.of(WORDS.values(), _bare(LIKELY), _bare(UNLIKELY))
