"""Which release the agents were given, when and why: the history of promotions.

The pointer to what agents use is the one row of a model in state ``serving``; a unique index keeps it one. Writes
happen inside ``one_promotion_at_a_time``, the transaction that also changes the game's own table.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import asyncpg
import msgspec

from data_bridge.authorship import Served
from data_bridge.database import Database
from data_bridge.disk import told_if_full
from data_bridge.redaction import redact
from trainer.ledger.events import EventKind, tell
from trainer.ledger.states import PROMOTION_TRANSITIONS, PromotionKind, PromotionState, sources_of
from trainer.types import Checkpoint, Release


@dataclass(frozen=True, slots=True)
class Promotion:
    """One row: a release that was given to agents, when, why, and its outcome."""

    promotion_id: int
    checkpoint: Checkpoint
    kind: PromotionKind
    state: PromotionState
    forced: bool
    reason: str
    outcome: str | None
    evaluation_id: str | None
    base_url: str
    served_model: str
    canary_share: float | None
    canary_after: str | None
    """The newest window when the canary started."""
    created_at: datetime
    serving_since: datetime | None
    ended_at: datetime | None
    prompt_version: str = ""
    lessons_policy: str = ""

    @property
    def release(self) -> Release:
        return self.checkpoint.as_release(self.prompt_version, self.lessons_policy)


async def serving(database: Database, model: str) -> Promotion | None:
    """What the agents use now; None before the first promotion."""
    return await in_state(database.pool, model, PromotionState.SERVING)


async def incumbent_of(database: Database, model: str) -> Release | None:
    """What the agents use now; None while that is the untrained base model."""
    now = await serving(database, model)
    return now.release if now is not None and not now.release.is_base else None


async def running_canary(database: Database, model: str) -> Promotion | None:
    return await in_state(database.pool, model, PromotionState.CANARY)


async def running_canaries(database: Database) -> list[Promotion]:
    """The canaries of all models."""
    query = "SELECT * FROM hindsight.promotions WHERE state = $1 ORDER BY promotion_id"
    return [promotion_of(row) for row in await database.pool.fetch(query, PromotionState.CANARY.value)]


async def in_state(source: Any, model: str, state: PromotionState) -> Promotion | None:
    """The one promotion in ``state`` (serving or canary). ``source``: a pool, or a connection in a transaction."""
    row = await source.fetchrow(
        "SELECT * FROM hindsight.promotions WHERE model = $1 AND state = $2", model, state.value
    )
    return None if row is None else promotion_of(row)


async def history(database: Database, model: str) -> list[Promotion]:
    """All promotions of a model, the latest first."""
    rows = await database.pool.fetch(
        "SELECT * FROM hindsight.promotions WHERE model = $1 ORDER BY promotion_id DESC", model
    )
    return [promotion_of(row) for row in rows]


async def served_steps(pool: Any, model: str) -> tuple[Served, ...]:
    """What the model's name without a step meant when: every time that a step served all agents, or a canary's."""
    rows = await pool.fetch(
        "SELECT p.step, p.created_at, p.serving_since, p.ended_at, p.canary_share,"
        " array_agg(c.agent_id) FILTER (WHERE c.agent_id IS NOT NULL) AS agents"
        " FROM hindsight.promotions p LEFT JOIN hindsight.canary_agents c USING (promotion_id)"
        " WHERE p.model = $1 GROUP BY p.promotion_id ORDER BY p.promotion_id",
        model,
    )
    whole = [
        Served(row["step"], row["serving_since"], row["ended_at"]) for row in rows if row["serving_since"] is not None
    ]
    tried = [
        Served(row["step"], row["created_at"], row["serving_since"] or row["ended_at"], frozenset(row["agents"] or ()))
        for row in rows
        if row["canary_share"] is not None
    ]
    return (*whole, *tried)


def promotion_of(row: asyncpg.Record) -> Promotion:
    return msgspec.convert({**row, "checkpoint": dict(row)}, Promotion)


# Writing, inside one transaction


@asynccontextmanager
async def one_promotion_at_a_time(database: Database) -> AsyncIterator[Any]:
    """One exclusive transaction in the whole database: ``trained_models`` has one deployed row for all models."""
    async with database.pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(hashtext('hindsight.promotions'))")
        yield connection


async def insert_promotion(
    connection: Any,
    release: Release,
    base_url: str,
    served_model: str,
    *,
    kind: PromotionKind,
    state: PromotionState,
    reason: str,
    evaluation_id: str | None = None,
    forced: bool = False,
    canary: float | None = None,
) -> Promotion:
    row = await connection.fetchrow(
        "INSERT INTO hindsight.promotions (model, step, kind, state, forced, reason, evaluation_id, base_model,"
        " backend, location, base_url, served_model, canary_share, prompt_version, lessons_policy, serving_since)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15,"
        " CASE WHEN $4 = 'serving' THEN now() END)"
        " RETURNING *",
        *(release.model, release.step, kind.value, state.value, forced, redact(reason), evaluation_id),
        *(release.base_model, release.backend, release.location, base_url, served_model, canary),
        *(release.prompt_version, release.lessons_policy),
    )
    assert row is not None
    await _tell(connection, promotion_of(row), reason)
    return promotion_of(row)


async def _tell(connection: Any, promotion: Promotion, why: str | None) -> None:
    checkpoint = promotion.checkpoint
    data = {"release": promotion.release.name, "step": checkpoint.step, "kind": promotion.kind.value}
    data |= {"state": promotion.state.value, "forced": promotion.forced, "reason": redact(why or "")}
    await tell(connection, EventKind.RELEASE, data, model=checkpoint.model)


async def end_promotion(
    connection: Any, model: str, state: PromotionState, then: PromotionState, outcome: str | None = None
) -> Promotion | None:
    """Move the promotion in ``state`` to ``then``, if there is one."""
    current = await in_state(connection, model, state)
    return None if current is None else await move_promotion(connection, current, then, outcome)


async def move_promotion(
    connection: Any, promotion: Promotion, then: PromotionState, outcome: str | None = None
) -> Promotion:
    row = await connection.fetchrow(
        "UPDATE hindsight.promotions SET state = $2, outcome = coalesce($3, outcome),"
        " serving_since = CASE WHEN $2 = 'serving' THEN now() ELSE serving_since END,"
        " ended_at = CASE WHEN $2 = 'serving' THEN NULL ELSE now() END"
        " WHERE promotion_id = $1 AND state = ANY($4) RETURNING *",
        *(promotion.promotion_id, then.value, None if outcome is None else redact(outcome)),
        sources_of(then, PROMOTION_TRANSITIONS),
    )
    if row is None:
        raise ValueError(f"a promotion cannot go from {promotion.state} to {then}")
    await _tell(connection, promotion_of(row), outcome)
    return promotion_of(row)


async def mark_canary_agents(
    connection: Any, promotion: Promotion, agents: Sequence[str], after: str | None
) -> Promotion:
    """Store the canary's agents, and the newest window before it started."""
    await connection.execute(
        "INSERT INTO hindsight.canary_agents (promotion_id, agent_id) SELECT $1, unnest($2::text[])",
        *(promotion.promotion_id, list(agents)),
    )
    row = await connection.fetchrow(
        "UPDATE hindsight.promotions SET canary_after = $2 WHERE promotion_id = $1 RETURNING *",
        *(promotion.promotion_id, after),
    )
    return promotion_of(row)


