"""Writes the headlines, and reads them as a careful reader does.

A headline is about one ticker, or one question of a prediction market. It points up, points down, or points nowhere:
because it says nothing of value (neutral), or something good and something bad (mixed). A family of ``vocabulary`` has
thousands of each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from string import Formatter
from typing import Literal

from trainer.world.chance import pick, unit
from trainer.world.vocabulary import LIKELY, UNLIKELY, WORDS, FamilyName, WordFamily

_MIXED_SHARE = 1 / 3
"""Of the headlines that point nowhere."""
_NUMBERS = range(3, 60)


def headline(ticker: str, direction: int, words: FamilyName, *key: object) -> str:
    """A headline on ``ticker`` (``$COIN``) that points up (+1), down (-1) or nowhere (0)."""
    family = WORDS[words]
    pointless = family.mixed if unit(*key, "mixed") < _MIXED_SHARE else family.neutral
    patterns = family.pointed if direction else pointless
    text = _filled(pick(patterns, *key, "pattern"), family, ticker, direction, key)
    return text[0].upper() + text[1:]


def hint(event: str, direction: int, *key: object) -> str:
    """A headline on whether ``event`` will happen."""
    return pick(LIKELY if direction > 0 else UNLIKELY, *key).format(event)


def direction_of(text: str, subject: str) -> int:
    """What ``text`` says about ``subject`` to a reader who understands it: up (+1), down (-1) or nothing (0)."""
    if subject not in text:
        return 0
    said = text.replace(subject, "").lower()
    return bool(_GOOD.search(said)) - bool(_BAD.search(said))


def _filled(pattern: str, family: WordFamily, ticker: str, direction: int, key: tuple[object, ...]) -> str:
    """``pattern`` with its slots filled, by a draw for each."""
    pieces: list[str] = []
    for place, (text, slot, _, _) in enumerate(Formatter().parse(pattern)):
        pieces.append(text)
        if slot == "ticker":
            pieces.append(ticker)
        elif slot == "number":
            pieces.append(str(pick(_NUMBERS, *key, place)))
        elif slot is not None:
            pieces.append(pick(_choices(slot, family, direction), *key, place))
    return "".join(pieces)


def _choices(slot: str, family: WordFamily, direction: int) -> tuple[str, ...]:
    if slot in family.plain:
        return family.plain[slot]
    said, _, name = slot.rpartition("_")
    is_good = said == "good" if said else direction > 0
    return (family.up if is_good else family.down)[name]


def _any_of(phrases: Iterable[str]) -> re.Pattern[str]:
    return re.compile(r"\b(?:" + "|".join(map(re.escape, phrases)) + r")(?!\w)")


def _phrases(side: Literal["up", "down"], hints: tuple[str, ...]) -> list[str]:
    slots = [getattr(family, side) for family in WORDS.values()]
    said = [phrase for slot in slots for phrases in slot.values() for phrase in phrases]
    return [*said, *(text.format("").lower().strip() for text in hints)]


_GOOD = _any_of(_phrases("up", LIKELY))
_BAD = _any_of(_phrases("down", UNLIKELY))
