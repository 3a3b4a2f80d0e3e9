"""Finding lessons: candidates in a scope by Postgres itself, or what an index in memory needs to find them.

Whatever ranks them, ``may_be_shown`` decides here, in one statement at the end: known by then, not retired, not from a
window that waits for a ruling, not from outside without having passed the gate.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from data_bridge.database import Database
from trainer.ledger.lessons import COLUMNS, VectorType, lesson_of, sources_of
from trainer.lesson import Lesson, LessonKind, LessonSource, Scope

if TYPE_CHECKING:
    from trainer.lesson import Vectors

_IN_SCOPE = "l.game = $1 AND (l.role IS NULL OR l.role = $2) AND (l.agent_id IS NULL OR l.agent_id = $3)"
_MAY_BE_SHOWN = """l.retired_at IS NULL AND l.known_at <= $4 AND l.kind = ANY($5)
   AND (l.trust <> 'api' OR l.gated_at IS NOT NULL OR l.lesson_id = ANY({admitted}))
   AND NOT EXISTS (SELECT FROM hindsight.lesson_sources s JOIN hindsight.unruled_windows u USING (window_id)
                    WHERE s.lesson_id = l.lesson_id)"""
# Words as Postgres stems them; one that few lessons of the scope have counts more, and a long text gains nothing.
_SEARCH = """
WITH scoped AS MATERIALIZED (
  SELECT l.lesson_id, l.words, l.embedding FROM hindsight.lessons l
   WHERE {scope} AND {shown} AND l.embedder = $6
), meant AS (
  SELECT lesson_id, 1 - (embedding OPERATOR({schema}.<=>) $7::text::{type}) AS cosine,
         row_number() OVER (ORDER BY embedding OPERATOR({schema}.<=>) $7::text::{type}, lesson_id) AS place
    FROM scoped ORDER BY place LIMIT $9
), asked AS (
  SELECT lexeme, quote_literal(lexeme)::tsquery AS word FROM unnest(to_tsvector('pg_catalog.english', $8))
), hit AS MATERIALIZED (
  SELECT s.lesson_id, a.lexeme, length(s.words) AS long FROM scoped s JOIN asked a ON s.words @@ a.word
), weight AS (
  SELECT lexeme, ln(1 + ((SELECT count(*) FROM scoped) - count(*) + 0.5) / (count(*) + 0.5)) AS rare
    FROM hit GROUP BY lexeme
), said AS (
  SELECT lesson_id, sum(rare) * 2.2 / (1.3 + 0.9 * max(long) / (SELECT avg(length(words)) FROM scoped)) AS words
    FROM hit JOIN weight USING (lexeme) GROUP BY lesson_id
), told AS (
  SELECT lesson_id, words, row_number() OVER (ORDER BY words DESC, lesson_id) AS place FROM said
   ORDER BY place LIMIT $9
)
SELECT lesson_id, meant.place AS meant_place, coalesce(meant.cosine, 0) AS cosine, told.place AS told_place,
       coalesce(told.words, 0)::float8 AS words
  FROM meant FULL JOIN told USING (lesson_id)
"""
_CHANGES = """
SELECT l.lesson_id, l.kind, l.role, l.agent_id, l.known_at, l.retired_at IS NULL AND
       (l.trust <> 'api' OR l.gated_at IS NOT NULL) AS is_open, l.retired_at IS NULL AS is_kept, {packed} AS packed,
       tsvector_to_array(l.words) AS lexemes
  FROM hindsight.lessons l
 WHERE l.game = $1 AND l.embedder = $2 AND l.changed_in >= $3::text::xid8 ORDER BY l.lesson_id
"""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A lesson's places in the two rankings, from 1; None: not among the first."""

    lesson_id: str
    meant_place: int | None
    cosine: float
    told_place: int | None
    words: float


@dataclass(frozen=True, slots=True)
class ChangedLesson:
    """A lesson as an index in memory holds it."""

    lesson_id: str
    kind: str
    role: str | None
    agent_id: str | None
    known_at: datetime
    is_open: bool
    """Neither retired nor waiting for the gate."""
    is_kept: bool
    """Not retired."""
    vector: Vectors
    lexemes: list[str]