async def canary_agents_of(source: Any, promotion: Promotion) -> frozenset[str]:
    """The agents that use this canary. ``source``: a pool or a connection."""
    rows = await source.fetch(
        "SELECT agent_id FROM hindsight.canary_agents WHERE promotion_id = $1", promotion.promotion_id
    )
    return frozenset(row["agent_id"] for row in rows)


# By history, not by number: a lower step may have been promoted after a higher one. A release that was rolled
# back since it last served is not a rollback target.
_USED_BEFORE = """
SELECT * FROM hindsight.promotions p WHERE model = $1 AND serving_since IS NOT NULL
    AND (step, prompt_version, lessons_policy) <> ($2, $3, $4)
    AND NOT EXISTS (SELECT FROM hindsight.promotions l WHERE l.model = p.model
                    AND (l.step, l.prompt_version, l.lessons_policy) = (p.step, p.prompt_version, p.lessons_policy)
                    AND l.promotion_id >= p.promotion_id AND l.state = 'rolled_back')
ORDER BY promotion_id DESC LIMIT 1
"""


async def used_before(connection: Any, release: Release) -> Promotion | None:
    """What all agents used before ``release``; None if that was the base model."""
    row = await connection.fetchrow(_USED_BEFORE, *release.identity)
    return None if row is None else promotion_of(row)


