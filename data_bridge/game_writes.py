"""The game's own rows that Hindsight writes, and the few facts it reads back for that.

For judged groups: the judge columns and ``reward_judgments``. For a durable batch: the marks of use and
``training_batches``. For a release: ``trained_models``. Every function runs in the caller's transaction, so that the
ledger and the game change together. The game's times are naive UTC.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from data_bridge.database import Database
from data_bridge.errors import DatabaseError

_VERDICT = (
    "judgeModel", "judgeVersion", "overallScore", "rank", "normalizedScore", "groupId", "reasoning", "criteriaJson",
    "judgedAt",
)  # fmt: skip

NEEDED_COLUMNS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "trajectories": {
        "SELECT": ("trajectoryId",),
        "UPDATE": ("usedInTraining", "trainedInBatch", "aiJudgeReward", "aiJudgeReasoning", "judgedAt", "updatedAt"),
    },
    "reward_judgments": {
        "SELECT": ("trajectoryId", *_VERDICT),  # an upsert that uses EXCLUDED needs it
        "INSERT": ("id", "trajectoryId", *_VERDICT),
        "UPDATE": (*_VERDICT, "componentScoresJson", "strengthsJson", "weaknessesJson"),
    },
    "training_batches": {
        "SELECT": ("batchId",),
        "INSERT": (
            "id",
            "batchId",
            "baseModel",
            "modelVersion",
            "trajectoryIds",
            "rewardsJson",
            "trainingLoss",
            "status",
            "createdAt",
            "startedAt",
            "completedAt",
        ),
        "UPDATE": ("status", "error"),
    },
}
"""The privileges on the game's tables that ``mark_trained`` and ``unmark_trained`` need, by column; a test grants
a role no more than this. Checked before anything is paid: a trained batch that cannot be recorded blocks every start.
"""

_PRIVILEGES = """
SELECT a.attname, has_column_privilege(a.attrelid, a.attnum, 'SELECT') AS "SELECT",
       has_column_privilege(a.attrelid, a.attnum, 'INSERT') AS "INSERT",
       has_column_privilege(a.attrelid, a.attnum, 'UPDATE') AS "UPDATE"
  FROM pg_attribute a WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped
"""


async def check_writable(database: Database) -> None:
    """DatabaseError that names the first of the game's tables or columns that is missing or not writable."""
    for table, needed in NEEDED_COLUMNS.items():
        found = {row["attname"]: row for row in await database.pool.fetch(_PRIVILEGES, table)}
        if not found:
            raise DatabaseError(f"{database.label} has no table {table}: is DATABASE_URL the game's database?")
        for privilege, column in ((name, column) for name, columns in needed.items() for column in columns):
            if column not in found:
                raise DatabaseError(
                    f'{database.label} has no column "{column}" in {table}: bring the game\'s schema up to date.'
                )
            if not found[column][privilege]:
                raise DatabaseError(
                    f'The role in DATABASE_URL may not {privilege} "{column}" of {table}: grant it, '
                    "or train with --dry-run only."
                )


@dataclass(frozen=True, slots=True)
class GroupVerdicts:
    """The verdicts of one group as the game's columns hold them; the sequences are in the same order."""

    group_id: str
    judge: str
    judge_version: str
    criteria: Mapping[str, Any]
    trajectory_ids: Sequence[str]
    scores: Sequence[float]
    explanations: Sequence[str]


_TRAJECTORIES = """
UPDATE trajectories AS t
   SET "aiJudgeReward" = v.score, "aiJudgeReasoning" = v.reasoning,
       "judgedAt" = now() AT TIME ZONE 'UTC', "updatedAt" = now() AT TIME ZONE 'UTC'
  FROM unnest($1::text[], $2::float8[], $3::text[]) AS v(trajectory, score, reasoning)
 WHERE t."trajectoryId" = v.trajectory
"""

