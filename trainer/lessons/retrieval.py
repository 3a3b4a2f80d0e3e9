"""Looks lessons up: in scope, by meaning and by words, both rankings fused, near copies removed.

Small games are searched by Postgres (pgvector, full text), larger ones and databases without pgvector in memory. Both
are exact: behind a filter by scope an approximate index returns too few.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime

from data_bridge.database import Database
from data_bridge.errors import ConfigurationError
from trainer.ledger.lesson_search import (
    Candidate,
    changes,
    has_unembedded,
    horizon,
    is_small,
    may_be_shown,
    search_in_scope,
)
from trainer.ledger.lessons import StoredLesson, VectorType, set_vectors, store_lessons, unembedded, vector_type
from trainer.ledger.verdicts import Together
from trainer.lesson import ALL_KINDS, Embedder, FoundLesson, LessonKind, NewLesson, Scope
from trainer.lessons.memory_index import IndexQuery, MemoryIndex
from trainer.lessons.wording import word_overlap

IN_POSTGRES = 2_000
"""Lessons of a game up to which Postgres compares them itself."""
_DEPTH = 50
"""Places of each ranking that are fused."""
_FUSION = 10
"""Of reciprocal rank fusion: how much the first places count more than the next."""
_COPY = 0.9
"""Share of common words from which two lessons say the same."""
MOST_FOUND = 50
_EMBEDDED_AT_ONCE = 256


class Lessons:
    """The lessons of a database. Safe to use from many tasks at once. Implements ``Recall``."""

    def __init__(
        self, database: Database, kind: VectorType, embedder: Embedder, *, in_postgres: int = IN_POSTGRES
    ) -> None:
        """``in_postgres`` -1: always in memory."""
        self.database, self.kind, self.embedder = database, kind, embedder
        self._in_postgres = in_postgres if kind.has_pgvector else -1
        self._indexes: dict[str, MemoryIndex] = {}
        self._searches: dict[str, Together[IndexQuery, list[Candidate]]] = {}
        self._updating, self._embedding = asyncio.Lock(), asyncio.Lock()

    async def store(self, lessons: Sequence[NewLesson]) -> list[StoredLesson]:
        """Store lessons, each once; returns them in order."""
        if not lessons:
            return []
        texts = {one.text: None for one in lessons}
        places = {text: place for place, text in enumerate(texts)}
        vectors = (await self.embedder.embed(list(texts)))[[places[one.text] for one in lessons]]
        async with self.database.pool.acquire() as connection, connection.transaction():
            return await store_lessons(connection, self.kind, lessons, vectors, self.embedder.name)

    async def embed_waiting(self, game: str | None = None, *, again: bool = False) -> int:
        """Embed the lessons that have no vector; with ``again`` also those of another model. Returns their number.

        Two processes that do so at once write the same vectors.
        """
        number = 0
        async with self._embedding:
            while True:
                other = self.embedder.name if again else None
                waiting = await unembedded(self.database.pool, game, _EMBEDDED_AT_ONCE, other_than=other)
                if not waiting:
                    return number
                vectors = await self.embedder.embed([one.text for one in waiting])
                names = [one.lesson_id for one in waiting]
                await set_vectors(self.database.pool, self.kind, names, vectors, self.embedder.name)
                number += len(waiting)

    async def retrieve(
        self,
        context: str,
        scope: Scope,
        *,
        as_of: datetime,
        k: int = 3,
        kinds: Sequence[LessonKind] = ALL_KINDS,
    ) -> list[FoundLesson]:
        """See ``trainer.lesson.Recall``. ValueError for an ``as_of`` without a time zone."""
        if as_of.tzinfo is None:
            raise ValueError(f"{as_of} has no time zone: pass an aware moment of the game's clock.")
        if k <= 0 or not kinds:
            return []
        context, k = context.replace("\x00", " "), min(k, MOST_FOUND)
        (vector,) = await self.embedder.embed([context])
        most = max(_DEPTH, 3 * k)
        pool, name = self.database.pool, self.embedder.name
        if await has_unembedded(pool, scope.game):
            await self.embed_waiting(scope.game)
        if scope.game not in self._indexes and await is_small(pool, scope.game, self._in_postgres):
            asked = {"embedder": name, "vector": vector, "context": context, "most": most}
            found = await search_in_scope(pool, self.kind, scope, as_of, kinds, **asked)
        else:
            index = self._indexes.setdefault(scope.game, MemoryIndex(self.embedder.dimensions))
            seen = await horizon(pool, scope.game, name, index.heard, context)
            if seen.has_changes:
                await self._refresh(scope.game, index, seen.transaction)
            found = await self._searching(scope.game, index).ask(
                IndexQuery(vector, seen.lexemes, scope, as_of, kinds, seen.waiting, most)
            )
        ranked = fused(found)
        shown = await may_be_shown(pool, [one.lesson_id for one, _ in ranked], scope, as_of, kinds)
        best = [
            FoundLesson(lesson, score, one.cosine, one.words)
            for one, score in ranked
            if (lesson := shown.get(one.lesson_id)) is not None
        ]
        return without_copies(best, k)

    def _searching(self, game: str, index: MemoryIndex) -> Together[IndexQuery, list[Candidate]]:
        """Queries that come while one is searched for are searched for together."""

        async def search(asked: list[IndexQuery]) -> list[list[Candidate]]:
            async with self._updating:
                return await asyncio.to_thread(index.search, asked)

        return self._searches.setdefault(game, Together(search))

    async def _refresh(self, game: str, index: MemoryIndex, heard: str) -> None:
        async with self._updating:
            # Not if they are equal: while an older transaction is open, all horizons are the same.
            if int(index.heard) > int(heard):
                return  # another task did while we waited, and saw what we saw
            async for changed in changes(self.database, self.kind, game, self.embedder.name, index.heard):
                if len(changed.vector) != self.embedder.dimensions:
                    raise ConfigurationError(
                        f"Lessons of {game!r} have vectors of {len(changed.vector)} numbers and "
                        f"{self.embedder.name!r} gives {self.embedder.dimensions}: use the model they were stored with."
                    )
                index.update(changed)
            index.heard = heard


async def open_lessons_of(database: Database, embedder: Embedder, *, in_postgres: int = IN_POSTGRES) -> Lessons:
    return Lessons(database, await vector_type(database.pool), embedder, in_postgres=in_postgres)


def fused(candidates: Sequence[Candidate]) -> list[tuple[Candidate, float]]:
    """Both rankings as one, by reciprocal rank; the best first."""

    def score(one: Candidate) -> float:
        return sum(1 / (_FUSION + place) for place in (one.meant_place, one.told_place) if place is not None)

    return sorted(((one, score(one)) for one in candidates), key=lambda pair: (-pair[1], pair[0].lesson_id))


def without_copies(found: Sequence[FoundLesson], k: int) -> list[FoundLesson]:
    """The first ``k`` of which none says the same as one before it."""
    kept: list[FoundLesson] = []
    for one in found:
        if all(word_overlap(one.lesson.shown, other.lesson.shown) < _COPY for other in kept):
            kept.append(one)
        if len(kept) == k:
            break
    return kept
