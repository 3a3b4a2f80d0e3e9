"""The verdicts of a group, written into the game's own columns.

One statement for each table, so that the caller's transaction covers both: ``judge_windows --write-back``
opens one for each window, the ledger calls it inside the transaction that marks a batch durable.
"""

from __future__ import annotations

import json
import uuid
from typing import Any

from trainer.types import JudgedGroup

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


async def write_back(connection: Any, judged: JudgedGroup) -> None:
    """Set the judge's columns of the group's trajectories and upsert their ``reward_judgments``.

    Runs in the caller's transaction on an asyncpg connection; writing the same verdict again changes only the times.
    """
    ids = [verdict.trajectory_id for verdict in judged.verdicts]
    scores = [verdict.score for verdict in judged.verdicts]
    reasons = [verdict.explanation for verdict in judged.verdicts]
    ranks = [1 + sum(other > score for other in scores) for score in scores]
    identity = judged.identity
    criteria = json.dumps(
        {
            "rubric": identity.rubric,
            "rubricVersion": identity.rubric_version,
            "promptVersion": identity.prompt_version,
            "isLLM": identity.is_llm,
            "verdictKey": judged.verdict_key,
            "uncertainty": {verdict.trajectory_id: verdict.uncertainty for verdict in judged.verdicts},
        }
    )
    version = f"{identity.rubric}@{identity.rubric_version}"
    await connection.execute(_TRAJECTORIES, ids, scores, reasons)
    await connection.execute(
        _JUDGMENTS,
        [str(uuid.uuid4()) for _ in ids],
        ids,
        scores,
        ranks,
        identity.judge,
        version,
        judged.group.group_id,
        criteria,
        reasons,
    )
