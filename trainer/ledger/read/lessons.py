"""Lessons for people: a page at a time, by words, kind and state, with sources and usefulness."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from data_bridge.database import Database
from trainer.ledger.lessons import COLUMNS, lesson_of, sources_of
from trainer.lesson import Lesson

_LIST = f"""
SELECT {COLUMNS} FROM hindsight.lessons l
 WHERE ($1::text IS NULL OR l.game = $1) AND ($2::text IS NULL OR l.kind = $2)
   AND ($3::text IS NULL OR l.agent_id = $3)
   AND CASE $4 WHEN 'shown' THEN l.retired_at IS NULL AND (l.trust <> 'api' OR l.gated_at IS NOT NULL)
               WHEN 'waiting' THEN l.retired_at IS NULL AND l.trust = 'api' AND l.gated_at IS NULL
               WHEN 'retired' THEN l.retired_at IS NOT NULL ELSE true END
   AND ($5::text IS NULL OR l.words @@ websearch_to_tsquery('pg_catalog.english', $5))
   AND ($6::timestamptz IS NULL OR (l.made_at, l.lesson_id) < ($6, $7))
 ORDER BY l.made_at DESC, l.lesson_id DESC LIMIT $8
"""
STATES = ("shown", "waiting", "retired", "all")


async def list_lessons(
    database: Database,
    *,
    game: str | None = None,
    kind: str | None = None,
    agent_id: str | None = None,
    state: str = "shown",
    words: str | None = None,
    before: tuple[datetime, str] | None = None,
    limit: int = 50,
) -> list[Lesson]:
    """The latest first, with their sources."""
    moment, lesson_id = before or (None, None)
    rows = await database.pool.fetch(_LIST, game, kind, agent_id, state, words or None, moment, lesson_id, limit)
    found = await sources_of(database.pool, [row["lesson_id"] for row in rows], most=5) if rows else {}
    return [lesson_of(row, found[row["lesson_id"]]) for row in rows]


@dataclass(frozen=True, slots=True)
class LessonCounts:
    shown: int
    waiting: int
    """From outside, and not gated."""
    retired: int
    injections: int
    scored: int
    lift: float | None
    """Mean score of decisions with lessons above their groups' means, controls left out."""


async def lesson_counts(database: Database, game: str) -> LessonCounts:
    row = await database.pool.fetchrow(
        "SELECT count(*) FILTER (WHERE retired_at IS NULL AND (trust <> 'api' OR gated_at IS NOT NULL)) AS shown,"
        " count(*) FILTER (WHERE retired_at IS NULL AND trust = 'api' AND gated_at IS NULL) AS waiting,"
        " count(*) FILTER (WHERE retired_at IS NOT NULL) AS retired FROM hindsight.lessons WHERE game = $1",
        game,
    )
    used = await database.pool.fetchrow(
        "SELECT count(*) AS injections, count(score) AS scored, avg(score - compared_with) AS lift"
        " FROM hindsight.injections WHERE game = $1 AND NOT is_control",
        game,
    )
    assert row is not None
    assert used is not None
    return LessonCounts(**row, **used)


async def all_lessons(database: Database, game: str | None) -> AsyncIterator[tuple[Lesson, Sequence[Any]]]:
    """Every lesson with all of its sources, streamed: for an export."""
    async with database.pool.acquire() as connection, connection.transaction(readonly=True):
        query = (
            f"SELECT {COLUMNS}, (SELECT coalesce(json_agg(s ORDER BY s.window_id, s.trajectory_id), '[]') FROM"
            " hindsight.lesson_sources s WHERE s.lesson_id = l.lesson_id)::text AS sources FROM hindsight.lessons l"
            " WHERE $1::text IS NULL OR l.game = $1 ORDER BY l.made_at, l.lesson_id"
        )
        async for row in connection.cursor(query, game, prefetch=500):
            yield lesson_of(row), row["sources"]
