"""How the sentences of a simulated world are written, and read as a careful reader does.

A sentence points up (good news), points down (bad news), or points nowhere: because it says nothing of value (neutral),
or something good and something bad (mixed). A family of words has thousands of each. Good and bad ones use the same
patterns, so only the words say which way a sentence points. A world has two families without a common content word:
agents play with the trained one, questions are also asked in the unseen one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Literal

from trainer.world.chance import pick, unit

FamilyName = Literal["trained", "unseen"]
Slots = Mapping[str, tuple[str, ...]]

_MIXED_SHARE = 1 / 3
"""Of the sentences that point nowhere."""
_NUMBERS = range(3, 60)


@dataclass(frozen=True, slots=True)
class WordFamily:
    """One family. A pattern has slots in braces; ``{number}`` and the sentence's subject are filled from outside."""

    pointed: tuple[str, ...]
    """Patterns of sentences that point up or down."""
    neutral: tuple[str, ...]
    """Patterns of sentences that point nowhere."""
    mixed: tuple[str, ...]
    """Patterns of sentences with something good and something bad, of equal weight, in slots that say which."""
    plain: Slots
    """Words that point nowhere."""
    up: Slots
    down: Slots


def sentence(family: WordFamily, direction: int, subject: Mapping[str, str], *key: object) -> str:
    """A sentence that points up (+1), down (-1) or nowhere (0), with the slots of ``subject`` as they are there."""
    pointless = family.mixed if unit(*key, "mixed") < _MIXED_SHARE else family.neutral
    patterns = family.pointed if direction else pointless
    text = _filled(pick(patterns, *key, "pattern"), family, subject, direction, key)
    return text[0].upper() + text[1:]


def _filled(
    pattern: str, family: WordFamily, subject: Mapping[str, str], direction: int, key: tuple[object, ...]
) -> str:
    """``pattern`` with its slots filled, by a draw for each."""
    pieces: list[str] = []
    for place, (text, slot, _, _) in enumerate(Formatter().parse(pattern)):
        pieces.append(text)
        if slot is None:
            continue
        if slot in subject:
            pieces.append(subject[slot])
        elif slot == "number":
            pieces.append(str(pick(_NUMBERS, *key, place)))
        else:
            pieces.append(pick(_choices(slot, family, direction), *key, place))
    return "".join(pieces)


def _choices(slot: str, family: WordFamily, direction: int) -> tuple[str, ...]:
    if slot in family.plain:
        return family.plain[slot]
    said, _, name = slot.rpartition("_")
    is_good = said == "good" if said else direction > 0
    return (family.up if is_good else family.down)[name]


@dataclass(frozen=True, slots=True)
class SentenceReader:
    """Reads sentences as somebody who knows all words of a world."""

    good: re.Pattern[str]
    bad: re.Pattern[str]

    @classmethod
    def of(cls, families: Iterable[WordFamily], good: Iterable[str] = (), bad: Iterable[str] = ()) -> SentenceReader:
        """Of the words of ``families``, and phrases of its own."""
        known = list(families)
        return cls(
            _any_of([*_phrases(family.up for family in known), *good]),
            _any_of([*_phrases(family.down for family in known), *bad]),
        )

    def direction(self, text: str, subject: str) -> int:
        """What ``text`` says about ``subject``: something good (+1), something bad (-1), or nothing (0)."""
        if subject not in text:
            return 0
        said = text.replace(subject, "").lower()
        return bool(self.good.search(said)) - bool(self.bad.search(said))


def _any_of(phrases: Iterable[str]) -> re.Pattern[str]:
    return re.compile(r"\b(?:" + "|".join(map(re.escape, phrases)) + r")(?!\w)")


def _phrases(sides: Iterable[Slots]) -> list[str]:
    return [phrase for slots in sides for phrases in slots.values() for phrase in phrases]
