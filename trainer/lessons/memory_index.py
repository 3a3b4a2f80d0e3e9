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


class MemoryIndex:
    """The lessons of one game, embedded by one model."""

    def __init__(self, dimensions: int, room: int = 1024) -> None:
        self._vectors = np.zeros((room, dimensions), np.float32)
        self._known = np.zeros(room, np.int64)
        self._roles = np.full(room, _ANYBODY, np.int32)
        self._agents = np.full(room, _ANYBODY, np.int32)
        self._kinds = np.zeros(room, np.int8)
        self._lengths = np.zeros(room, np.int32)
        self._open = np.zeros(room, np.bool_)
        self._ids: list[str] = []
        self._places: dict[str, int] = {}
        self._names: dict[str, int] = {}
        self._postings: dict[str, array[int]] = {}
        self.heard = "0"
        """The transaction up to which it has heard of changes."""

    def __len__(self) -> int:
        return len(self._ids)

    def update(self, changed: ChangedLesson) -> None:
        """Add a lesson, or hear whether it may still be shown; its words never change."""
        place = self._places.get(changed.lesson_id)
        if place is None:
            place = self._add(changed)
        self._open[place] = changed.is_open
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
        self._lengths, self._open = doubled(self._lengths), doubled(self._open)

    def _number(self, what: str, name: str | None) -> int:
        return _ANYBODY if name is None else self._names.setdefault(f"{what} {name}", len(self._names))

    def search(self, asked: Sequence[IndexQuery]) -> list[list[Candidate]]:
        """For each query the first of both rankings, among those in scope and known at its time.

        Together, since reading all vectors takes most of the time: they are read once for all queries.
        """
        number = len(self._ids)
        if number == 0:
            return [[] for _ in asked]
        products = self._vectors[:number] @ np.stack([one.vector for one in asked], axis=1)
        return [self._search(one, products[:, place]) for place, one in enumerate(asked)]

    def _search(self, asked: IndexQuery, products: Any) -> list[Candidate]:
        number, scope = len(products), asked.scope
        fits = self._open[:number] & (self._known[:number] <= _microseconds(asked.as_of))
        for values, what, name in ((self._roles, "role", scope.role), (self._agents, "agent", scope.agent_id)):
            own = self._names.get(f"{what} {name}", _ANYBODY)
            fits &= (values[:number] == _ANYBODY) | (values[:number] == own)
        if len(asked.kinds) < len(ALL_KINDS):
            fits &= np.isin(self._kinds[:number], [ALL_KINDS.index(kind) for kind in asked.kinds])
        for name in asked.without:
            if (place := self._places.get(name)) is not None and place < number:
                fits[place] = False
        if not fits.any():
            return []
        cosines = np.where(fits, products, -np.inf)
        words = self._words(asked.lexemes, fits)
        meant = {place: rank for rank, place in enumerate(_first(cosines, asked.most), 1)}
        told = {place: rank for rank, place in enumerate(_first(words, asked.most), 1) if words[place] > 0}
        return [
            Candidate(self._ids[p], meant.get(p), float(cosines[p]), told.get(p), max(0.0, float(words[p])))
            for p in {**meant, **told}
        ]

    def _words(self, lexemes: Sequence[str], fits: Any) -> Any:
        number = int(fits.sum())
        found = np.zeros(len(fits), np.float32)
        for lexeme in lexemes:
            if (posting := self._postings.get(lexeme)) is None:
                continue
            places = np.array(posting, np.int64)
            places = places[places < len(fits)]
            places = places[fits[places]]
            if len(places):
                found[places] += np.float32(np.log1p((number - len(places) + 0.5) / (len(places) + 0.5)))
        lengths = self._lengths[: len(fits)]
        found *= (_K1 + 1) / (1 + _K1 * (1 - _B + _B * lengths / max(1e-9, float(lengths[fits].mean()))))
        found[~fits] = -np.inf
        return found


def _first(values: Any, most: int) -> list[int]:
    """The places of the largest values, the largest first; of equal ones the first comes first."""
    finite = int(np.isfinite(values).sum())
    most = min(most, finite)
    if most == 0:
        return []
    chosen = np.argpartition(-values, most - 1)[:most]
    return [int(place) for place in chosen[np.lexsort((chosen, -values[chosen]))]]


def _microseconds(moment: datetime) -> int:
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
