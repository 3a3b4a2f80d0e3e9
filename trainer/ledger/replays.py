"""The replay buffer: the newest groups of a model that were trained, by reference, and how often each was used.

A group enters when its first batch is durable and leaves as the oldest when there are too many, or when the checkpoint
that it trained is lost. Its uses are not counted here: they are the rows of ``batch_trajectories``, whose unique index
makes each of them happen once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from data_bridge.database import Database
from trainer.ledger.batch_records import BatchRecord, GroupRecord, decode_groups

CAPACITY = 100_000
"""Groups of one model."""

_CANDIDATES = """
SELECT r.number, r.batch_id, r.group_id, r.step, r.spread, used.times
FROM hindsight.replays r CROSS JOIN LATERAL (
  SELECT count(*) AS times FROM hindsight.batch_trajectories t
  WHERE t.model = r.model AND t.trajectory_id = r.trajectory_id AND NOT t.released
) AS used
WHERE r.model = $1 AND r.step >= $2 AND used.times BETWEEN 1 AND $3
ORDER BY r.number
"""


@dataclass(frozen=True, slots=True)
class Replayable:
    """A group that may be trained again."""

    number: int
    """Its place in the buffer: later ones are newer."""
    batch_id: str
    group_id: str
    step: int
    spread: float
    times: int
    """How often it was trained."""


async def replayable(database: Database, model: str, *, since: int, uses: int) -> list[Replayable]:
    """The groups first trained in a step from ``since`` on and used fewer than ``uses`` times, the oldest first."""
    rows = await database.pool.fetch(_CANDIDATES, model, since, uses - 1)
    return [Replayable(**row) for row in rows]


async def stored_groups(database: Database, chosen: Sequence[Replayable]) -> list[GroupRecord]:
    """The groups as their first batch stored them, in the order of ``chosen``."""
    rows = await database.pool.fetch(
        "SELECT batch_id, groups::text FROM hindsight.batches WHERE batch_id = ANY($1)",
        list({one.batch_id for one in chosen}),
    )
    known = {(row["batch_id"], group.group_id): group for row in rows for group in decode_groups(row["groups"])}
    return [known[one.batch_id, one.group_id] for one in chosen]


async def remember_groups(connection: Any, record: BatchRecord, step: int, capacity: int = CAPACITY) -> None:
    """Add the fresh groups of a batch that became durable, and let the oldest go, in its transaction."""
    await connection.executemany(
        "INSERT INTO hindsight.replays (model, batch_id, group_id, trajectory_id, step, spread)"
        " VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (batch_id, group_id) DO NOTHING",
        [
            (record.model, record.batch_id, one.group_id, one.verdicts[0].trajectory_id, step, one.spread)
            for one in record.fresh
        ],
    )
    await connection.execute(
        "DELETE FROM hindsight.replays WHERE model = $1 AND number <= (SELECT number FROM hindsight.replays"
        " WHERE model = $1 ORDER BY number DESC OFFSET $2 LIMIT 1)",
        *(record.model, capacity),
    )


async def forget_groups(connection: Any, batch_id: str) -> None:
    """The batch's checkpoint is lost: its groups are fresh again."""
    await connection.execute("DELETE FROM hindsight.replays WHERE batch_id = $1", batch_id)
