"""A game's lessons in memory: exact search over a hundred thousand within a fraction of the time a decision has.

It only ranks; what may be shown is decided by the ledger afterwards. It ranks among lessons that were known in time
alone, so that the number of later ones, or their words, changes nothing either.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer.ledger.lesson_search import Candidate, ChangedLesson
from trainer.lesson import ALL_KINDS, LessonKind, Scope
from trainer.lessons.nearest import HeadSearch, Nearness, first_of

if TYPE_CHECKING:
    from trainer.lesson import Vectors

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ANYBODY = -1
_K1, _B = 1.2, 0.75
"""Of BM25, with every word of a lesson counted once."""


@dataclass(frozen=True, slots=True)
class IndexQuery:
    """What is looked for in memory."""

    vector: Vectors
    lexemes: Sequence[str]
    scope: Scope
    as_of: datetime
    kinds: Sequence[LessonKind]
    without: Collection[str]
    """Lessons that wait for a ruling."""
    most: int
    admitted: Collection[str] = ()
    """Lessons from outside that may be shown though they wait for the gate."""


class MemoryIndex:
    """The lessons of one game, embedded by one model."""

    def __init__(self, dimensions: int, room: int = 1024) -> None:
        self._vectors = np.zeros((room, dimensions), np.float32)
        self._known = np.zeros(room, np.int64)
        self._roles = np.full(room, _ANYBODY, np.int32)
        self._agents = np.full(room, _ANYBODY, np.int32)
        self._kinds = np.zeros(room, np.int8)
        self._lengths = np.zeros(room, np.float32)
        self._open = np.zeros(room, np.bool_)
        self._kept = np.zeros(room, np.bool_)
        self._ids: list[str] = []
        self._places: dict[str, int] = {}
        self._names: dict[str, int] = {}
        self._postings: dict[str, array[int]] = {}
        self._nearness = HeadSearch(dimensions)
        self.heard = "0"
        """The transaction up to which it has heard of changes."""

    def __len__(self) -> int:
        return len(self._ids)

    def update(self, changed: ChangedLesson) -> None:
        """Add a lesson, or hear whether it may still be shown; its words never change."""
        place = self._places.get(changed.lesson_id)
        if place is None:
            place = self._add(changed)
        self._open[place], self._kept[place] = changed.is_open, changed.is_kept
        self._known[place] = _microseconds(changed.known_at)

    def _add(self, new: ChangedLesson) -> int:
        place = len(self._ids)
        if place == len(self._known):
            self._grow()
        self._ids.append(new.lesson_id)
        self._places[new.lesson_id] = place
        self._vectors[place] = new.vector
        self._roles[place] = self._number("role", new.role)
        self._agents[place] = self._number("agent", new.agent_id)
        self._kinds[place] = ALL_KINDS.index(LessonKind(new.kind))
        self._lengths[place] = len(new.lexemes)
        for lexeme in new.lexemes:
            self._postings.setdefault(lexeme, array("I")).append(place)
        return place

    def _grow(self) -> None:
        def doubled(values: Any) -> Any:
            return np.concatenate([values, np.zeros_like(values)])

        self._vectors, self._known, self._roles = doubled(self._vectors), doubled(self._known), doubled(self._roles)
        self._agents, self._kinds = doubled(self._agents), doubled(self._kinds)
        self._lengths, self._open, self._kept = doubled(self._lengths), doubled(self._open), doubled(self._kept)

    def _number(self, what: str, name: str | None) -> int:
        return _ANYBODY if name is None else self._names.setdefault(f"{what} {name}", len(self._names))

    def search(self, asked: Sequence[IndexQuery]) -> list[list[Candidate]]:
        """For each query the first of both rankings, among those in scope and known at its time.

        Together, since reading vectors takes most of the time: they are read once for all queries.
        """
        if not self._ids:
            return [[] for _ in asked]
        meanings = self._nearness.of(self._vectors[: len(self._ids)], [one.vector for one in asked])
        return [self._search(one, meaning) for one, meaning in zip(asked, meanings, strict=True)]

    def _search(self, asked: IndexQuery, meaning: Nearness) -> list[Candidate]:
        fits = self._fitting(asked)
        if not fits.any():
            return []
        words = self._words(asked.lexemes, fits)
        told = {place: rank for rank, place in enumerate(first_of(words, asked.most, above=0.0), 1)}
        meant, cosines = meaning.nearest(fits, asked.most, also=list(told))
        return [
            Candidate(self._ids[p], meant.get(p), cosines[p], told.get(p), max(0.0, float(words[p])))
            for p in {**meant, **told}
        ]

    def _fitting(self, asked: IndexQuery) -> Any:
        """Which lessons may be shown."""
        number, scope = len(self._ids), asked.scope
        fits = self._open[:number].copy()
        for place in self._among(asked.admitted):
            fits[place] = self._kept[place]
        fits &= self._known[:number] <= _microseconds(asked.as_of)
        for values, what, name in ((self._roles, "role", scope.role), (self._agents, "agent", scope.agent_id)):
            own = self._names.get(f"{what} {name}", _ANYBODY)
            fits &= (values[:number] == _ANYBODY) | (values[:number] == own)
        if len(asked.kinds) < len(ALL_KINDS):
            fits &= np.isin(self._kinds[:number], [ALL_KINDS.index(kind) for kind in asked.kinds])
        for place in self._among(asked.without):
            fits[place] = False
        return fits

    def _among(self, names: Collection[str]) -> list[int]:
        """The places of these lessons, of those that are here."""
        return [place for name in names if (place := self._places.get(name)) is not None]

    def _words(self, lexemes: Sequence[str], fits: Any) -> Any:
        """BM25 of every lesson; 0 for those that do not fit."""
        number = int(np.count_nonzero(fits))
        found = np.zeros(len(fits), np.float32)
        for lexeme in lexemes:
            if (posting := self._postings.get(lexeme)) is None:
                continue
            places = np.frombuffer(posting, np.uint32).astype(np.intp)
            if having := int(np.count_nonzero(fits[places])):
                found[places] += np.float32(np.log1p((number - having + 0.5) / (having + 0.5)))
        lengths = self._lengths[: len(fits)]
        mean = max(1e-9, float(lengths.sum(where=fits, dtype=np.float64)) / number)
        found *= (_K1 + 1) / (1 + _K1 * (1 - _B + _B / mean * lengths))
        found *= fits
        return found


def _microseconds(moment: datetime) -> int:
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
