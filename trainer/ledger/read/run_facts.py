"""Reads everything that the report shows about one run: from one snapshot of the ledger, except the P&L of trained
trajectories, which only the game's own rows have.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from data_bridge.database import Database
from data_bridge.errors import NotEnoughData
from trainer.evidence import Evaluation, from_json
from trainer.ledger.batch_records import decode_groups
from trainer.ledger.certificates import find as find_certificate
from trainer.ledger.curriculum import arms_of_run
from trainer.ledger.observations import patterns_of_run
from trainer.ledger.read.judging import judging_of
from trainer.ledger.read.trained_pnl import scored_pnl
from trainer.ledger.read.types import DayFacts, ListedRun, RunFacts, StepFacts
from trainer.ledger.read.windows import windows_of
from trainer.ledger.releases import promotion_of
from trainer.patterns.significance import MOST_SHOWN

_BATCHES = """
SELECT batch_id, number, policy_step, state, step, groups::text, trainable_tokens, metrics::text, error
FROM hindsight.batches WHERE run_id = $1 ORDER BY number
"""
_MEMBERS = """
SELECT t.trajectory_id, t.window_id, t.score, b.step FROM hindsight.batch_trajectories t
JOIN hindsight.batches b USING (batch_id) WHERE b.run_id = $1 AND b.state = 'trained'
"""
# The evidence for the page's verdict: that of the promotion, else the run's own. A comparison started by hand later
# decided nothing; it is used only for a run that has neither.
_EVALUATION = """
SELECT report::text, ruling, reasons FROM hindsight.evaluations e
WHERE run_id = $1
   OR evaluation_id IN (SELECT evaluation_id FROM hindsight.promotions p WHERE p.model = e.model AND p.step = $2)
   OR (run_id IS NULL AND (model, candidate_step) =
       (SELECT model, step FROM hindsight.checkpoints WHERE run_id = $1 ORDER BY step DESC LIMIT 1))
ORDER BY (SELECT max(promotion_id) FROM hindsight.promotions p
          WHERE p.evaluation_id = e.evaluation_id AND p.step = $2) DESC NULLS LAST,
         run_id IS NULL, created_at DESC
LIMIT 1
"""
_CONSULTED = """
SELECT seen ->> 'window_id' AS window_id,
       array_agg(model || '@step' || candidate_step || coalesce(' (' || ruling || ')', '') ORDER BY created_at) AS names
FROM hindsight.evaluations, jsonb_array_elements(report -> 'windows') AS seen
WHERE seen ->> 'window_id' = ANY($1) GROUP BY 1
"""
# The state of the last promoted checkpoint; a rollback to a checkpoint does not promote it again.
_PROMOTION = """
WITH own AS (
    SELECT p.* FROM hindsight.promotions p JOIN hindsight.checkpoints c USING (model, step) WHERE c.run_id = $1)
SELECT * FROM own
WHERE step = (SELECT step FROM own WHERE kind = 'promotion' ORDER BY promotion_id DESC LIMIT 1)
ORDER BY promotion_id DESC LIMIT 1
"""


async def newest_run(database: Database, model: str) -> str:
    """The id of the model's latest run. NotEnoughData if it has none."""
    query = "SELECT run_id FROM hindsight.runs WHERE model = $1 ORDER BY started_at DESC, run_id DESC LIMIT 1"
    run_id = await database.pool.fetchval(query, model)
    if run_id is None:
        raise NotEnoughData(
            f"The model {model!r} has no run yet in {database.label}; `python scripts/train_mmo.py` starts one."
        )
    return str(run_id)


async def list_runs(database: Database, model: str) -> list[ListedRun]:
    """The model's runs, the latest first."""
    rows = await database.pool.fetch(
        "SELECT r.run_id, r.state, r.started_at, count(b.batch_id) FILTER (WHERE b.state = 'trained') AS steps"
        " FROM hindsight.runs r LEFT JOIN hindsight.batches b USING (run_id)"
        " WHERE r.model = $1 GROUP BY r.run_id ORDER BY r.started_at DESC, r.run_id DESC",
        model,
    )
    return [ListedRun(**row) for row in rows]


