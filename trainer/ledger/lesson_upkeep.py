"""What consolidation reads and writes: one transaction a game, one process at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from data_bridge.database import Database
from trainer.ledger.lessons import COLUMNS, VectorType, lesson_of, store_lessons
from trainer.lesson import Lesson, NewLesson

if TYPE_CHECKING:
    from trainer.lesson import Vectors

_MOVE = """
INSERT INTO hindsight.lesson_sources (lesson_id, trajectory_id, agent_id, window_id, verdict_key, agrees, known_at)
SELECT DISTINCT ON (m.into_id, s.trajectory_id) m.into_id, s.trajectory_id, s.agent_id, s.window_id, s.verdict_key,
       s.agrees = m.agrees, s.known_at
  FROM unnest($1::text[], $2::text[], $3::bool[]) AS m(from_id, into_id, agrees)
  JOIN hindsight.lesson_sources s ON s.lesson_id = m.from_id
 ORDER BY m.into_id, s.trajectory_id, s.known_at
    ON CONFLICT (lesson_id, trajectory_id) DO NOTHING
"""
_RETIRE = """
UPDATE hindsight.lessons l SET retired_at = now(), retired_because = r.reason, merged_into = nullif(r.into_id, ''),
       changed_in = pg_current_xact_id()
  FROM unnest($1::text[], $2::text[], $3::text[]) AS r(lesson_id, reason, into_id)
 WHERE l.lesson_id = r.lesson_id AND l.retired_at IS NULL
"""
_COUNTS = """
UPDATE hindsight.lessons l SET support = n.support, contradictions = n.against
  FROM unnest($1::text[], $2::int[], $3::int[]) AS n(lesson_id, support, against) WHERE l.lesson_id = n.lesson_id
"""


@dataclass(frozen=True, slots=True)
class HeldLesson:
    """A lesson with its vector, as consolidation compares it."""

    lesson: Lesson
    vector: Vectors
    is_new: bool
    """Not compared with the others yet."""


@dataclass(frozen=True, slots=True)
class Merge:
    """A lesson that another one replaces. ``agrees`` False: it speaks against it."""

    from_id: str
    into_id: str
    agrees: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Retirement:
    lesson_id: str
    reason: str


async def games_with_lessons(source: Any) -> list[str]:
    rows = await source.fetch("SELECT DISTINCT game FROM hindsight.lessons ORDER BY game")
    return [row["game"] for row in rows]


async def has_new_lessons(source: Any, game: str) -> bool:
    """Whether a lesson of the game was not compared with the others yet."""
    query = (
        "SELECT EXISTS (SELECT FROM hindsight.lessons WHERE game = $1 AND consolidated_at IS NULL"
        " AND retired_at IS NULL)"
    )
    return bool(await source.fetchval(query, game))


@asynccontextmanager
async def consolidating(database: Database, game: str) -> AsyncIterator[Any]:
    """A transaction in which no other process consolidates the game."""
    async with database.pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(hashtext('hindsight.lessons ' || $1))", game)
        yield connection


async def held_lessons(connection: Any, kind: VectorType, game: str, embedder: str) -> list[HeldLesson]:
    """All lessons of a game that are not retired and embedded by this model; the oldest first."""
    import numpy as np

    packed = f"{kind.schema}.vector_send(l.embedding)" if kind.has_pgvector else "array_send(l.embedding)"
    found = []
    async for row in connection.cursor(
        f"SELECT {COLUMNS}, l.consolidated_at IS NULL AS is_new, {packed} AS packed FROM hindsight.lessons l"
        " WHERE l.game = $1 AND l.embedder = $2 AND l.retired_at IS NULL ORDER BY l.known_at, l.lesson_id",
        *(game, embedder),
        prefetch=2000,
    ):
        if kind.has_pgvector:
            vector = np.frombuffer(row["packed"], ">f4", offset=4)
        else:
            vector = np.frombuffer(row["packed"], ">f4", offset=20)[1::2]
        found.append(HeldLesson(lesson_of(row), vector.astype(np.float32), row["is_new"]))
    return found


async def make_rules(
    connection: Any, kind: VectorType, rules: Sequence[NewLesson], vectors: Vectors, embedder: str
) -> None:
    if rules:
        await store_lessons(connection, kind, rules, vectors, embedder)


async def merge(connection: Any, merges: Sequence[Merge]) -> None:
    """Move the sources, then retire what was merged."""
    if not merges:
        return
    from_ids, into_ids = [one.from_id for one in merges], [one.into_id for one in merges]
    await connection.execute(_MOVE, from_ids, into_ids, [one.agrees for one in merges])
    await connection.execute(_RETIRE, from_ids, [one.reason for one in merges], into_ids)


async def set_counts(connection: Any, counts: Sequence[tuple[str, int, int]]) -> None:
    """Support and contradictions of rules."""
    if counts:
        names, support, against = zip(*counts, strict=True)
        await connection.execute(_COUNTS, list(names), list(support), list(against))


async def retire_all(connection: Any, retired: Sequence[Retirement]) -> None:
    if retired:
        names, reasons = [one.lesson_id for one in retired], [one.reason for one in retired]
        await connection.execute(_RETIRE, names, reasons, [""] * len(names))


async def mark_compared(connection: Any, lesson_ids: Sequence[str]) -> None:
    if lesson_ids:
        await connection.execute(
            "UPDATE hindsight.lessons SET consolidated_at = now() WHERE lesson_id = ANY($1)"
            " AND consolidated_at IS NULL",
            list(lesson_ids),
        )


async def purge(connection: Any, game: str, older_than: timedelta) -> int:
    """Delete what was retired long ago."""
    status = await connection.execute(
        "DELETE FROM hindsight.lessons WHERE game = $1 AND retired_at < now() - $2::interval", game, older_than
    )
    return int(status.rpartition(" ")[2])
