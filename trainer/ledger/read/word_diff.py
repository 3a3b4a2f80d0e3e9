"""What changed between two texts, word by word, for people. difflib compares; this only cuts into words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

_WORDS = re.compile(r"\s+|[^\s\w]|\w+")


@dataclass(frozen=True, slots=True)
class DiffPart:
    change: Literal["same", "removed", "added"]
    text: str


def word_diff(before: str, after: str) -> list[DiffPart]:
    """The parts in the order of reading: without the added ones they are ``before``, without the removed ``after``."""
    old, new = _WORDS.findall(before), _WORDS.findall(after)
    parts: list[DiffPart] = []
    for tag, start, end, other_start, other_end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            parts.append(DiffPart("same", "".join(old[start:end])))
            continue
        if start < end:
            parts.append(DiffPart("removed", "".join(old[start:end])))
        if other_start < other_end:
            parts.append(DiffPart("added", "".join(new[other_start:other_end])))
    return parts