async def newest_used(connection: Any, model: str) -> int:
    """The highest step that all agents ever used."""
    query = "SELECT max(step) FROM hindsight.promotions WHERE model = $1 AND serving_since IS NOT NULL"
    return int(await connection.fetchval(query, model))


async def trained_from(connection: Any, checkpoint: Checkpoint) -> tuple[str | None, float | None]:
    """The batch that made a checkpoint, and the judge's mean score of what it was trained on."""
    row = await connection.fetchrow(
        "SELECT c.batch_id, avg(t.score) AS score FROM hindsight.checkpoints c"
        " LEFT JOIN hindsight.batch_trajectories t USING (batch_id) WHERE c.model = $1 AND c.step = $2 GROUP BY 1",
        *(checkpoint.model, checkpoint.step),
    )
    return (None, None) if row is None else (row["batch_id"], row["score"])


@dataclass(frozen=True, slots=True)
class Canary:
    """The checkpoint that only these agents use."""

    promotion: Promotion
    agents: frozenset[str]


@dataclass(frozen=True, slots=True)
class Pointer:
    """What agents use now. ``serving`` is None while the agents still use the base model."""

    model: str
    serving: Promotion | None
    canary: Canary | None = None

    def for_agent(self, agent_id: str | None) -> Promotion | None:
        """What this agent uses: the canary if it is one of the canary's, otherwise what is serving."""
        if self.canary is not None and agent_id in self.canary.agents:
            return self.canary.promotion
        return self.serving


def pointer_file(home: Path, model: str) -> Path:
    return home / "promoted" / f"{quote(model, safe='')}.json"


def read_pointer(home: Path, model: str) -> Pointer | None:
    """The copy on disk; None if nothing was ever promoted from this home."""
    try:
        return msgspec.json.decode(pointer_file(home, model).read_bytes(), type=Pointer)
    except FileNotFoundError:
        return None


async def read_from_database(database: Database, model: str) -> Pointer:
    """What agents use according to the database, from one snapshot."""
    async with (
        database.pool.acquire() as connection,
        connection.transaction(isolation="repeatable_read", readonly=True),
    ):
        now_serving = await in_state(connection, model, PromotionState.SERVING)
        trial = await in_state(connection, model, PromotionState.CANARY)
        if trial is None:
            return Pointer(model, now_serving)
        agents = await canary_agents_of(connection, trial)
    return Pointer(model, now_serving, Canary(trial, agents))


_UNWRITTEN = (
    "the database has what agents use now, but not the copy that serve.py reads; free some space and run "
    "`promote.py --list`, which writes it."
)


async def sync(database: Database, home: Path, model: str) -> Pointer:
    """Make the file agree with the database. Concurrent calls end with the newer state, whichever writes last."""
    while True:
        pointer = await read_from_database(database, model)
        path = pointer_file(home, model)
        with told_if_full(path.parent, _UNWRITTEN):
            _write(path, pointer)
        if await read_from_database(database, model) == pointer:
            return pointer


def _write(path: Path, pointer: Pointer) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(pointer))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