async def search_in_scope(
    source: Any,
    kind: VectorType,
    scope: Scope,
    as_of: datetime,
    kinds: Sequence[LessonKind],
    *,
    embedder: str,
    vector: Vectors,
    context: str,
    most: int,
    admitted: Collection[str] = (),
) -> list[Candidate]:
    """Exact, by pgvector and full text, over all lessons of the scope that may be shown.

    ``admitted``, here and below: lessons from outside that may be shown though they wait for the gate.
    """
    shown = _MAY_BE_SHOWN.format(admitted="$10")
    query = _SEARCH.format(scope=_IN_SCOPE, shown=shown, schema=kind.schema, type=kind.sql)
    rows = await source.fetch(
        query,
        *(scope.game, scope.role, scope.agent_id, as_of, [one.value for one in kinds], embedder),
        *(kind.written(vector), context, most, list(admitted)),
    )
    return [Candidate(**row) for row in rows]


async def is_small(source: Any, game: str, most: int) -> bool:
    """Whether at most ``most`` lessons of the game are not retired."""
    counted = "SELECT count(*) FROM (SELECT FROM hindsight.lessons WHERE game = $1 AND retired_at IS NULL LIMIT $2) l"
    return int(await source.fetchval(counted, game, most + 1)) <= most


_UNEMBEDDED = "EXISTS (SELECT FROM hindsight.lessons WHERE game = $1 AND embedder IS NULL AND retired_at IS NULL)"


async def has_unembedded(source: Any, game: str) -> bool:
    """Whether a lesson of the game has no vector yet."""
    return bool(await source.fetchval(f"SELECT {_UNEMBEDDED}", game))


@dataclass(frozen=True, slots=True)
class Horizon:
    """What a search in memory must know first, in one statement."""

    transaction: str
    """Taken before changes are read: what commits in between is read again the next time."""
    has_changes: bool
    has_unembedded: bool
    """Whether a lesson of the game has no vector yet."""
    waiting: frozenset[str]
    """Lessons from windows that wait for a ruling now, of any game."""
    lexemes: tuple[str, ...]
    """The words of the context, as the stored ones are stemmed."""


async def horizon(source: Any, game: str, since: str, context: str) -> Horizon:
    row = await source.fetchrow(
        "SELECT pg_snapshot_xmin(pg_current_snapshot())::text AS transaction,"
        # The newest by its index: with EXISTS a prepared statement reads the whole game to find that nothing changed.
        " coalesce((SELECT changed_in FROM hindsight.lessons WHERE game = $1 ORDER BY changed_in DESC LIMIT 1)"
        " >= $2::text::xid8, false)"
        f" AS has_changes, {_UNEMBEDDED} AS has_unembedded,"
        " coalesce((SELECT array_agg(DISTINCT s.lesson_id) FROM hindsight.lesson_sources s"
        " JOIN hindsight.unruled_windows u USING (window_id)), '{}') AS waiting,"
        " tsvector_to_array(to_tsvector('pg_catalog.english', $3)) AS lexemes",
        *(game, since, context),
    )
    seen = (row["transaction"], row["has_changes"], row["has_unembedded"])
    return Horizon(*seen, frozenset(row["waiting"]), tuple(row["lexemes"]))


async def changes(
    database: Database, kind: VectorType, game: str, embedder: str, since: str
) -> AsyncIterator[ChangedLesson]:
    """The lessons of a game that changed in or after the transaction ``since``, streamed."""
    import numpy as np

    packed = f"{kind.schema}.vector_send(l.embedding)" if kind.has_pgvector else "array_send(l.embedding)"
    async with database.pool.acquire() as connection, connection.transaction(readonly=True):
        async for row in connection.cursor(_CHANGES.format(packed=packed), game, embedder, since, prefetch=2000):
            if kind.has_pgvector:  # two numbers of 16 bits, then the vector
                vector = np.frombuffer(row["packed"], ">f4", offset=4)
            else:  # a header of 20 bytes, then each number after its length
                vector = np.frombuffer(row["packed"], ">f4", offset=20)[1::2]
            yield ChangedLesson(
                row["lesson_id"],
                row["kind"],
                row["role"],
                row["agent_id"],
                row["known_at"],
                row["is_open"],
                row["is_kept"],
                vector.astype(np.float32),
                row["lexemes"],
            )