async def gather(database: Database, run_id: str) -> RunFacts:
    """The facts of ``run_id``. NotEnoughData if there is no such run."""
    async with (
        database.pool.acquire() as connection,
        connection.transaction(isolation="repeatable_read", readonly=True),
    ):
        run = await connection.fetchrow("SELECT * FROM hindsight.runs WHERE run_id = $1", run_id)
        if run is None:
            raise NotEnoughData(f"There is no run {run_id!r}; `python scripts/report.py --list` lists the runs.")
        settings = json.loads(run["settings"])
        code_version = settings.pop("code_version", None)
        batches = await connection.fetch(_BATCHES, run_id)
        members = await connection.fetch(_MEMBERS, run_id)
        excluded = await connection.fetch(
            "SELECT window_id, reason, count(*) AS number FROM hindsight.exclusions WHERE run_id = $1 GROUP BY 1, 2",
            run_id,
        )
        planned = await connection.fetch(
            "SELECT window_id, state, jsonb_array_length(groups) AS groups FROM hindsight.windows WHERE run_id = $1",
            run_id,
        )
        promotion = await connection.fetchrow(_PROMOTION, run_id)
        evaluated = await connection.fetchrow(_EVALUATION, run_id, None if promotion is None else promotion["step"])
        evaluation = None if evaluated is None else from_json(evaluated["report"])
        judging = await judging_of(connection, run_id)
        windows = windows_of(planned, members, excluded, batches)
        simulated = await connection.fetchval(
            "SELECT count(*) FROM hindsight.simulated_windows WHERE window_id = ANY($1)",
            [window.window_id for window in windows],
        )
        leaked = await _leaked(connection, run["model"], evaluation)
        seen = {
            *(one.window_id for one in windows),
            *(one.window_id for one in (evaluation.windows if evaluation else ())),
        }
        consulted = await connection.fetch(_CONSULTED, list(seen))
        patterns = await patterns_of_run(connection, run_id)
        arms = await arms_of_run(connection, run_id)
    return RunFacts(
        run_id=run_id,
        model=run["model"],
        base_model=run["base_model"],
        backend=run["backend"],
        state=run["state"],
        error=run["error"],
        attempts=run["attempts"],
        started_at=run["started_at"],
        finished_at=run["finished_at"],
        settings=settings,
        code_version=code_version,
        judge=judging.identity,
        certificate=await find_certificate(database, judging.identity) if judging.identity else None,
        groups_judged=judging.groups,
        evaluation=evaluation,
        ruling=None if evaluated is None else evaluated["ruling"],
        ruling_reasons=() if evaluated is None else tuple(evaluated["reasons"]),
        promotion=None if promotion is None else promotion_of(promotion),
        steps=_steps(batches, members),
        failed_batches=tuple(
            f"batch {row['number']}: {row['error'] or row['state']}"
            for row in batches
            if row["state"] in ("failed", "lost")
        ),
        days=msgspec.convert(json.loads(run["summary"]).get("days", []), tuple[DayFacts, ...]),
        exclusions=_by_reason(excluded),
        agreement=judging.agreement,
        scored_pnl=await scored_pnl(database, {row["trajectory_id"]: row["score"] for row in members}),
        costs=judging.costs,
        cost_curve=judging.cost_curve,
        windows=windows,
        simulated_windows=simulated,
        leaked_windows=leaked,
        consulted={row["window_id"]: tuple(row["names"]) for row in consulted},
        arms=arms,
        patterns=tuple(one for one in patterns if one.significant or len(one.trajectories) > 1)[:MOST_SHOWN],
        further_orders=judging.further_orders,
        luck=judging.luck,
    )


async def _leaked(connection: Any, model: str, evaluation: Evaluation | None) -> tuple[str, ...]:
    """Evaluation windows in a batch that made the candidate: must be none."""
    if evaluation is None:
        return ()
    rows = await connection.fetch(
        "SELECT DISTINCT t.window_id FROM hindsight.batch_trajectories t JOIN hindsight.batches b USING (batch_id)"
        " WHERE b.model = $1 AND NOT t.released AND b.step <= $2 AND t.window_id = ANY($3) ORDER BY 1",
        *(model, evaluation.candidate.step, [window.window_id for window in evaluation.windows]),
    )
    return tuple(row["window_id"] for row in rows)


def _steps(batches: Sequence[Any], members: Sequence[Any]) -> tuple[StepFacts, ...]:
    trained = Counter(member["step"] for member in members)
    return tuple(_step(row, trained[row["step"]]) for row in batches if row["state"] == "trained")


def _step(row: Any, trajectories: int) -> StepFacts:
    metrics = json.loads(row["metrics"])
    return StepFacts(
        step=row["step"],
        groups=len(decode_groups(row["groups"])),
        trajectories=trajectories,
        trainable_tokens=row["trainable_tokens"],
        metrics={
            name: float(value)
            for name, value in metrics.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        },
        histogram=metrics.get("advantage_histogram"),
    )


def _by_reason(excluded: Iterable[Any]) -> dict[str, int]:
    """Most frequent first."""
    total: Counter[str] = Counter()
    for row in excluded:
        total[row["reason"]] += row["number"]
    return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))
