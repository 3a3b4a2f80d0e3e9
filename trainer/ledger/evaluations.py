"""Evaluations in the ledger: what each consulted, the ruling on it, what the gate's looks spent, and the way back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from data_bridge.database import Database
from data_bridge.window_ids import end_of
from trainer.evidence import Evaluation, GateDecision, Look, Ruling, from_json, to_json
from trainer.ledger.events import EventKind, tell
from trainer.ledger.states import WindowState
from trainer.types import Release


async def save(database: Database, evaluation: Evaluation) -> None:
    """Store an evaluation, in its order among rulings: a window counts for whoever is stored first, by one clock."""
    candidate, gain = evaluation.candidate, evaluation.score_difference
    async with one_ruling_at_a_time(database, evaluation.model) as connection:
        await connection.execute(
            "INSERT INTO hindsight.evaluations (evaluation_id, run_id, model, candidate_step, incumbent_step, judge,"
            " windows, gain, gain_low, gain_high, report, created_at, prompt_version, lessons_policy)"
            " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11::jsonb, clock_timestamp(), $12, $13)",
            *(evaluation.evaluation_id, evaluation.run_id, evaluation.model),
            *(candidate.step, evaluation.compared_with[1], evaluation.judge.judge),
            *(gain.windows, gain.mean, gain.low, gain.high),
            to_json(evaluation).replace("\\u0000", "\\ufffd"),  # jsonb does not accept NUL, which a model can produce
            *(candidate.prompt_version, candidate.lessons_policy),
        )
        await connection.execute(
            "INSERT INTO hindsight.consultations (evaluation_id, window_id) SELECT $1, unnest($2::text[])"
            " ON CONFLICT DO NOTHING",
            *(evaluation.evaluation_id, [one.window_id for one in evaluation.windows]),
        )


_MAX_HOURS = 24 * 7
"""No window is longer."""


@asynccontextmanager
async def one_ruling_at_a_time(database: Database, model: str) -> AsyncIterator[Any]:
    """One transaction for a model's ruling, so that two hosts cannot spend the same part of the budget."""
    async with database.pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(hashtext('hindsight.gate ' || $1))", model)
        yield connection


_OF_THIS_CHECKPOINT = (
    " AND created_at >= coalesce((SELECT c.created_at FROM hindsight.checkpoints c"
    " WHERE c.model = evaluations.model AND c.step = evaluations.candidate_step), '-infinity')"
)
"""Not of one with the same step that was lost, after which the step was trained again."""

_OF_ITS_WEIGHTS = (
    " AND lessons_policy = coalesce(report -> 'incumbent' ->> 'lessons_policy', '')"
    " AND prompt_version = coalesce(report -> 'incumbent' ->> 'prompt_version', '')"
)
"""Not of other lessons or prompts: a refused lessons policy says nothing against the checkpoint."""


@dataclass(frozen=True, slots=True)
class Consulted:
    """A stored evaluation, and the gate's ruling on it if there was one."""

    evaluation: Evaluation
    decision: GateDecision | None = None
    ruled_at: datetime | None = None


async def evaluations_of(source: Any, model: str, candidate: Release) -> list[Consulted]:
    """Every evaluation of a release, ruled on or not, against whatever and by whichever judge; the oldest first."""
    rows = await source.fetch(
        "SELECT report::text AS report, ruling, reasons, look, harm_chance, expected_gain, ruled_at"
        " FROM hindsight.evaluations WHERE model = $1 AND candidate_step = $2 AND prompt_version = $3"
        f" AND lessons_policy = $4 {_OF_THIS_CHECKPOINT} ORDER BY created_at, evaluation_id",
        *(model, candidate.step, candidate.prompt_version, candidate.lessons_policy),
    )
    return [Consulted(from_json(row["report"]), _decision_of(row), row["ruled_at"]) for row in rows]


async def newest_comparison(source: Any, candidate: Release, incumbent: tuple[str, int, str, str]) -> Evaluation | None:
    """The newest evaluation of ``candidate`` against the release with this identity."""
    history = await evaluations_of(source, candidate.model, candidate)
    return next((one.evaluation for one in reversed(history) if one.evaluation.compared_with == incumbent), None)


def _decision_of(row: Any) -> GateDecision | None:
    if row["ruling"] is None:
        return None
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
    """Store the ruling. What an earlier ruling on the same evaluation spent stays spent."""
    look = decision.look
    await source.execute(
        "UPDATE hindsight.evaluations SET ruling = $2, reasons = $3, expected_gain = $4, look = coalesce($5, look),"
        " harm_chance = coalesce($6, harm_chance), ruled_at = coalesce(ruled_at, now()) WHERE evaluation_id = $1",
        *(evaluation.evaluation_id, decision.ruling.value, list(decision.reasons), decision.expected_gain),
        *(None if look is None else look.number, None if look is None else look.harm_chance),
    )
    candidate = evaluation.candidate
    said = {"release": candidate.name, "step": candidate.step, "ruling": decision.ruling.value}
    data = {**said, "reason": decision.sentence}
    await tell(source, EventKind.RULING, data, model=evaluation.model, run_id=evaluation.run_id)


async def latest_evaluation(
    database: Database, model: str, step: int, *, against: int | None = None
) -> Evaluation | None:
    """The newest evaluation of a checkpoint; with ``against``, the newest comparison with that step of ``model``."""
    text = await database.pool.fetchval(
        "SELECT report::text FROM hindsight.evaluations WHERE model = $1 AND candidate_step = $2"
        " AND ($3::int IS NULL OR (incumbent_step = $3"
        f"   AND coalesce(report -> 'incumbent' ->> 'model', model) = model)) {_OF_THIS_CHECKPOINT}"
        " ORDER BY created_at DESC LIMIT 1",
        *(model, step, against),
    )
    return None if text is None else from_json(text)


