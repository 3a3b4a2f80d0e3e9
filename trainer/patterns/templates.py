"""Texts that differ only in names and numbers, as one template: the Drain algorithm, for some thousand short texts.

Drain3 does the same, but pins cachetools 4.2.1, and weave, which ART needs, wants 6.2.4 or newer: the two cannot be
installed together. What is needed of it is little: no file, no stream, no tree of many levels.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

ANY = "<*>"
SIMILAR = 0.6
"""The share of words that a text must have in common with a template to be of it."""
MOST_TEMPLATES = 2_000

_MASKED = re.compile(
    r"""\$[A-Za-z][\w.]*            # a ticker
      | "[^"]*" | '[^']*' | `[^`]*`  # a quotation
      | \b[0-9a-f]{8}[0-9a-f-]*\b    # an id
      | [-+]?\$?\d[\d.,:%]*          # a number, an amount, a time
    """,
    re.VERBOSE,
)


class Templates:
    """Learns templates in the order in which texts come: the same texts in the same order give the same ones."""

    def __init__(self) -> None:
        self._by_shape: dict[tuple[int, str], list[list[str]]] = {}
        self._number = 0

    def add(self, text: str) -> list[str] | None:
        """The template of ``text``, which later texts may make more general; None if there are too many."""
        words = _MASKED.sub(ANY, text).split()
        if not words:
            return None
        # Texts of one template have equal lengths and begin alike, as in Drain's tree.
        alike = self._by_shape.setdefault((len(words), words[0]), [])
        best = max(alike, key=lambda template: _common(template, words), default=None)
        if best is not None and _common(best, words) >= SIMILAR * len(words):
            for place, word in enumerate(words):
                if best[place] != word:
                    best[place] = ANY
            return best
        if self._number >= MOST_TEMPLATES:
            return None
        self._number += 1
        alike.append(words)
        return words


def _common(template: Sequence[str], words: Sequence[str]) -> int:
    """Equal words; a place that is already general counts as none, so that a template does not swallow everything."""
    return sum(one == other for one, other in zip(template, words, strict=True) if other != ANY or one == ANY)
