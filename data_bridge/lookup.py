"""Rows by trajectory id: for what our ledger names, where windows are no help."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from data_bridge.database import Database
from data_bridge.decode import TRAJECTORY_COLUMNS, trajectory_of
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


async def trajectories_of(database: Database, agent_id: str) -> list[str]:
    """The ids of all rows of an agent."""
    query = 'SELECT "trajectoryId" AS id FROM trajectories WHERE "agentId" = $1'
    return [row["id"] for row in await database.pool.fetch(query, agent_id)]
