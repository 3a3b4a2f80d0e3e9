"""Groups that were left over at the end of a pass (``--remainder carry``): judged, and not yet in a batch.

A group is kept by reference: its verdicts here, its rows in the game's tables. Nothing marks it as used: it waits as
long as no batch holds its rows, so that a step which is lost gives it back, and a use happens once by the index of
``batch_trajectories``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from trainer.ledger.batch_records import GroupRecord

_PENDING = """
SELECT c.record::text FROM hindsight.carried c
WHERE c.model = $1 AND NOT EXISTS (
  SELECT FROM hindsight.batch_trajectories t
  WHERE t.model = c.model AND t.trajectory_id = ANY(c.trajectory_ids) AND NOT t.released)
ORDER BY c.number
"""
_KEEP = """
INSERT INTO hindsight.carried (model, run_id, group_id, window_id, trajectory_ids, agent_ids, record)
SELECT $1::text, $2::text, $3::text, $4::text, $5::text[], $6::text[], $7::jsonb
WHERE NOT EXISTS (SELECT FROM hindsight.carried c WHERE c.model = $1 AND c.window_id = $4 AND c.trajectory_ids && $5)
"""


async def has_carried(source: Any) -> bool:
    """Whether there is such a table: a dry run may read a ledger that is not migrated yet."""
    return bool(await source.fetchval("SELECT to_regclass('hindsight.carried') IS NOT NULL"))


async def pending(source: Any, model: str) -> list[GroupRecord]:
    """What no batch of ``model`` holds, the oldest first."""
    rows = await source.fetch(_PENDING, model)
    return [msgspec.json.decode(row["record"], type=GroupRecord) for row in rows]


async def keep(source: Any, model: str, run_id: str, records: Sequence[GroupRecord]) -> None:
    """Store what a pass leaves over; what is there already stays as it is."""
    await source.executemany(
        _KEEP,
        [
            (
                *(model, run_id, one.group_id, one.window_id, [verdict.trajectory_id for verdict in one.verdicts]),
                *(list(one.agent_ids), msgspec.json.encode(one).decode()),
            )
            for one in records
        ],
    )


async def drop(source: Any, model: str, trajectory_ids: Iterable[str]) -> None:
    """Let go of the groups with these rows, which cannot be trained as they were judged: they may be planned anew."""
    await source.execute(
        "DELETE FROM hindsight.carried WHERE model = $1 AND trajectory_ids && $2::text[]",
        *(model, list(trajectory_ids)),
    )


async def carried_rows(source: Any, model: str, window_ids: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Trajectories of these windows that wait, or waited, here: each with its window and agent."""
    if not await has_carried(source):
        return {}
    rows = await source.fetch(
        "SELECT one.trajectory_id, c.window_id, one.agent_id FROM hindsight.carried c,"
        " unnest(c.trajectory_ids, c.agent_ids) AS one(trajectory_id, agent_id)"
        " WHERE c.model = $1 AND c.window_id = ANY($2::text[])",
        *(model, list(window_ids)),
    )
    return {row["trajectory_id"]: (row["window_id"], row["agent_id"]) for row in rows}


async def carried_by(source: Any, run_id: str) -> set[str]:
    """Trajectories of the groups that ``run_id`` has judged and handed on: it is finished with them."""
    if not await has_carried(source):
        return set()
    rows = await source.fetch(
        "SELECT unnest(trajectory_ids) AS trajectory_id FROM hindsight.carried WHERE run_id = $1", run_id
    )
    return {row["trajectory_id"] for row in rows}
