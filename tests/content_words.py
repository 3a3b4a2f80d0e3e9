"""Which content words two lists of texts have in common: forms of one word count as one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain, product

from trainer.world.grammar import WordFamily

WITHOUT_CONTENT = """
a after all an and are as at be been but by could every for from gets had has have in is it its new no not now of off on
or out over some that the their this to very was were while will with within without yet
"""
FUNCTION_WORDS = frozenset(WITHOUT_CONTENT.split())
IRREGULAR = {
    "beat": "beat", "best": "good", "better": "good", "cut": "cut", "fell": "fall", "found": "find", "gone": "go",
    "grew": "grow", "growing": "grow", "hid": "hide", "leapt": "leap", "lost": "lose", "repaid": "pay", "rose": "rise",
    "sank": "sink", "shrank": "shrink", "slid": "slide", "went": "go", "withdrew": "draw", "won": "win",
    "worse": "bad", "worsened": "bad", "worst": "bad",
}  # fmt: skip


def lemma(word: str) -> str:
    if word in IRREGULAR:
        return IRREGULAR[word]
    stem = re.sub(r"(ies|ied)$", "y", word)
    stem = re.sub(r"(ing|ers|er|ed|es|s|ly)$", "", stem) if len(word) > 4 else stem
    return re.sub(r"([b-df-hj-np-tv-z])\1$", r"\1", stem).removesuffix("e")


def is_same_word(first: str, second: str) -> bool:
    """Forms of one word, and words that only begin alike: rather too many than too few."""
    shared = min(len(first), len(second), 5)
    return first == second or (shared >= 4 and first[:shared] == second[:shared])


def content_words(texts: Iterable[str]) -> set[str]:
    words = re.findall(r"[a-z]+", " ".join(re.sub(r"\{\w*\}|\$[A-Z]+", " ", text) for text in texts).lower())
    return {lemma(word) for word in words if word not in FUNCTION_WORDS}


def in_common(some: Iterable[str], others: Iterable[str]) -> set[tuple[str, str]]:
    pairs = product(content_words(some), content_words(others))
    return {(first, second) for first, second in pairs if is_same_word(first, second)}


def texts_of(family: WordFamily) -> list[str]:
    patterns = family.pointed + family.neutral + family.mixed
    slots = (words for side in (family.plain, family.up, family.down) for words in side.values())
    return [*patterns, *chain.from_iterable(slots)]
