"""What went wrong in the trajectories that runs read, and the patterns in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from data_bridge.database import Database
from trainer.ledger.states import BatchState
from trainer.patterns.faults import Fault, Observed
from trainer.patterns.significance import ErrorPattern, patterns_of

_STORE = """
INSERT INTO hindsight.observed AS o (run_id, trajectory_id, agent_id, window_id, faults)
VALUES ($1, $2, $3, $4, $5::jsonb)
ON CONFLICT (run_id, trajectory_id) DO UPDATE SET faults = o.faults || coalesce((
  SELECT jsonb_agg(new) FROM jsonb_array_elements(EXCLUDED.faults) AS new WHERE NOT o.faults @> jsonb_build_array(new)
), '[]')
"""
_OF_STEPS = """
SELECT DISTINCT ON (o.trajectory_id) o.trajectory_id, o.agent_id, o.window_id, o.faults::text
FROM hindsight.observed o JOIN hindsight.batch_trajectories t USING (trajectory_id)
JOIN hindsight.batches b USING (batch_id)
WHERE t.model = $1 AND t.use = 1 AND NOT t.released AND b.state = $2 AND b.step >= $3 AND b.run_id = o.run_id
ORDER BY o.trajectory_id
"""


async def observe(source: Any, run_id: str, rows: Iterable[Observed]) -> None:
    """Store what went wrong; what is known of a trajectory already is kept."""
    found = [
        (run_id, one.trajectory_id, one.agent_id, one.window_id, msgspec.json.encode(one.faults).decode())
        for one in rows
    ]
    if found:  # asyncpg never ends an ``executemany`` of nothing: the idle connection would keep its locks
        await source.executemany(_STORE, found)


async def patterns_of_run(source: Any, run_id: str) -> tuple[ErrorPattern, ...]:
    """The error patterns of all that a run read; none in a ledger from before there were any."""
    if await source.fetchval("SELECT to_regclass('hindsight.observed')") is None:
        return ()
    rows = await source.fetch(
        "SELECT trajectory_id, agent_id, window_id, faults::text FROM hindsight.observed WHERE run_id = $1", run_id
    )
    return patterns_of(map(_observed, rows))


Marks = tuple[frozenset[tuple[str, str]], ...]
"""For each significant pattern the batch and group of those that show it."""


async def observed_since(source: Any, model: str, since: int) -> list[Observed]:
    """What was trained for the first time from step ``since`` on, and what went wrong in it."""
    return [_observed(row) for row in await source.fetch(_OF_STEPS, model, BatchState.TRAINED.value, since)]


async def groups_with_patterns(database: Database, model: str, since: int) -> Marks:
    """For each significant pattern of what was trained from step ``since`` on: batch and group of those that show it.

    From what was trained alone: a run that was killed has read more than that, or less.
    """
    found = patterns_of(await observed_since(database.pool, model, since))
    marked = {name for one in found if one.significant for name in one.trajectories}
    groups = await database.pool.fetch(
        "SELECT trajectory_id, batch_id, group_id FROM hindsight.batch_trajectories"
        " WHERE model = $1 AND use = 1 AND NOT released AND trajectory_id = ANY($2)",
        *(model, list(marked)),
    )
    return marked_groups(found, {row["trajectory_id"]: (row["batch_id"], row["group_id"]) for row in groups})


def marked_groups(patterns: Sequence[ErrorPattern], groups: Mapping[str, tuple[str, str]]) -> Marks:
    """Which groups show each significant pattern, by the batch and group that a trajectory is in."""
    return tuple(
        frozenset(groups[name] for name in one.trajectories if name in groups) for one in patterns if one.significant
    )


async def observed_of(database: Database, model: str, window_ids: Iterable[str]) -> list[Observed]:
    """What went wrong in the trajectories of these windows, as far as runs of ``model`` have read them."""
    rows = await database.pool.fetch(
        "SELECT DISTINCT ON (o.trajectory_id) o.trajectory_id, o.agent_id, o.window_id, o.faults::text"
        " FROM hindsight.observed o JOIN hindsight.runs r USING (run_id)"
        " WHERE r.model = $1 AND o.window_id = ANY($2) ORDER BY o.trajectory_id, r.started_at DESC",
        *(model, list(window_ids)),
    )
    return [_observed(row) for row in rows]


def _observed(row: Any) -> Observed:
    faults = msgspec.json.decode(row["faults"], type=tuple[Fault, ...])
    return Observed(row["trajectory_id"], row["agent_id"], row["window_id"], faults)


async def observed_in_run(source: Any, run_id: str) -> list[Observed]:
    """The trajectories of a run in which something went wrong."""
    rows = await source.fetch(
        "SELECT trajectory_id, agent_id, window_id, faults::text FROM hindsight.observed"
        " WHERE run_id = $1 AND faults <> '[]'",
        run_id,
    )
    return [_observed(row) for row in rows]