# Joined with ``trajectories`` because the game may have deleted a row since it was read.
_JUDGMENTS = """
INSERT INTO reward_judgments ("id", "trajectoryId", "judgeModel", "judgeVersion", "overallScore", "rank",
                              "normalizedScore", "groupId", "reasoning", "criteriaJson", "judgedAt")
SELECT v.id, v.trajectory, $5, $6, v.score, v.rank, v.score, $7, v.reasoning, $8, now() AT TIME ZONE 'UTC'
  FROM unnest($1::text[], $2::text[], $3::float8[], $4::int[], $9::text[]) AS v(id, trajectory, score, rank, reasoning)
  JOIN trajectories AS t ON t."trajectoryId" = v.trajectory
    ON CONFLICT ("trajectoryId") DO UPDATE
   SET "judgeModel" = EXCLUDED."judgeModel", "judgeVersion" = EXCLUDED."judgeVersion",
       "overallScore" = EXCLUDED."overallScore", "rank" = EXCLUDED."rank",
       "normalizedScore" = EXCLUDED."normalizedScore", "groupId" = EXCLUDED."groupId",
       "reasoning" = EXCLUDED."reasoning", "criteriaJson" = EXCLUDED."criteriaJson",
       "judgedAt" = EXCLUDED."judgedAt", "componentScoresJson" = NULL,
       "strengthsJson" = NULL, "weaknessesJson" = NULL
"""


async def write_verdicts(connection: Any, group: GroupVerdicts) -> None:
    """Set the judge's columns of the group's trajectories and upsert their ``reward_judgments``.

    Writing the same verdicts again changes only the times.
    """
    ids, scores, explanations = list(group.trajectory_ids), list(group.scores), list(group.explanations)
    await connection.execute(_TRAJECTORIES, ids, scores, explanations)
    await connection.execute(
        _JUDGMENTS,
        [str(uuid.uuid4()) for _ in ids],
        ids,
        scores,
        [1 + sum(other > score for other in scores) for score in scores],
        group.judge,
        group.judge_version,
        group.group_id,
        json.dumps(group.criteria),
        explanations,
    )


@dataclass(frozen=True, slots=True)
class TrainedBatch:
    """A batch whose checkpoint is durable."""

    batch_id: str
    base_model: str
    model_version: str
    """Name of the checkpoint that the batch produced."""
    loss: float | None
    prepared_at: datetime
    started_at: datetime
    groups: Sequence[GroupVerdicts]


async def mark_trained(connection: Any, batch: TrainedBatch) -> None:
    """Write the verdicts, the marks of use and the batch as the game reads them back.

    Every member of a trained group counts as used, even if its own tokens were left out: it contributed to the group's
    mean, and comparing it with others later would train on half a group.
    """
    for group in batch.groups:
        await write_verdicts(connection, group)
    ids = [trajectory_id for group in batch.groups for trajectory_id in group.trajectory_ids]
    await connection.execute(
        'UPDATE trajectories SET "usedInTraining" = true, "trainedInBatch" = $2,'
        ' "updatedAt" = now() AT TIME ZONE \'UTC\' WHERE "trajectoryId" = ANY($1::text[])',
        ids,
        batch.batch_id,
    )
    await connection.execute(
        'INSERT INTO training_batches ("id", "batchId", "baseModel", "modelVersion", "trajectoryIds", "rewardsJson",'
        ' "trainingLoss", "status", "createdAt", "startedAt", "completedAt")'
        " VALUES ($1, $2, $3, $4, $5, $6, $7, 'completed', $8::timestamptz AT TIME ZONE 'UTC',"
        " $9::timestamptz AT TIME ZONE 'UTC', now() AT TIME ZONE 'UTC') ON CONFLICT (\"batchId\") DO NOTHING",
        str(uuid.uuid4()),
        batch.batch_id,
        batch.base_model,
        batch.model_version,
        json.dumps(ids),
        json.dumps([score for group in batch.groups for score in group.scores]),
        batch.loss,
        batch.prepared_at,
        batch.started_at,
    )


async def unmark_trained(connection: Any, batch_id: str, trajectory_ids: Sequence[str]) -> None:
    """The batch's checkpoint was lost, so its trajectories were not used after all: those that our ledger names."""
    await connection.execute(
        'UPDATE trajectories SET "usedInTraining" = false, "trainedInBatch" = NULL,'
        ' "updatedAt" = now() AT TIME ZONE \'UTC\' WHERE "trajectoryId" = ANY($1::text[])',
        list(trajectory_ids),
    )
    await connection.execute(
        'UPDATE training_batches SET "status" = \'failed\', "error" = \'its checkpoint was lost\' WHERE "batchId" = $1',
        batch_id,
    )


