"""Words of lessons: made safe, cut, compared, and never taken from what was recalled.

A lesson's text ends up in an agent's prompt, whoever wrote it. So it is one line without invisible characters, and
without characters that could close a tag or start a turn there.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from trainer.lesson import LONGEST_CONTENT, LONGEST_TITLE, plain

_WORD = re.compile(r"\w+")
_SENTENCE = re.compile(r"(?<=[.!?;])\s+")
_STRUCTURE = str.maketrans({"<": "(", ">": ")", "`": "'", "{": "(", "}": ")", "|": "/"})
_TEMPLATE = re.compile(r"\[(/?[A-Z_]{3,})\]")
_RECALLED = 0.8
"""Share of a sentence's words in a lesson that was shown from which it is taken for recalled."""
_FEW_WORDS = 4
"""A shorter sentence says too little to be told from chance."""


def safe(text: str) -> str:
    """``text`` as one line that is read as words and nothing else."""
    shown = (character if character.isprintable() else " " for character in unicodedata.normalize("NFKC", text))
    line = " ".join("".join(shown).split())
    return _TEMPLATE.sub(r"(\1)", line.translate(_STRUCTURE))


def title_of(text: str) -> str:
    return cut(safe(text), LONGEST_TITLE)


def content_of(text: str) -> str:
    return cut(safe(text), LONGEST_CONTENT)


def quoted(text: str) -> str:
    """A text from outside as somebody's words, not ours."""
    return '"' + content_of(text).replace('"', "'") + '"'


def cut(line: str, most: int) -> str:
    return line if len(line) <= most else line[: most - 1].rstrip() + "…"


def words_of(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(plain(text)))


def shared(one: frozenset[str], other: frozenset[str]) -> float:
    """The share of words that both have, of all that either has."""
    return len(one & other) / len(one | other) if one or other else 1.0


def without_recalled(text: str, recalled: Sequence[str]) -> str:
    """``text`` without the sentences that repeat a lesson which was shown: they are no news."""
    if not recalled:
        return text
    shown = [words_of(one) for one in recalled]

    def is_recalled(sentence: str) -> bool:
        own = words_of(sentence)
        return len(own) >= _FEW_WORDS and any(len(own & one) >= _RECALLED * len(own) for one in shown)

    return " ".join(sentence for sentence in _SENTENCE.split(text) if not is_recalled(sentence))
