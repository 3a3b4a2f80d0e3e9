"""The prompt policy's memory: experience, checkpoints and their names.

The current policy is the checkpoint with the highest version; experience is usable while the version that acted is the
current one. An update is one transaction: the new checkpoint and the mark on everything that it was learnt from. So
whoever is killed in an update leaves the checkpoint before it and all experience as they were, and no experience is
used twice. ``one_update_at_a_time`` keeps two processes from learning the same thing at once; were it to fail, the
second one's version would be taken already.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import asyncpg
import msgspec

from data_bridge.database import Database
from data_bridge.errors import ConfigurationError
from trainer.ledger.turns import one_at_a_time

KEPT = 3
"""Checkpoints whose weights are kept although nobody named them: the newest."""


class UnknownVersion(ConfigurationError):
    """There never was such a version or name."""


class NameTaken(ConfigurationError):
    """The name means another version."""


class OtherExperience(ConfigurationError):
    """The same id was given to something else."""


@dataclass(frozen=True, slots=True)
class PolicyLosses:
    """What an update did."""

    version: int
    experience: int
    policy_loss: float
    value_loss: float
    entropy: float
    approx_kl: float
    clip_share: float
    explained_variance: float | None
    learning_rate: float


@dataclass(frozen=True, slots=True)
class PolicyCheckpoint:
    version: int
    parent: int | None
    sha256: str
    weights: bytes


@dataclass(frozen=True, slots=True)
class SentExperience:
    """One decision and its reward, as it was sent."""

    experience_id: str
    version: int
    episode: str
    step: int
    embedding: bytes
    """Numbers of four bytes."""
    action_mask: tuple[bool, ...]
    action: int
    reward: float
    done: bool


@dataclass(frozen=True, slots=True)
class KeptExperience:
    """What came of storing one."""

    is_new: bool
    is_usable: bool
    version: int
    """The current one."""
    waiting: int


@dataclass(frozen=True, slots=True)
class PolicyCounts:
    version: int
    parent: int | None
    updates: int
    received: int
    trained: int
    waiting: int
    mean_reward: float | None
    by_action: dict[int, int]
    saved: list[str]
    last_update: PolicyLosses | None


async def newest_version(source: Any, policy: str) -> int:
    """0 before the first."""
    query = "SELECT coalesce(max(version), 0) FROM hindsight.policy_checkpoints WHERE policy = $1"
    return int(await source.fetchval(query, policy))


async def newest_checkpoint(source: Any, policy: str) -> PolicyCheckpoint | None:
    row = await source.fetchrow(
        "SELECT version, parent, sha256, weights FROM hindsight.policy_checkpoints WHERE policy = $1"
        " ORDER BY version DESC LIMIT 1",
        policy,
    )
    return None if row is None else PolicyCheckpoint(**row)


async def begin_policy(database: Database, policy: str, weights: bytes) -> None:
    """The first version, unless there is one."""
    await database.pool.execute(
        "INSERT INTO hindsight.policy_checkpoints (policy, version, weights, sha256) VALUES ($1, 1, $2, $3)"
        " ON CONFLICT DO NOTHING",
        *(policy, weights, _digest(weights)),
    )


def _digest(weights: bytes) -> str:
    return hashlib.sha256(weights).hexdigest()


# Experience

_STORE = """
INSERT INTO hindsight.policy_experience
    (policy, experience_id, version, episode, step, embedding, action_mask, action, reward, done)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT DO NOTHING RETURNING true
"""
_SAME = """
SELECT (version, episode, step, embedding, action_mask, action, reward, done) = ($3, $4, $5, $6, $7, $8, $9, $10)
  FROM hindsight.policy_experience WHERE policy = $1 AND experience_id = $2
