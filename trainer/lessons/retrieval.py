"""Looks lessons up: in scope, by meaning and by words, both rankings fused, near copies removed.

Small games are searched by Postgres (pgvector, full text), larger ones and databases without pgvector in memory. Both
are exact: behind a filter by scope an approximate index returns too few.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from data_bridge.database import Database
from data_bridge.errors import ConfigurationError
from trainer.ledger.lesson_search import (
    Candidate,
    Horizon,
    changes,
    has_unembedded,
    horizon,
    is_small,
    may_be_shown,
    search_in_scope,
    sources_known,
)
from trainer.ledger.lessons import StoredLesson, VectorType, set_vectors, store_lessons, unembedded, vector_type
from trainer.ledger.verdicts import Together
from trainer.lesson import ALL_KINDS, Embedder, FoundLesson, LessonKind, NewLesson, Recall, Scope
from trainer.lessons.memory_index import IndexQuery, MemoryIndex
from trainer.lessons.wording import shared, words_of

if TYPE_CHECKING:
    from trainer.lesson import Vectors

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
        return await self._retrieve(context, scope, as_of, k, kinds, ())

    def admitting(self, lesson_ids: Collection[str]) -> Recall:
        """These lessons, with others from outside as if they had passed the gate: for the evaluation that decides."""
        return _Admitting(self, frozenset(lesson_ids))

    async def _retrieve(
        self,
        context: str,
        scope: Scope,
        as_of: datetime,
        k: int,
        kinds: Sequence[LessonKind],
        admitted: Collection[str],
    ) -> list[FoundLesson]:
        if as_of.tzinfo is None:
            raise ValueError(f"{as_of} has no time zone: pass an aware moment of the game's clock.")
        if k <= 0 or not kinds:
            return []
        context, k = context.replace("\x00", " "), min(k, MOST_FOUND)
        most = max(_DEPTH, 3 * k)
        if scope.game not in self._indexes and await self._is_small(scope.game):
            (vector,) = await self.embedder.embed([context])
            asked = {"embedder": self.embedder.name, "vector": vector, "context": context, "most": most}
            pool = self.database.pool
            found = await search_in_scope(pool, self.kind, scope, as_of, kinds, **asked, admitted=admitted)
        else:
            vector, index, seen = await self._looked(context, scope.game)
            found = await self._searching(scope.game, index).ask(
                IndexQuery(vector, seen.lexemes, scope, as_of, kinds, seen.waiting, most, admitted)
            )
        return await self._shown(fused(found), scope, as_of, k, kinds, admitted)

    async def _is_small(self, game: str) -> bool:
        """Whether Postgres compares them itself; all have a vector then."""
        if await has_unembedded(self.database.pool, game):
            await self.embed_waiting(game)
        return await is_small(self.database.pool, game, self._in_postgres)

    async def _looked(self, context: str, game: str) -> tuple[Vectors, MemoryIndex, Horizon]:
        """The vector of ``context``, and meanwhile the index of a game as it is now."""

        async def current() -> Horizon:
            heard = self._indexes[game].heard if game in self._indexes else "0"
            return await horizon(self.database.pool, game, heard, context)

        (vector,), seen = await asyncio.gather(self.embedder.embed([context]), current())
        if seen.has_unembedded:
            await self.embed_waiting(game)
            seen = await current()
        # Not before the first text was embedded: only then an endpoint's dimensions are known.
        index = self._indexes.setdefault(game, MemoryIndex(self.embedder.dimensions))
        if seen.has_changes:
            await self._refresh(game, index, seen.transaction)
        return vector, index, seen

    async def _shown(
        self,
        ranked: Sequence[tuple[Candidate, float]],
        scope: Scope,
        as_of: datetime,
        k: int,
        kinds: Sequence[LessonKind],
        admitted: Collection[str],
    ) -> list[FoundLesson]:
        """The first ``k`` that may be shown and of which none says the same as one before it."""
        pool, kept, step = self.database.pool, _Different(k), k + _DEPTH // 2
        for start in range(0, len(ranked), step):
            part = ranked[start : start + step]
            shown = await may_be_shown(pool, [one.lesson_id for one, _ in part], scope, as_of, kinds, admitted)
            for one, score in part:
                if (lesson := shown.get(one.lesson_id)) is not None:
                    kept.add(FoundLesson(lesson, score, one.cosine, one.words))
            if kept.is_full:
                break
        sources = await sources_known(pool, [one.lesson.lesson_id for one in kept.found], as_of)
        return [replace(one, lesson=replace(one.lesson, sources=sources[one.lesson.lesson_id])) for one in kept.found]

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


@dataclass(frozen=True, slots=True)
class _Admitting:
    """Implements ``Recall``."""

    lessons: Lessons
    admitted: frozenset[str]

    async def retrieve(
        self,
        context: str,
        scope: Scope,
        *,
        as_of: datetime,
        k: int = 3,
        kinds: Sequence[LessonKind] = ALL_KINDS,
    ) -> list[FoundLesson]:
        return await self.lessons._retrieve(context, scope, as_of, k, kinds, self.admitted)


async def open_lessons_of(database: Database, embedder: Embedder, *, in_postgres: int = IN_POSTGRES) -> Lessons:
    return Lessons(database, await vector_type(database.pool), embedder, in_postgres=in_postgres)


def fused(candidates: Sequence[Candidate]) -> list[tuple[Candidate, float]]:
    """Both rankings as one, by reciprocal rank; the best first."""

    def score(one: Candidate) -> float:
        return sum(1 / (_FUSION + place) for place in (one.meant_place, one.told_place) if place is not None)

    return sorted(((one, score(one)) for one in candidates), key=lambda pair: (-pair[1], pair[0].lesson_id))


class _Different:
    """Lessons, at most ``most``, of which none says the same as one before it."""

    def __init__(self, most: int) -> None:
        self.found: list[FoundLesson] = []
        self._most, self._words = most, list[frozenset[str]]()

    @property
    def is_full(self) -> bool:
        return len(self.found) == self._most

    def add(self, one: FoundLesson) -> None:
        if self.is_full:
            return
        words = words_of(one.lesson.shown)
        if all(shared(words, other) < _COPY for other in self._words):
            self.found.append(one)
            self._words.append(words)
