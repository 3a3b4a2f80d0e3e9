"""Rows by trajectory id: for what our ledger names, where windows are no help."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from data_bridge.database import Database
from data_bridge.decode import TRAJECTORY_COLUMNS, role_of, trajectory_of
from data_bridge.models import AgentTrajectory
from data_bridge.window_ids import window_of

_AT_A_TIME = 50


async def agents_of(database: Database, trajectory_ids: Sequence[str]) -> dict[str, str]:
    """The agent of each row that is still there."""
    query = 'SELECT "trajectoryId" AS id, "agentId" AS agent FROM trajectories WHERE "trajectoryId" = ANY($1)'
    return {row["id"]: row["agent"] for row in await database.pool.fetch(query, list(trajectory_ids))}


async def read_trajectories(
    database: Database, trajectory_ids: Sequence[str], max_bytes: int
) -> AsyncIterator[AgentTrajectory]:
    """The rows that are still there, can be read and are not too large; a few in memory at a time."""
    query = f'SELECT {TRAJECTORY_COLUMNS} FROM trajectories WHERE "trajectoryId" = ANY($2)'
    for start in range(0, len(trajectory_ids), _AT_A_TIME):
        for row in await database.pool.fetch(query, max_bytes, list(trajectory_ids[start : start + _AT_A_TIME])):
            read = trajectory_of(row, window_of(row["startTime"]), None)
            if isinstance(read, AgentTrajectory):
                yield read


async def roles_of(database: Database, trajectory_ids: Sequence[str]) -> dict[str, str]:
    """The role of each row that is still there and names one in its metadata."""
    query = 'SELECT "trajectoryId" AS id, "metadataJson" AS said FROM trajectories WHERE "trajectoryId" = ANY($1)'
    rows = await database.pool.fetch(query, list(trajectory_ids))
    return {row["id"]: role for row in rows if (role := role_of(row["said"])) is not None}
