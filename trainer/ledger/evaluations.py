"""Evaluations in the ledger: what each consulted, the one ruling on it, and what the gate's looks have spent.

A window counts as it was measured first, and each look at a candidate is counted: evaluating again, with another seed
or other flags, finds no new window and so changes no ruling.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from data_bridge.database import Database
from data_bridge.window_ids import end_of
from trainer.evidence import Evaluation, GateDecision, Look, Ruling, from_json, to_json
from trainer.ledger.states import WindowState
from trainer.types import Release


async def save(database: Database, evaluation: Evaluation) -> None:
    candidate, gain = evaluation.candidate, evaluation.score_difference
    async with database.pool.acquire() as connection, connection.transaction():
        await connection.execute(
            "INSERT INTO hindsight.evaluations (evaluation_id, run_id, model, candidate_step, incumbent_step, judge,"
            " windows, gain, gain_low, gain_high, report, created_at, prompt_version, lessons_policy)"
            " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11::jsonb, $12, $13, $14)",
            *(evaluation.evaluation_id, evaluation.run_id, evaluation.model),
            *(candidate.step, evaluation.compared_with[1], evaluation.judge.judge),
            *(gain.windows, gain.mean, gain.low, gain.high),
            to_json(evaluation).replace("\\u0000", "\\ufffd"),  # jsonb does not accept NUL, which a model can produce
            *(evaluation.created_at, candidate.prompt_version, candidate.lessons_policy),
        )
        await connection.execute(
            "INSERT INTO hindsight.consultations (evaluation_id, window_id, model, consulted_at)"
            " SELECT $1, unnest($2::text[]), $3, $4",
            *(evaluation.evaluation_id, [window.window_id for window in evaluation.windows]),
            *(evaluation.model, evaluation.created_at),
        )


@asynccontextmanager
async def one_ruling_at_a_time(database: Database, model: str) -> AsyncIterator[Any]:
    """One transaction for a model's ruling, so that two hosts cannot spend the same part of the budget."""
    async with database.pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(hashtext('hindsight.gate ' || $1))", model)
        yield connection


@dataclass(frozen=True, slots=True)
class Ruled:
    """An evaluation that the gate has ruled on."""

    evaluation: Evaluation
    decision: GateDecision
    ruled_at: datetime


async def rulings_on(source: Any, evaluation: Evaluation) -> list[Ruled]:
    """Earlier rulings on the same candidate against the same incumbent by the same judge, oldest first."""
    candidate = evaluation.candidate
    rows = await source.fetch(
        "SELECT report::text AS report, ruling, reasons, look, harm_chance, expected_gain, ruled_at"
        " FROM hindsight.evaluations WHERE model = $1 AND candidate_step = $2 AND prompt_version = $3"
        " AND lessons_policy = $4 AND ruling IS NOT NULL AND evaluation_id <> $5 ORDER BY ruled_at",
        *(evaluation.model, candidate.step, candidate.prompt_version, candidate.lessons_policy),
        evaluation.evaluation_id,
    )
    found = [Ruled(from_json(row["report"]), _decision_of(row), row["ruled_at"]) for row in rows]
    return [
        ruled
        for ruled in found
        if ruled.evaluation.compared_with == evaluation.compared_with and ruled.evaluation.judge == evaluation.judge
    ]


async def ruling_of(database: Database, evaluation: Evaluation) -> list[Ruled]:
    """The ruling on this very evaluation, if there is one."""
    row = await database.pool.fetchrow(
        "SELECT * FROM hindsight.evaluations WHERE evaluation_id = $1 AND ruling IS NOT NULL", evaluation.evaluation_id
    )
    return [] if row is None else [Ruled(evaluation, _decision_of(row), row["ruled_at"])]


def _decision_of(row: Any) -> GateDecision:
    look = None if row["look"] is None else Look(row["look"], row["harm_chance"] or 0.0)
    return GateDecision(Ruling(row["ruling"]), tuple(row["reasons"]), row["expected_gain"], look)


async def spent_in_a_year(source: Any, model: str) -> float:
    """What the gate's looks of the last 365 days have spent of the budget for handing out a worse release."""
    spent = await source.fetchval(
        "SELECT coalesce(sum(harm_chance), 0) FROM hindsight.evaluations"
        " WHERE model = $1 AND ruled_at > now() - interval '365 days'",
        model,
    )
    return float(spent)


