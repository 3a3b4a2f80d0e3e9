"""The game's own rows that a durable batch changes: who was used, in which batch, with which reward."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any

from data_bridge.database import Database
from data_bridge.errors import DatabaseError
from trainer.judge.write_back import write_back
from trainer.ledger.batch_record import BatchRecord
from trainer.types import StepResult

_VERDICT = (
    "judgeModel",
    "judgeVersion",
    "overallScore",
    "rank",
    "normalizedScore",
    "groupId",
    "reasoning",
    "criteriaJson",
    "judgedAt",
)

NEEDED_COLUMNS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "trajectories": {
        "SELECT": ("trajectoryId", "trainedInBatch"),
        "UPDATE": (
            "usedInTraining",
            "trainedInBatch",
            "aiJudgeReward",
            "aiJudgeReasoning",
            "judgedAt",
            "updatedAt",
        ),
    },
    "reward_judgments": {
        "SELECT": ("trajectoryId", *_VERDICT),  # Postgres asks for it where an upsert says EXCLUDED
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
"""What ``mark_trained`` and ``unmark_trained`` may do with the game's tables, column by column; a test grants a role
no more than this. Asked for before anything is paid: a batch that is trained and cannot be recorded stops every start.
"""

_PRIVILEGES = """
SELECT a.attname, has_column_privilege(a.attrelid, a.attnum, 'SELECT') AS "SELECT",
       has_column_privilege(a.attrelid, a.attnum, 'INSERT') AS "INSERT",
       has_column_privilege(a.attrelid, a.attnum, 'UPDATE') AS "UPDATE"
  FROM pg_attribute a WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped
"""


async def check_writable(database: Database) -> None:
    """DatabaseError naming the first table or column of the game's that is missing or may not be written."""
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


async def mark_trained(connection: Any, record: BatchRecord, result: StepResult) -> None:
    """In the caller's transaction: verdicts, use and batch as the game reads them back.

    Every member of a trained group counts as used, also one whose own tokens were left out: it set the group's
    mean, and to compare it with others later would train on half a group.
    """
    for group in record.groups:
        await write_back(connection, group.as_judged())
    ids = [verdict.trajectory_id for _, _, verdict in record.members()]
    rewards = [verdict.score for _, _, verdict in record.members()]
    await connection.execute(
        'UPDATE trajectories SET "usedInTraining" = true, "trainedInBatch" = $2,'
        ' "updatedAt" = now() AT TIME ZONE \'UTC\' WHERE "trajectoryId" = ANY($1::text[])',
        ids,
        record.batch_id,
    )
    await connection.execute(
        'INSERT INTO training_batches ("id", "batchId", "baseModel", "modelVersion", "trajectoryIds", "rewardsJson",'
        ' "trainingLoss", "status", "createdAt", "startedAt", "completedAt")'
        " SELECT $1, $2, $3, $4, $5, $6, $7, 'completed', prepared_at AT TIME ZONE 'UTC',"
        " coalesce(submitted_at, prepared_at) AT TIME ZONE 'UTC', now() AT TIME ZONE 'UTC'"
        ' FROM hindsight.batches WHERE batch_id = $2 ON CONFLICT ("batchId") DO NOTHING',
        str(uuid.uuid4()),
        record.batch_id,
        result.checkpoint.base_model,
        result.checkpoint.name,
        json.dumps(ids),
        json.dumps(rewards),
        result.metrics.get("loss"),
    )


async def unmark_trained(connection: Any, batch_id: str) -> None:
    """In the caller's transaction: the batch's checkpoint was lost, so its trajectories were not used after all."""
    await connection.execute(
        'UPDATE trajectories SET "usedInTraining" = false, "trainedInBatch" = NULL,'
        ' "updatedAt" = now() AT TIME ZONE \'UTC\' WHERE "trainedInBatch" = $1',
        batch_id,
    )
    await connection.execute(
        'UPDATE training_batches SET "status" = \'failed\', "error" = \'its checkpoint was lost\' WHERE "batchId" = $1',
        batch_id,
    )
