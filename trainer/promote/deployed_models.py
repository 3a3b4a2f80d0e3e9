"""The game's own table of models, by which its agents find what to use.

Agents pick up a model that is ``ready`` or ``deployed``, so at every moment exactly one row is. The table knows no
model names of ours: with several models in one database the one promoted last is the one deployed. All of this runs
inside the transaction of ``promote``. The game's times are naive UTC.
"""

from __future__ import annotations

import json
from typing import Any

from trainer.evidence import Evaluation, Role
from trainer.ledger.releases import Promotion

_NOW = "(now() AT TIME ZONE 'UTC')"
_WRITE_MODEL = f"""
INSERT INTO "trained_models" ("id", "modelId", "version", "baseModel", "trainingBatch", "status", "storagePath",
    "benchmarkScore", "avgReward", "evalMetrics", "wandbArtifactId", "createdAt", "updatedAt")
VALUES ($1, $1, $2, $3, (SELECT batch_id FROM hindsight.checkpoints WHERE model = $4 AND step = $5), $6, $7, $8,
    (SELECT avg(t.score) FROM hindsight.batch_trajectories t JOIN hindsight.checkpoints c USING (batch_id)
     WHERE c.model = $4 AND c.step = $5), $9::jsonb, $10, {_NOW}, {_NOW})
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


async def deploy(connection: Any, promotion: Promotion, evaluation: Evaluation | None) -> None:
    """``ready``, then ``deployed``; everything else that agents could pick up is ``archived``."""
    await _write_model(connection, promotion, evaluation, status="ready")
    await connection.execute(_ARCHIVE_OTHERS, promotion.checkpoint.name)
    await connection.execute(_DEPLOY, promotion.checkpoint.name)


async def _write_model(connection: Any, promotion: Promotion, evaluation: Evaluation | None, *, status: str) -> None:
    checkpoint = promotion.checkpoint
    candidate = evaluation.of(Role.CANDIDATE) if evaluation is not None else None
    await connection.execute(
        _WRITE_MODEL,
        checkpoint.name,
        str(checkpoint.step),
        checkpoint.base_model,
        checkpoint.model,
        checkpoint.step,
        status,
        checkpoint.location,
        candidate.score.mean if candidate is not None else None,
        json.dumps(_eval_metrics(promotion, evaluation)),
        checkpoint.location if checkpoint.location.startswith("wandb-artifact:") else None,
    )


def _eval_metrics(promotion: Promotion, evaluation: Evaluation | None) -> dict[str, Any]:
    metrics: dict[str, Any] = {
        "baseUrl": promotion.base_url,
        "servedModel": promotion.served_model,
        "promotionId": promotion.promotion_id,
        "canaryShare": promotion.canary_share,
    }
    candidate = evaluation.of(Role.CANDIDATE) if evaluation is not None else None
    if evaluation is not None and candidate is not None:
        gain = evaluation.score_difference
        metrics |= {
            "judge": evaluation.judge.judge,
            "windows": gain.windows,
            "gain": gain.mean,
            "gainLow": gain.low,
            "gainHigh": gain.high,
            "errorRate": candidate.error_rate.mean,
            "pnl": candidate.pnl.mean if candidate.pnl is not None else None,
        }
    return metrics


async def offer_to_canary(connection: Any, promotion: Promotion, evaluation: Evaluation | None) -> None:
    """A row that says where the canary is; agents that are not the canary's do not pick this status up."""
    await _write_model(connection, promotion, evaluation, status="canary")


async def archive(connection: Any, promotion: Promotion) -> None:
    await connection.execute(_ARCHIVE_ONE, promotion.checkpoint.name)