async def keep_ruling(source: Any, evaluation: Evaluation, decision: GateDecision) -> None:
    look = decision.look
    await source.execute(
        "UPDATE hindsight.evaluations SET ruling = $2, reasons = $3, expected_gain = $4, look = $5, harm_chance = $6,"
        " ruled_at = coalesce(ruled_at, now()) WHERE evaluation_id = $1",
        *(evaluation.evaluation_id, decision.ruling.value, list(decision.reasons), decision.expected_gain),
        *(None if look is None else look.number, None if look is None else look.harm_chance),
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


async def last_trained(database: Database, models: Collection[str]) -> datetime | None:
    """The end of the newest window in a batch of any of ``models``; None if none was trained."""
    row = await database.pool.fetchrow(
        "SELECT t.window_id, (SELECT max(hours) FROM hindsight.windows w WHERE w.window_id = t.window_id) AS hours"
        " FROM hindsight.batch_trajectories t WHERE t.model = ANY($1) AND NOT t.released"
        " ORDER BY t.window_id DESC LIMIT 1",
        list(models),
    )
    return None if row is None else end_of(row["window_id"], row["hours"] or 1)


async def windows_ruled_on(database: Database, model: str | None = None, *, but: Release | None = None) -> set[str]:
    """The windows that a ruling has used, of ``model`` or of all; without those of rulings on the release ``but``."""
    rows = await database.pool.fetch(
        "SELECT DISTINCT c.window_id FROM hindsight.consultations c JOIN hindsight.evaluations e USING (evaluation_id)"
        " WHERE e.ruling IS NOT NULL AND ($1::text IS NULL OR e.model = $1) AND ($2::int IS NULL"
        " OR (e.candidate_step, e.prompt_version, e.lessons_policy) IS DISTINCT FROM ($2, $3, $4))",
        *(model, None if but is None else but.step),
        *((None, None) if but is None else (but.prompt_version, but.lessons_policy)),
    )
    return {row["window_id"] for row in rows}


async def unreached_among(database: Database, model: str, window_ids: Collection[str]) -> set[str]:
    """Which of these windows no run of ``model`` has reached."""
    rows = await database.pool.fetch(
        "SELECT DISTINCT w.window_id FROM hindsight.windows w JOIN hindsight.runs r USING (run_id)"
        " WHERE r.model = $1 AND w.window_id = ANY($2) AND w.state <> $3",
        *(model, list(window_ids), WindowState.PLANNED.value),
    )
    return set(window_ids) - {row["window_id"] for row in rows}


async def leaked_windows(database: Database) -> set[str]:
    """Windows on which a release was ruled although a batch of its own past contains them: must be empty."""
    rows = await database.pool.fetch(
        "SELECT DISTINCT c.window_id FROM hindsight.consultations c JOIN hindsight.evaluations e USING (evaluation_id)"
        " JOIN hindsight.batch_trajectories t ON t.window_id = c.window_id AND t.model = e.model AND NOT t.released"
        " JOIN hindsight.batches b ON b.batch_id = t.batch_id AND b.step <= e.candidate_step"
        " WHERE e.ruling IS NOT NULL"
    )
    return {row["window_id"] for row in rows}


@dataclass(frozen=True, slots=True)
class WayBack:
    """Where training goes on instead of the newest checkpoint, and why."""

    step: int
    reason: str


async def way_back(database: Database, model: str, newest: int, max_undecided: int) -> WayBack | None:
    """What the agents use, if the newest checkpoint was refused or too many in a row were undecided; else None.

    A refused checkpoint is no better than the incumbent, and one that has collapsed could not even learn from what
    follows.
    """
    rows = await database.pool.fetch(
        "SELECT DISTINCT ON (candidate_step) candidate_step, ruling, reasons[1] AS reason FROM hindsight.evaluations"
        " WHERE model = $1 AND ruling IS NOT NULL ORDER BY candidate_step DESC, ruled_at DESC LIMIT $2",
        *(model, max(1, max_undecided)),
    )
    if not rows or rows[0]["candidate_step"] != newest:
        return None
    used = await database.pool.fetchval(
        "SELECT step FROM hindsight.promotions WHERE model = $1 AND state = 'serving'", model
    )
    step, rulings = used or 0, [row["ruling"] for row in rows]
    if step == newest:
        return None
    if rulings[0] == Ruling.REFUSE:
        return WayBack(step, f"step {newest} was refused: {rows[0]['reason']}")
    if 0 < max_undecided <= len(rulings) and set(rulings) == {Ruling.UNDECIDED.value}:
        return WayBack(step, f"{len(rulings)} checkpoints in a row were undecided, the last of them step {newest}")
    return None
