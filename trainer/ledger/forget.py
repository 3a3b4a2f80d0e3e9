"""Forgets one agent: what our ledger holds of it is deleted, or loses its name and what was said about it.

A batch, a verdict and a plan are about several agents: there only this one's part goes. Content hashes and scores of a
verdict stay without a name, so that the verdict on the others is not asked for again. The game's own rows, among them
``usedInTraining``, are the game's to delete; as long as they are there they say that they were trained.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any

import msgspec

from data_bridge.database import Database
from data_bridge.errors import ConfigurationError
from trainer.ledger.batches import as_json
from trainer.ledger.events import EventKind, tell
from trainer.ledger.lessons import forget_lessons

FORGOTTEN = "deleted"


@dataclass(frozen=True, slots=True)
class ForgottenRows:
    """How many rows of each kind were deleted or lost the agent."""

    rewards: int
    exclusions: int
    batches: int
    verdicts: int
    canaries: int
    ingest_keys: int
    lessons: int

    @property
    def total(self) -> int:
        return sum(astuple(self))


async def forget_agent(database: Database, agent_id: str) -> ForgottenRows:
    """In one transaction. ConfigurationError while a batch with the agent is being trained."""
    async with database.pool.acquire() as connection, connection.transaction():
        rows = await connection.fetch(
            "SELECT t.batch_id, t.trajectory_id, b.state FROM hindsight.batch_trajectories t"
            " JOIN hindsight.batches b USING (batch_id) WHERE t.agent_id = $1 FOR UPDATE OF b",
            agent_id,
        )
        if any(row["state"] in ("prepared", "submitted") for row in rows):
            raise ConfigurationError(
                f"A batch with trajectories of {agent_id!r} is being trained: stop the training, or wait for its end."
            )
        trajectories = {row["trajectory_id"] for row in rows}
        left_out = await connection.fetch(
            "DELETE FROM hindsight.exclusions WHERE agent_id = $1 RETURNING trajectory_id", agent_id
        )
        trajectories |= {row["trajectory_id"] for row in left_out}
        batches = [await _without(connection, batch, agent_id) for batch in {row["batch_id"] for row in rows}]
        verdicts = await _unnamed(connection, trajectories)
        await connection.execute(
            "DELETE FROM hindsight.replays AS r USING hindsight.batch_trajectories AS t"
            " WHERE t.agent_id = $1 AND r.batch_id = t.batch_id AND r.group_id = t.group_id",
            agent_id,
        )
        await connection.execute(
            "DELETE FROM hindsight.rewards AS r USING hindsight.batch_trajectories AS t"
            " WHERE t.agent_id = $1 AND r.batch_id = t.batch_id AND r.trajectory_id = t.trajectory_id",
            agent_id,
        )
        rewards = await connection.execute("DELETE FROM hindsight.batch_trajectories WHERE agent_id = $1", agent_id)
        canaries = await connection.execute("DELETE FROM hindsight.canary_agents WHERE agent_id = $1", agent_id)
        keys = await connection.execute(
            "DELETE FROM hindsight.ingest_keys WHERE kind = 'agent' AND owner = $1", agent_id
        )
        found = ForgottenRows(
            rewards=_number(rewards),
            exclusions=len(left_out),
            batches=sum(batches),
            verdicts=verdicts,
            canaries=_number(canaries),
            ingest_keys=_number(keys),
            lessons=await forget_lessons(connection, agent_id),
        )
        await tell(connection, EventKind.COMMAND, {"deed": "forget an agent", "state": "done", "rows": found.total})
    return found


async def _without(connection: Any, batch_id: str, agent_id: str) -> bool:
    """Take the agent's name, and what was said about it, out of a batch's composition."""
    row = await connection.fetchrow(
        "SELECT groups::text, exclusions::text FROM hindsight.batches WHERE batch_id = $1", batch_id
    )
    groups, exclusions = msgspec.json.decode(row["groups"]), msgspec.json.decode(row["exclusions"])
    for group in groups:
        for place, name in enumerate(group["agent_ids"]):
            if name == agent_id:
                group["agent_ids"][place] = FORGOTTEN
                group["verdicts"][place]["explanation"] = ""
    for one in exclusions:
        if one.get("agent_id") == agent_id:
            one |= {"agent_id": FORGOTTEN, "detail": ""}
    await connection.execute(
        "UPDATE hindsight.batches SET groups = $2::jsonb, exclusions = $3::jsonb WHERE batch_id = $1",
        *(batch_id, as_json(groups), as_json(exclusions)),
    )
    return True


async def _unnamed(connection: Any, trajectories: set[str]) -> int:
    """Take the trajectories' ids, and the explanations, out of the verdicts on them."""
    rows = await connection.fetch(
        "SELECT DISTINCT v.verdict_key, v.order_number, v.scores::text FROM hindsight.verdicts v,"
        " jsonb_array_elements(v.scores) AS one WHERE one ->> 'trajectory_id' = ANY($1)",
        list(trajectories),
    )
    for row in rows:
        scores = msgspec.json.decode(row["scores"])
        for one in scores:
            if one["trajectory_id"] in trajectories:
                one |= {"trajectory_id": FORGOTTEN, "explanation": ""}
        await connection.execute(
            "UPDATE hindsight.verdicts SET scores = $3::jsonb WHERE verdict_key = $1 AND order_number = $2",
            *(row["verdict_key"], row["order_number"], as_json(scores)),
        )
    return len(rows)


def _number(status: str) -> int:
    return int(status.rpartition(" ")[2])