@dataclass(frozen=True, slots=True)
class OfferedModel:
    """A release as the game's table of models names it."""

    model_id: str
    version: str
    base_model: str
    batch_id: str | None
    location: str
    score: float | None
    """The score of the evaluation, where there was one."""
    mean_reward: float | None
    metrics: Mapping[str, Any]


# The game's table does not have our model names: with several models in one database, the last one promoted is the one
# deployed. Agents pick up a model that is ``ready`` or ``deployed``, so exactly one row is at any time.
_NOW = "(now() AT TIME ZONE 'UTC')"
_WRITE_MODEL = f"""
INSERT INTO "trained_models" ("id", "modelId", "version", "baseModel", "trainingBatch", "status", "storagePath",
    "benchmarkScore", "avgReward", "evalMetrics", "wandbArtifactId", "createdAt", "updatedAt")
VALUES ($1, $1, $2, $3, $4, $5, $6, $7, $8, $9::jsonb, $10, {_NOW}, {_NOW})
ON CONFLICT ("modelId") DO UPDATE SET "status" = excluded."status", "storagePath" = excluded."storagePath",
    "benchmarkScore" = coalesce(excluded."benchmarkScore", "trained_models"."benchmarkScore"),
    "evalMetrics" = coalesce("trained_models"."evalMetrics", '{{}}') || excluded."evalMetrics",
    "archivedAt" = NULL, "updatedAt" = {_NOW}
"""
_ARCHIVE_OTHERS = f"""
UPDATE "trained_models" SET "status" = 'archived', "archivedAt" = {_NOW}, "updatedAt" = {_NOW}
WHERE "status" IN ('ready', 'deployed', 'canary') AND "modelId" <> $1
"""
_ARCHIVE_ONE = f"""
UPDATE "trained_models" SET "status" = 'archived', "archivedAt" = {_NOW}, "updatedAt" = {_NOW} WHERE "modelId" = $1
"""
_DEPLOY = f"""
UPDATE "trained_models" SET "status" = 'deployed', "deployedAt" = {_NOW}, "updatedAt" = {_NOW}
WHERE "modelId" = $1 AND "status" = 'ready'
"""


async def deploy(connection: Any, model: OfferedModel) -> None:
    """``ready``, then ``deployed``; everything else that agents could pick up is ``archived``."""
    await _write_model(connection, model, status="ready")
    await connection.execute(_ARCHIVE_OTHERS, model.model_id)
    await connection.execute(_DEPLOY, model.model_id)


async def offer_to_canary(connection: Any, model: OfferedModel) -> None:
    """Write a row with the canary's location; agents outside the canary ignore this status."""
    await _write_model(connection, model, status="canary")


async def archive(connection: Any, model_id: str) -> None:
    await connection.execute(_ARCHIVE_ONE, model_id)


async def _write_model(connection: Any, model: OfferedModel, *, status: str) -> None:
    await connection.execute(
        _WRITE_MODEL,
        model.model_id,
        model.version,
        model.base_model,
        model.batch_id,
        status,
        model.location,
        model.score,
        model.mean_reward,
        json.dumps(model.metrics),
        model.location if model.location.startswith("wandb-artifact:") else None,
    )


async def recent_agents(connection: Any, now: datetime) -> list[str]:
    """The agents that played in the last week of the log. A row that begins after ``now`` says nothing."""
    rows = await connection.fetch(
        'SELECT DISTINCT "agentId" AS agent_id FROM trajectories WHERE "startTime" <= $1'
        ' AND "startTime" > (SELECT max("startTime") FROM trajectories WHERE "startTime" <= $1) - interval \'7 days\'',
        now.astimezone(UTC).replace(tzinfo=None),
    )
    return [row["agent_id"] for row in rows]


async def newest_window(connection: Any, now: datetime) -> str | None:
    """The id of the newest window that any row names and that has begun by ``now``."""
    found: str | None = await connection.fetchval(
        "SELECT left(\"windowId\", 13) || ':00' FROM trajectories"
        ' WHERE "windowId" ~ \'^\\d{4}-\\d\\d-\\d\\dT\\d\\d:\' AND left("windowId", 13) COLLATE "C" <= $1'
        ' ORDER BY "windowId" DESC LIMIT 1',
        f"{now.astimezone(UTC):%Y-%m-%dT%H}",
    )
    return found