async def may_be_shown(
    source: Any,
    lesson_ids: Sequence[str],
    scope: Scope,
    as_of: datetime,
    kinds: Sequence[LessonKind],
    admitted: Collection[str] = (),
) -> dict[str, Lesson]:
    """Those of ``lesson_ids`` that may be shown to a decision of ``scope`` at ``as_of``, by id; without sources."""
    # First those that are named: a prepared statement would read the whole game instead.
    rows = await source.fetch(
        "WITH named AS MATERIALIZED (SELECT * FROM hindsight.lessons WHERE lesson_id = ANY($6))"
        f" SELECT {COLUMNS} FROM named l WHERE {_IN_SCOPE} AND {_MAY_BE_SHOWN.format(admitted='$7')}",
        *(scope.game, scope.role, scope.agent_id, as_of, [one.value for one in kinds]),
        *(list(lesson_ids), list(admitted)),
    )
    return {row["lesson_id"]: lesson_of(row) for row in rows}


async def sources_known(source: Any, lesson_ids: Sequence[str], as_of: datetime) -> dict[str, tuple[LessonSource, ...]]:
    """What each lesson rested on at ``as_of``."""
    found = await sources_of(source, lesson_ids) if lesson_ids else {}
    return {name: tuple(one for one in own if one.known_at <= as_of) for name, own in found.items()}


async def any_lessons(
    source: Any,
    scope: Scope,
    as_of: datetime,
    kinds: Sequence[LessonKind],
    *,
    number: int,
    seed: str,
    without: Collection[str] = (),
    admitted: Collection[str] = (),
) -> list[Lesson]:
    """Lessons by chance among those that a decision may be shown: the control beside those that fit it.

    The same ``seed`` gives the same ones. None has a source in the windows ``without``.
    """
    rows = await source.fetch(
        f"SELECT {COLUMNS} FROM hindsight.lessons l WHERE {_IN_SCOPE} AND {_MAY_BE_SHOWN.format(admitted='$9')}"
        " AND NOT EXISTS (SELECT FROM hindsight.lesson_sources s WHERE s.lesson_id = l.lesson_id"
        "   AND s.window_id = ANY($6)) ORDER BY md5($7 || l.lesson_id) LIMIT $8",
        *(scope.game, scope.role, scope.agent_id, as_of, [one.value for one in kinds], list(without), seed, number),
        list(admitted),
    )
    return [lesson_of(row, ()) for row in rows]


async def from_windows(source: Any, lesson_ids: Sequence[str], window_ids: Collection[str]) -> set[str]:
    """Those of ``lesson_ids`` that have a source in one of ``window_ids``, known at whatever time."""
    rows = await source.fetch(
        "SELECT DISTINCT lesson_id FROM hindsight.lesson_sources WHERE lesson_id = ANY($1) AND window_id = ANY($2)",
        *(list(lesson_ids), list(window_ids)),
    )
    return {row["lesson_id"] for row in rows}


@dataclass(frozen=True, slots=True)
class KnownText:
    """A lesson as prompts show it."""

    lesson_id: str
    known_at: datetime


async def lessons_reading(source: Any, game: str, texts: Collection[str]) -> dict[str, KnownText]:
    """The lessons of a game whose shown text is one of ``texts``, by that text; of several the one known first."""
    rows = await source.fetch(
        "SELECT DISTINCT ON (text) title || ': ' || content AS text, lesson_id, known_at FROM hindsight.lessons"
        " WHERE game = $1 AND md5(title || ': ' || content) = ANY($2) ORDER BY text, known_at, lesson_id",
        *(game, [hashlib.md5(text.encode(), usedforsecurity=False).hexdigest() for text in texts]),
    )
    return {row["text"]: KnownText(row["lesson_id"], row["known_at"]) for row in rows}