async def last_trained(source: Any, models: Collection[str], *, up_to: int | None = None) -> datetime | None:
    """The end of the latest window in a batch of ``models`` (of steps ``up_to`` that); None if none was trained."""
    rows = await source.fetch(
        "SELECT t.window_id, max(w.hours) AS hours FROM (SELECT DISTINCT t.window_id"
        "   FROM hindsight.batch_trajectories t JOIN hindsight.batches b USING (batch_id)"
        "   WHERE t.model = ANY($1) AND NOT t.released AND ($3::int IS NULL OR b.step <= $3)"
        "   ORDER BY window_id DESC LIMIT $2) t"
        " LEFT JOIN hindsight.windows w USING (window_id) GROUP BY t.window_id",
        *(list(models), _MAX_HOURS, up_to),
    )
    return max((end_of(row["window_id"], row["hours"] or 1) for row in rows), default=None)


@dataclass(frozen=True, slots=True)
class FirstUse:
    """The evaluation that consulted a window first."""

    evaluation_id: str
    at: datetime


async def first_consulted(source: Any, model: str | None = None) -> dict[str, FirstUse]:
    """The windows that evaluations of ``model`` (or of any) consulted, each with the evaluation that did so first."""
    rows = await source.fetch(
        "SELECT DISTINCT ON (1) seen ->> 'window_id' AS window_id, evaluation_id, created_at"
        " FROM hindsight.evaluations, jsonb_array_elements(report -> 'windows') AS seen"
        " WHERE $1::text IS NULL OR model = $1 ORDER BY 1, created_at, evaluation_id",
        model,
    )
    return {row["window_id"]: FirstUse(row["evaluation_id"], row["created_at"]) for row in rows}


async def unreached_among(database: Database, model: str, consulted: Mapping[str, FirstUse]) -> set[str]:
    """Which of these windows no run of ``model`` has reached, or said since then why it could not train them."""
    rows = await database.pool.fetch(
        "SELECT w.window_id FROM hindsight.windows w JOIN hindsight.runs r USING (run_id)"
        " WHERE r.model = $1 AND w.window_id = ANY($2) AND w.state <> $4"
        " UNION SELECT x.window_id FROM hindsight.exclusions x JOIN hindsight.runs r USING (run_id)"
        " JOIN unnest($2::text[], $3::timestamptz[]) AS used(window_id, at) USING (window_id)"
        " WHERE r.model = $1 AND r.started_at > used.at AND NOT EXISTS (SELECT FROM hindsight.windows w"
        "   WHERE w.run_id = x.run_id AND w.window_id = x.window_id)",
        *(model, list(consulted), [use.at for use in consulted.values()], WindowState.PLANNED.value),
    )
    return set(consulted) - {row["window_id"] for row in rows}


async def leaked_windows(database: Database) -> set[str]:
    """Windows on which a release was ruled although a batch of its own past contains them: must be empty."""
    rows = await database.pool.fetch(
        "SELECT DISTINCT t.window_id FROM hindsight.evaluations e, jsonb_array_elements(e.report -> 'windows') AS seen,"
        " hindsight.batch_trajectories t JOIN hindsight.batches b USING (batch_id)"
        " WHERE e.ruling IS NOT NULL AND t.window_id = seen ->> 'window_id' AND t.model = e.model AND NOT t.released"
        " AND b.step <= e.candidate_step"
    )
    return {row["window_id"] for row in rows}


async def is_undecided(database: Database, model: str) -> bool:
    """Whether the last ruling on the newest checkpoint of ``model`` was undecided."""
    ruling = await database.pool.fetchval(
        f"SELECT ruling FROM hindsight.evaluations WHERE model = $1 AND ruling IS NOT NULL {_OF_ITS_WEIGHTS}"
        f" AND candidate_step = (SELECT max(step) FROM hindsight.checkpoints WHERE model = $1) {_OF_THIS_CHECKPOINT}"
        " ORDER BY ruled_at DESC LIMIT 1",
        model,
    )
    return bool(ruling == Ruling.UNDECIDED)


@dataclass(frozen=True, slots=True)
class WayBack:
    """Where training goes on instead of the newest checkpoint, and why."""

    step: int
    reason: str


async def way_back(database: Database, model: str, newest: int, max_undecided: int) -> WayBack | None:
    """What the agents use, if checkpoint ``newest`` was refused or too many in a row were undecided; else None.

    A refused checkpoint is no better than the incumbent, and one that has collapsed could not even learn from what
    follows. After going back, the undecided ones are counted anew.
    """
    rows = await database.pool.fetch(
        "SELECT DISTINCT ON (candidate_step) candidate_step, ruling, reasons[1] AS reason FROM hindsight.evaluations"
        f" WHERE model = $1 AND ruling IS NOT NULL AND candidate_step <= $3 {_OF_ITS_WEIGHTS}"
        " AND candidate_step >= (SELECT coalesce(max(step), 0) FROM hindsight.checkpoints"
        f"   WHERE model = $1 AND parent_step < step - 1 AND step <= $3) {_OF_THIS_CHECKPOINT}"
        " ORDER BY candidate_step DESC, ruled_at DESC LIMIT $2",
        *(model, max(1, max_undecided), newest),
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
