"""Evaluations in the ledger: written once, ruled on once, read by the report; and the proof that nothing leaked."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from data_bridge.database import Database
from data_bridge.window_ids import is_held_out
from trainer.evidence import Evaluation, GateDecision, from_json, to_json


async def save(database: Database, evaluation: Evaluation) -> None:
    candidate, gain = evaluation.candidate, evaluation.score_difference
    await database.pool.execute(
        "INSERT INTO hindsight.evaluations (evaluation_id, run_id, model, candidate_step, incumbent_step, judge,"
        " windows, gain, gain_low, gain_high, report, created_at, prompt_version, lessons_policy)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11::jsonb, $12, $13, $14)",
        *(evaluation.evaluation_id, evaluation.run_id, evaluation.model, candidate.step, evaluation.compared_with[1]),
        *(evaluation.judge.judge, gain.windows, gain.mean, gain.low, gain.high),
        to_json(evaluation).replace("\\u0000", "\\ufffd"),  # jsonb does not accept NUL, which a model can produce
        *(evaluation.created_at, candidate.prompt_version, candidate.lessons_policy),
    )


async def keep_ruling(database: Database, evaluation: Evaluation, decision: GateDecision) -> None:
    await database.pool.execute(
        "UPDATE hindsight.evaluations SET ruling = $2, reasons = $3 WHERE evaluation_id = $1",
        *(evaluation.evaluation_id, decision.ruling.value, list(decision.reasons)),
    )


async def latest_evaluation(
    database: Database, model: str, step: int, *, against: int | None = None
) -> Evaluation | None:
    """The newest evaluation of a checkpoint; with ``against``, the newest comparison with that step of ``model``."""
    text = await database.pool.fetchval(
        "SELECT report::text FROM hindsight.evaluations WHERE model = $1 AND candidate_step = $2"
        " AND ($3::int IS NULL OR (incumbent_step = $3"
        "   AND coalesce(report -> 'incumbent' ->> 'model', model) = model))"
        " ORDER BY created_at DESC LIMIT 1",
        *(model, step, against),
    )
    return None if text is None else from_json(text)


async def trained_among(database: Database, models: Collection[str], window_ids: Sequence[str]) -> set[str]:
    """Which of these windows a batch of any of ``models`` contains."""
    rows = await database.pool.fetch(
        "SELECT DISTINCT window_id FROM hindsight.batch_trajectories"
        " WHERE model = ANY($1) AND window_id = ANY($2) AND NOT released",
        *(list(models), list(window_ids)),
    )
    return {row["window_id"] for row in rows}


async def leaked_windows(database: Database, held_out_share: float) -> set[str]:
    """Held-out windows in any batch, whatever its state: must be empty, or held-out data has leaked."""
    rows = await database.pool.fetch("SELECT DISTINCT window_id FROM hindsight.batch_trajectories")
    return {row["window_id"] for row in rows if is_held_out(row["window_id"], held_out_share)}
