"""Runs, windows, patterns and the audit log, a page at a time: a cursor is where the last page ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime

import msgspec

from data_bridge.database import Database
from trainer.ledger.read.now import RunInHand, run_in_hand


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run in a list."""

    run_id: str
    model: str
    state: str
    backend: str
    host: str
    attempts: int
    error: str | None
    started_at: datetime
    finished_at: datetime | None
    steps: int
    trajectories: int
    left_out: int
    cost_usd: float
    ruling: str | None
    release: str | None
    """The state of the latest promotion of a checkpoint of this run."""


_RUNS = """
SELECT r.run_id, r.model, r.state, r.backend, r.host, r.attempts, r.error, r.started_at, r.finished_at,
       (SELECT count(*) FROM hindsight.batches b WHERE b.run_id = r.run_id AND b.state = 'trained') AS steps,
       (SELECT count(*) FROM hindsight.batch_trajectories t JOIN hindsight.batches b USING (batch_id)
         WHERE b.run_id = r.run_id AND b.state = 'trained') AS trajectories,
       (SELECT count(*) FROM hindsight.exclusions e WHERE e.run_id = r.run_id) AS left_out,
       (SELECT coalesce(sum(cost_usd), 0)::float8 FROM hindsight.judge_calls j WHERE j.run_id = r.run_id) AS cost_usd,
       (SELECT ruling FROM hindsight.evaluations e WHERE e.run_id = r.run_id
         ORDER BY created_at DESC LIMIT 1) AS ruling,
       (SELECT p.state FROM hindsight.promotions p JOIN hindsight.checkpoints c USING (model, step)
         WHERE c.run_id = r.run_id ORDER BY p.promotion_id DESC LIMIT 1) AS release
  FROM hindsight.runs r
 WHERE ($1::text IS NULL OR r.model = $1) AND ($2::text IS NULL OR r.state = $2)
   AND ($3::timestamptz IS NULL OR (r.started_at, r.run_id) < ($3, $4))
 ORDER BY r.started_at DESC, r.run_id DESC LIMIT $5
"""


async def list_all_runs(
    database: Database,
    *,
    model: str | None = None,
    state: str | None = None,
    before: tuple[datetime, str] | None = None,
    limit: int = 50,
) -> list[RunRow]:
    """Runs, the latest first; those that started before ``before``."""
    moment, run_id = before or (None, None)
    return [RunRow(**row) for row in await database.pool.fetch(_RUNS, model, state, moment, run_id, limit)]


async def run_row(database: Database, run_id: str) -> tuple[RunRow, RunInHand] | None:
    """One run, as in a list and with its progress."""
    query = _RUNS.partition(" WHERE ($1")[0] + " WHERE r.run_id = $1"
    row = await database.pool.fetchrow(query, run_id)
    if row is None:
        return None
    hand = await database.pool.fetchrow(
        "SELECT r.run_id, r.state, r.backend, r.base_model, r.host, r.pid, r.attempts, r.error, r.started_at,"
        " r.finished_at, r.progress::text, r.progress_at,"
        " (SELECT count(*) FROM hindsight.judge_calls j WHERE j.run_id = r.run_id) AS judge_calls,"
        " (SELECT coalesce(sum(cost_usd), 0)::float8 FROM hindsight.judge_calls j WHERE j.run_id = r.run_id)"
        " AS cost_usd FROM hindsight.runs r WHERE r.run_id = $1",
        run_id,
    )
    return RunRow(**row), run_in_hand(hand)


@dataclass(frozen=True, slots=True)
class UsedWindow:
    """One window as runs of the model have used it."""

    window_id: str
    state: str
    runs: int
    groups: int
    trained: int
    """Trajectories in durable batches."""
    mean_score: float | None
    left_out: Mapping[str, int]
    consulted: int
    """Evaluations that looked at it."""


