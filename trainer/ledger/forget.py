"""Forgets one agent: what our ledger holds of it is deleted, or loses its name and what was said about it.

A batch and a verdict are about several agents: there only this one's part goes. Content hashes and scores of a verdict
stay without a name, so that the verdict on the others is not asked for again; plans and batches keep the ids of
trajectories, which say what was trained. The game's own rows, among them ``usedInTraining``, are the game's to delete;
as long as they are there they say that they were trained. Folders of runs are on the disks of their hosts: the row of
``forgotten`` tells each to take the agent out of its own (``run_folder.forget_in_folders``).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import astuple, dataclass
from datetime import timedelta
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
    observed: int
    """What went wrong in its trajectories."""
    batches: int
    verdicts: int
    evaluations: int
    """Whose example was a decision of the agent."""
    canaries: int
    ingest_keys: int
    advice: int
    lessons: int

    @property
    def total(self) -> int:
        return sum(astuple(self))


async def forget_agent(database: Database, agent_id: str, logged: Collection[str] = ()) -> ForgottenRows:
    """In one transaction. ``logged``: the agent's trajectories that the game's log has, some of which may have been
    judged only. ConfigurationError while a batch with the agent is being trained."""
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
        trajectories = {row["trajectory_id"] for row in rows} | set(logged)
        left_out = await connection.fetch(
            "DELETE FROM hindsight.exclusions WHERE agent_id = $1 RETURNING trajectory_id", agent_id
        )
        observed = await connection.fetch(
            "DELETE FROM hindsight.observed WHERE agent_id = $1 RETURNING trajectory_id", agent_id
        )
        trajectories |= {row["trajectory_id"] for row in (*left_out, *observed)}
        batches = [await _without(connection, batch, agent_id) for batch in {row["batch_id"] for row in rows}]
        verdicts = await _unnamed(connection, trajectories)
        await connection.execute(
            "DELETE FROM hindsight.replays AS r USING hindsight.batch_trajectories AS t"
            " WHERE t.agent_id = $1 AND r.batch_id = t.batch_id AND r.group_id = t.group_id",
            agent_id,
        )
        await connection.execute(
            "DELETE FROM hindsight.rewards WHERE trajectory_id = ANY($1) OR whose = 'agent:' || $2",
            *(list(trajectories), agent_id),
        )
        await connection.execute("DELETE FROM hindsight.carried WHERE $1 = ANY(agent_ids)", agent_id)
        rewards = await connection.execute("DELETE FROM hindsight.batch_trajectories WHERE agent_id = $1", agent_id)
        canaries = await connection.execute("DELETE FROM hindsight.canary_agents WHERE agent_id = $1", agent_id)
        keys = await connection.execute(
            "DELETE FROM hindsight.ingest_keys WHERE kind = 'agent' AND owner = $1", agent_id
        )
        await connection.execute(
            "DELETE FROM hindsight.advice_labels AS l USING hindsight.advice AS a"
            " WHERE a.agent_id = $1 AND l.source = 'advice' AND l.key = a.advice_id",
            agent_id,
        )
        advice = await connection.execute("DELETE FROM hindsight.advice WHERE agent_id = $1", agent_id)
        found = ForgottenRows(
            rewards=_number(rewards),
            exclusions=len(left_out),
            observed=len(observed),
            batches=sum(batches),
            verdicts=verdicts,
            evaluations=await _without_examples(connection, agent_id),
            canaries=_number(canaries),
            ingest_keys=_number(keys),
            advice=_number(advice),
            lessons=await forget_lessons(connection, agent_id),
        )
        await connection.execute(
            "INSERT INTO hindsight.forgotten (agent_id, trajectory_ids) VALUES ($1, $2)", agent_id, sorted(trajectories)
        )
        await tell(connection, EventKind.COMMAND, {"deed": "forget an agent", "state": "done", "rows": found.total})
    return found


@dataclass(frozen=True, slots=True)
class ForgottenAgent:
    forgotten_id: int
    agent_id: str
    trajectory_ids: frozenset[str]


async def forgotten_since(database: Database, after: int) -> list[ForgottenAgent]:
    """Who was forgotten after ``after``, in that order."""
    rows = await database.pool.fetch(
        "SELECT forgotten_id, agent_id, trajectory_ids FROM hindsight.forgotten WHERE forgotten_id > $1"
        " ORDER BY forgotten_id",
        after,
    )
    return [ForgottenAgent(row["forgotten_id"], row["agent_id"], frozenset(row["trajectory_ids"])) for row in rows]


async def forget_forgotten(database: Database, older_than: timedelta) -> int:
    """Delete who was forgotten longer ago than that; returns how many rows."""
    status: str = await database.pool.execute(
        "DELETE FROM hindsight.forgotten WHERE at < now() - $1::interval", older_than
    )
    return _number(status)


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
                if group.get("roles"):
                    group["roles"][place] = None
    for one in exclusions:
        if one.get("agent_id") == agent_id:
            one |= {"agent_id": FORGOTTEN, "detail": ""}
    await connection.execute(
        "UPDATE hindsight.batches SET groups = $2::jsonb, exclusions = $3::jsonb WHERE batch_id = $1",
        *(batch_id, as_json(groups), as_json(exclusions)),
    )
    return True


async def _without_examples(connection: Any, agent_id: str) -> int:
    """Take examples that show a decision of the agent, with all that was said about it, out of evaluations."""
    status: str = await connection.execute(
        "UPDATE hindsight.evaluations SET report = report"
        " || CASE WHEN report #>> '{best,agent_id}' = $1 THEN '{\"best\": null}' ELSE '{}' END::jsonb"
        " || CASE WHEN report #>> '{worst,agent_id}' = $1 THEN '{\"worst\": null}' ELSE '{}' END::jsonb"
        " WHERE $1 IN (report #>> '{best,agent_id}', report #>> '{worst,agent_id}')",
        agent_id,
    )
    return _number(status)


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