"""
_WAITING = "SELECT count(*) FROM hindsight.policy_experience WHERE policy = $1 AND version = $2 AND trained_in IS NULL"


async def keep_experience(database: Database, policy: str, sent: SentExperience) -> KeptExperience:
    """Store it once. UnknownVersion for one that never was, OtherExperience if the id means something else."""
    values = _values(policy, sent)
    async with database.pool.acquire() as connection:
        try:
            is_new = bool(await connection.fetchval(_STORE, *values))
        except asyncpg.ForeignKeyViolationError:
            raise UnknownVersion(f"version: there was no version {sent.version} of the policy.") from None
        if not is_new and not await connection.fetchval(_SAME, *values):
            raise OtherExperience(f"experience_id: {sent.experience_id!r} was given to another experience.")
        version = await newest_version(connection, policy)
        waiting = int(await connection.fetchval(_WAITING, policy, version))
    return KeptExperience(is_new, sent.version == version, version, waiting)


async def keep_episode(database: Database, policy: str, steps: Sequence[SentExperience]) -> None:
    """Store all of them, or none. Their ids are new."""
    async with database.pool.acquire() as connection:
        await connection.executemany(_STORE, [_values(policy, one) for one in steps])  # which is one transaction


def _values(policy: str, sent: SentExperience) -> tuple[Any, ...]:
    where = (policy, sent.experience_id, sent.version, sent.episode, sent.step, sent.embedding)
    return (*where, list(sent.action_mask), sent.action, sent.reward, sent.done)


async def waiting_for_update(source: Any, policy: str, version: int) -> int:
    return int(await source.fetchval(_WAITING, policy, version))


async def experience_to_learn(source: Any, policy: str, version: int) -> list[SentExperience]:
    """Everything that ``version`` did and nobody has learnt from, in the order in which it came."""
    rows = await source.fetch(
        "SELECT experience_id, version, episode, step, embedding, action_mask, action, reward, done"
        " FROM hindsight.policy_experience WHERE policy = $1 AND version = $2 AND trained_in IS NULL"
        " ORDER BY received_at, experience_id",
        *(policy, version),
    )
    return [SentExperience(**{**row, "action_mask": tuple(row["action_mask"])}) for row in rows]


# Updates


def one_update_at_a_time(database: Database, policy: str) -> AbstractAsyncContextManager[bool]:
    """False if another process is at it. Ends with the process."""
    return one_at_a_time(database, f"policy {policy}")


async def commit_update(
    database: Database, policy: str, parent: int, weights: bytes, losses: PolicyLosses, learnt: Sequence[str]
) -> bool:
    """The version after ``parent``, and what it was learnt from: both or neither. False if ``parent`` is not the
    current version any more."""
    async with database.pool.acquire() as connection, connection.transaction():
        made = await connection.fetchval(
            "INSERT INTO hindsight.policy_checkpoints (policy, version, parent, weights, sha256, losses)"
            " VALUES ($1, $2 + 1, $2, $3, $4, $5::jsonb) ON CONFLICT DO NOTHING RETURNING version",
            *(policy, parent, weights, _digest(weights), msgspec.json.encode(losses).decode()),
        )
        if made is None:
            return False
        marked = await connection.execute(
            "UPDATE hindsight.policy_experience SET trained_in = $3 WHERE policy = $1 AND version = $2"
            " AND trained_in IS NULL AND experience_id = ANY($4)",
            *(policy, parent, made, list(learnt)),
        )
        if marked != f"UPDATE {len(learnt)}":
            raise ValueError(f"{marked} of {len(learnt)} experiences could be marked as learnt from")
        await _forget_weights(connection, policy)
    return True


async def _forget_weights(connection: Any, policy: str) -> None:
    await connection.execute(
        "UPDATE hindsight.policy_checkpoints c SET weights = NULL WHERE policy = $1 AND weights IS NOT NULL"
        " AND version <= (SELECT max(version) FROM hindsight.policy_checkpoints WHERE policy = $1) - $2 AND NOT EXISTS"
        " (SELECT FROM hindsight.policy_names n WHERE n.policy = c.policy AND n.version = c.version)",
        *(policy, KEPT),
    )


# Names


async def name_version(database: Database, policy: str, name: str) -> tuple[bool, PolicyCheckpoint]:
    """Whether the name is new, and the current version that it means. NameTaken if it means another."""
    async with database.pool.acquire() as connection, connection.transaction():
        current = await newest_checkpoint(connection, policy)
        assert current is not None
        is_new = await connection.fetchval(
            "INSERT INTO hindsight.policy_names (policy, name, version) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"
            " RETURNING true",
            *(policy, name, current.version),
        )
        query = "SELECT version FROM hindsight.policy_names WHERE policy = $1 AND name = $2"
        if not is_new and (other := await connection.fetchval(query, policy, name)) != current.version:
            raise NameTaken(f"name: {name!r} is version {other} of the policy; choose another name.")
    return bool(is_new), current


async def load_version(database: Database, policy: str, name: str) -> tuple[int, PolicyCheckpoint]:
    """A named version again as a new one, which is the current one then. UnknownVersion if there is none."""
    async with database.pool.acquire() as connection, connection.transaction():
        source = await connection.fetchval(
            "SELECT version FROM hindsight.policy_names WHERE policy = $1 AND name = $2", policy, name
        )
        if source is None:
            raise UnknownVersion(f"name: no version of the policy was saved as {name!r}.")
        row = await connection.fetchrow(
            "INSERT INTO hindsight.policy_checkpoints (policy, version, parent, weights, sha256)"
            " SELECT policy, (SELECT max(version) FROM hindsight.policy_checkpoints WHERE policy = $1) + 1, version,"
            " weights, sha256 FROM hindsight.policy_checkpoints WHERE policy = $1 AND version = $2"
            " RETURNING version, parent, sha256, weights",
            *(policy, source),
        )
        await _forget_weights(connection, policy)
    assert row is not None
    return int(source), PolicyCheckpoint(**row)


async def policy_counts(database: Database, policy: str) -> PolicyCounts:
    """From one snapshot, so that the numbers add up."""
    async with (
        database.pool.acquire() as connection,
        connection.transaction(isolation="repeatable_read", readonly=True),
    ):
        version = await newest_version(connection, policy)
        parent = await connection.fetchval(
            "SELECT parent FROM hindsight.policy_checkpoints WHERE policy = $1 AND version = $2", policy, version
        )
        losses = await connection.fetch(
            "SELECT losses::text FROM hindsight.policy_checkpoints WHERE policy = $1 AND losses IS NOT NULL"
            " ORDER BY version DESC",
            policy,
        )
        rows = await connection.fetch(
            "SELECT action, count(*) AS number, count(trained_in) AS trained, sum(reward) AS reward,"
            " count(*) FILTER (WHERE trained_in IS NULL AND version = $2) AS waiting"
            " FROM hindsight.policy_experience WHERE policy = $1 GROUP BY action",
            *(policy, version),
        )
        saved = await connection.fetch(
            "SELECT name FROM hindsight.policy_names WHERE policy = $1 ORDER BY named_at DESC, name", policy
        )
    received = sum(row["number"] for row in rows)
    return PolicyCounts(
        version,
        parent,
        len(losses),
        received,
        sum(row["trained"] for row in rows),
        sum(row["waiting"] for row in rows),
        sum(row["reward"] for row in rows) / received if received else None,
        {row["action"]: row["number"] for row in rows},
        [row["name"] for row in saved],
        msgspec.json.decode(losses[0]["losses"], type=PolicyLosses) if losses else None,
    )
