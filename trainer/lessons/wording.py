"""Words of lessons: cleaned, cut, compared, quoted for a prompt, and never taken from what was recalled."""

from __future__ import annotations

import re

from trainer.lesson import LONGEST_CONTENT, LONGEST_TITLE, plain

_WORD = re.compile(r"\w+")


def words_of(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(plain(text)))


def word_overlap(one: str, other: str) -> float:
    """The share of words that both have, of all that either has."""
    first, second = words_of(one), words_of(other)
    return len(first & second) / len(first | second) if first or second else 1.0


def title_of(text: str) -> str:
    return cut(text, LONGEST_TITLE)


def content_of(text: str) -> str:
    return cut(text, LONGEST_CONTENT)


def cut(text: str, most: int) -> str:
    """One line of at most ``most`` characters."""
    line = " ".join(text.replace("\x00", " ").split())
    return line if len(line) <= most else line[: most - 1].rstrip() + "…"