# The newest run that planned a window says what became of it; a window that was only left out has no such row.
_WINDOWS = """
WITH named AS (
    SELECT window_id FROM hindsight.windows w JOIN hindsight.runs r USING (run_id) WHERE r.model = $1
    UNION SELECT window_id FROM hindsight.exclusions e JOIN hindsight.runs r USING (run_id) WHERE r.model = $1),
page AS (SELECT window_id FROM named WHERE $2::text IS NULL OR window_id < $2 ORDER BY window_id DESC LIMIT $3)
SELECT p.window_id, coalesce(w.state, 'left_out') AS state, coalesce(w.runs, 0) AS runs,
       coalesce(w.groups, 0) AS groups, t.trained, t.mean_score, coalesce(e.left_out, '{}')::text AS left_out,
       (SELECT count(*) FROM hindsight.evaluations v WHERE v.model = $1
         AND v.report -> 'windows' @> jsonb_build_array(jsonb_build_object('window_id', p.window_id))) AS consulted
  FROM page p
  LEFT JOIN LATERAL (SELECT (array_agg(w.state ORDER BY r.started_at DESC))[1] AS state, count(*) AS runs,
        (array_agg(jsonb_array_length(w.groups) ORDER BY r.started_at DESC))[1] AS groups
        FROM hindsight.windows w JOIN hindsight.runs r USING (run_id)
        WHERE w.window_id = p.window_id AND r.model = $1 HAVING count(*) > 0) w ON true
  LEFT JOIN LATERAL (SELECT count(*) AS trained, avg(t.score) AS mean_score FROM hindsight.batch_trajectories t
        JOIN hindsight.batches b USING (batch_id)
        WHERE t.window_id = p.window_id AND t.model = $1 AND b.state = 'trained') t ON true
  LEFT JOIN LATERAL (SELECT jsonb_object_agg(reason, number) AS left_out FROM (
        SELECT e.reason, count(DISTINCT e.trajectory_id) AS number FROM hindsight.exclusions e
        JOIN hindsight.runs r USING (run_id) WHERE e.window_id = p.window_id AND r.model = $1 GROUP BY 1) x) e ON true
 ORDER BY p.window_id DESC
"""


async def list_windows(
    database: Database, model: str, *, before: str | None = None, limit: int = 50
) -> list[UsedWindow]:
    """The windows that runs of ``model`` met, the newest first; those before the window ``before``."""
    rows = await database.pool.fetch(_WINDOWS, model, before, limit)
    return [UsedWindow(**{**row, "left_out": msgspec.json.decode(row["left_out"])}) for row in rows]


@dataclass(frozen=True, slots=True)
class PatternRow:
    """How often one thing went wrong in one week."""

    week: date
    pattern: str
    count: int
    agents: int
    example: str
    """One trajectory."""


_PATTERNS = """
SELECT date_trunc('week', to_date(left(e.window_id, 10), 'YYYY-MM-DD'))::date AS week, e.reason AS pattern,
       count(DISTINCT e.trajectory_id) AS count, count(DISTINCT e.agent_id) AS agents, min(e.trajectory_id) AS example
  FROM hindsight.exclusions e JOIN hindsight.runs r USING (run_id)
 WHERE r.model = $1 AND e.reason <> ALL($2) AND e.window_id ~ '^\\d{4}-\\d{2}-\\d{2}T'
   AND to_date(left(e.window_id, 10), 'YYYY-MM-DD') >= $3
 GROUP BY 1, 2 ORDER BY 1 DESC, 3 DESC, 2
"""
NOT_ERRORS = ("dropout", "held_out", "embargo", "already_used", "not_selected", "window_open")
"""Decisions of ours about rows that have no fault."""


async def patterns_by_week(database: Database, model: str, since: date) -> list[PatternRow]:
    """What was wrong with rows, by the week of their window, the newest week first."""
    rows = await database.pool.fetch(_PATTERNS, model, list(NOT_ERRORS), since)
    return [PatternRow(**row) for row in rows]


@dataclass(frozen=True, slots=True)
class AuditRow:
    audit_id: int
    at: datetime
    who: str
    address: str
    deed: str
    target: str
    reason: str
    outcome: str


async def list_audit(database: Database, *, before: int | None = None, limit: int = 50) -> list[AuditRow]:
    """What was done through consoles, the latest first."""
    rows = await database.pool.fetch(
        "SELECT audit_id, at, who, address, deed, target, reason, outcome FROM hindsight.audit"
        " WHERE $1::bigint IS NULL OR audit_id < $1 ORDER BY audit_id DESC LIMIT $2",
        *(before, limit),
    )
    return [AuditRow(**row) for row in rows]
