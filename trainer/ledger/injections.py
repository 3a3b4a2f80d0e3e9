"""Which lessons a decision was shown, and later what the decision was worth: the measured usefulness of a lesson."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from data_bridge.database import Database

_RECORD = """
WITH new AS (
  INSERT INTO hindsight.injections (decision_id, lesson_id, place, policy, is_control, game, agent_id, window_id,
                                    trajectory_id, shown_at)
  SELECT * FROM unnest($1::text[], $2::text[], $3::int2[], $4::text[], $5::bool[], $6::text[], $7::text[], $8::text[],
                       $9::text[], $10::timestamptz[])
      ON CONFLICT (decision_id, lesson_id) DO NOTHING
  RETURNING lesson_id, shown_at
), used AS (SELECT lesson_id, count(*) AS number, max(shown_at) AS last FROM new GROUP BY lesson_id ORDER BY lesson_id)
UPDATE hindsight.lessons l SET uses = l.uses + used.number, last_used_at = greatest(l.last_used_at, used.last)
  FROM used WHERE l.lesson_id = used.lesson_id
"""
_SCORE = """
UPDATE hindsight.injections i SET score = j.score, compared_with = j.mean, scored_at = now()
  FROM unnest($1::text[], $2::float8[], $3::float8[]) AS j(trajectory_id, score, mean)
 WHERE i.trajectory_id = j.trajectory_id AND i.score IS NULL
RETURNING i.lesson_id
"""
_USEFULNESS = """
WITH counted AS (
  SELECT lesson_id, avg(score - compared_with) AS lift, count(*) AS number FROM hindsight.injections
   WHERE score IS NOT NULL AND NOT is_control AND ($1::text[] IS NULL OR lesson_id = ANY($1))
     AND window_id NOT IN (SELECT window_id FROM hindsight.unruled_windows)
   GROUP BY lesson_id ORDER BY lesson_id
)
UPDATE hindsight.lessons l SET usefulness = c.lift, scored_uses = c.number FROM counted c
 WHERE l.lesson_id = c.lesson_id AND (l.usefulness, l.scored_uses) IS DISTINCT FROM (c.lift, c.number::int)
"""


@dataclass(frozen=True, slots=True)
class Injection:
    """One lesson, shown to one decision."""

    decision_id: str
    """Of the caller's choice, one for each decision: ``TRAJECTORY_ID#STEP``, or a call's id."""
    lesson_id: str
    place: int
    game: str
    agent_id: str
    window_id: str
    shown_at: datetime
    """In the game's clock: the time of the decision, and the ``as_of`` of its retrieval."""
    trajectory_id: str | None = None
    policy: str = ""
    """The lessons policy by which it was shown."""
    is_control: bool = False
    """Shown by chance, as a control; does not count for the lesson's usefulness."""


async def record_injections(source: Any, shown: Sequence[Injection]) -> None:
    """Store what was shown. The same decision and lesson twice is one row, and one use."""
    if not shown:
        return
    await source.execute(
        _RECORD,
        [one.decision_id for one in shown],
        [one.lesson_id for one in shown],
        [one.place for one in shown],
        [one.policy for one in shown],
        [one.is_control for one in shown],
        [one.game for one in shown],
        [one.agent_id for one in shown],
        [one.window_id for one in shown],
        [one.trajectory_id for one in shown],
        [one.shown_at for one in shown],
    )


@dataclass(frozen=True, slots=True)
class ScoredDecision:
    trajectory_id: str
    score: float
    group_mean: float
    """Of the group that it was judged in."""


async def score_injections(database: Database, scored: Sequence[ScoredDecision]) -> int:
    """Keep what decisions with lessons were worth, and count it for their lessons; returns the number of rows."""
    if not scored:
        return 0
    async with database.pool.acquire() as connection, connection.transaction():
        rows = await connection.fetch(
            _SCORE,
            [one.trajectory_id for one in scored],
            [one.score for one in scored],
            [one.group_mean for one in scored],
        )
        if rows:
            await count_usefulness(connection, sorted({row["lesson_id"] for row in rows}))
    return len(rows)


async def count_usefulness(source: Any, lesson_ids: Sequence[str] | None = None) -> None:
    """Without decisions of windows that wait for a ruling, and without controls."""
    await source.execute(_USEFULNESS, None if lesson_ids is None else list(lesson_ids))


async def shown_to(source: Any, trajectory_ids: Sequence[str]) -> dict[str, list[str]]:
    """The texts of the lessons that each trajectory was shown: what must not be distilled from it again."""
    rows = await source.fetch(
        "SELECT DISTINCT i.trajectory_id, l.title, l.content FROM hindsight.injections i"
        " JOIN hindsight.lessons l USING (lesson_id) WHERE i.trajectory_id = ANY($1) ORDER BY 1, 2, 3",
        list(trajectory_ids),
    )
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(row["trajectory_id"], []).append(f"{row['title']}: {row['content']}")
    return found
