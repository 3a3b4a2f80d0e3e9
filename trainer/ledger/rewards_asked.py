"""Scores that were asked for through the API: what they cost today, and how long they are kept."""

from __future__ import annotations

from datetime import timedelta

from data_bridge.database import Database


async def spent_today(database: Database) -> tuple[str, float]:
    """The run under which today's requests are paid for, by the database's clock, and what it has paid so far."""
    row = await database.pool.fetchrow(
        "SELECT name, (SELECT coalesce(sum(cost_usd), 0)::float8 FROM hindsight.judge_calls c"
        " WHERE c.run_id = today.name) AS spent"
        " FROM (SELECT 'console-' || to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD') AS name) AS today"
    )
    assert row is not None
    return row["name"], row["spent"]


async def forget_asked(database: Database, older_than: timedelta) -> int:
    """Delete verdicts that only such a request asked for and no batch uses; returns how many. Bills are kept."""
    status: str = await database.pool.execute(
        "DELETE FROM hindsight.verdicts AS v WHERE starts_with(v.run_id, 'console-')"
        " AND v.created_at < now() - $1::interval AND NOT EXISTS (SELECT FROM hindsight.batch_trajectories t"
        "   WHERE t.verdict_key = v.verdict_key)",
        older_than,
    )
    return int(status.rpartition(" ")[2])
