"""Reads everything the report shows of one run: from one snapshot of the ledger, and from nowhere else but the P&L of
what was trained, which only the game's own rows know.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from data_bridge.database import Database
from data_bridge.errors import NotEnoughData
from data_bridge.quality import Reason
from data_bridge.window_ids import is_held_out
from trainer.batch_record import decode_groups
from trainer.evaluation import Evaluation, from_json
from trainer.judge.certification.certificates import find as find_certificate
from trainer.promotions import promotion_of
from trainer.report.agreement import order_agreement
from trainer.report.trained_pnl import scored_pnl
from trainer.report.types import CostFacts, DayFacts, RunFacts, StepFacts, WindowFacts, Words
from trainer.types import JudgeIdentity

_BATCHES = """
SELECT batch_id, number, policy_step, state, step, groups::text, trainable_tokens, metrics::text, error
FROM hindsight.batches WHERE run_id = $1 ORDER BY number
"""
_MEMBERS = """
SELECT t.trajectory_id, t.window_id, t.score, b.step FROM hindsight.batch_trajectories t
JOIN hindsight.batches b USING (batch_id) WHERE b.run_id = $1 AND b.state = 'trained'
"""
_EVALUATION = """
SELECT report::text, ruling, reasons FROM hindsight.evaluations e
WHERE run_id = $1 OR (run_id IS NULL AND EXISTS (
    SELECT FROM hindsight.checkpoints c WHERE c.run_id = $1 AND c.model = e.model AND c.step = e.candidate_step))
ORDER BY created_at DESC LIMIT 1
"""
# What became of the checkpoint that was promoted last; one that agents were rolled back to was not promoted again.
_PROMOTION = """
WITH own AS (
    SELECT p.* FROM hindsight.promotions p JOIN hindsight.checkpoints c USING (model, step) WHERE c.run_id = $1)
SELECT * FROM own
WHERE step = (SELECT step FROM own WHERE kind = 'promotion' ORDER BY promotion_id DESC LIMIT 1)
ORDER BY promotion_id DESC LIMIT 1
"""
# A run trains on verdicts that an earlier one paid for, and pays for some that it does not train on; those of its
# evaluation are about windows that it did not plan.
_VERDICTS = """
WITH keys AS (
    SELECT t.verdict_key FROM hindsight.batch_trajectories t JOIN hindsight.batches b USING (batch_id)
    WHERE b.run_id = $1
    UNION SELECT v.verdict_key FROM hindsight.verdicts v JOIN hindsight.windows w USING (run_id, window_id)
    WHERE v.run_id = $1)
"""
_IDENTITIES = f"""{_VERDICTS}
SELECT judge, rubric, rubric_version, prompt_version, is_llm, count(DISTINCT verdict_key) AS groups
FROM hindsight.verdicts JOIN keys USING (verdict_key) GROUP BY 1, 2, 3, 4, 5 ORDER BY groups DESC
"""
_ORDERS = f"""{_VERDICTS}
SELECT verdict_key, order_number, one ->> 'trajectory_id' AS trajectory_id, (one ->> 'score')::float8 AS score
FROM hindsight.verdicts JOIN keys USING (verdict_key), jsonb_array_elements(scores) AS one
ORDER BY verdict_key, order_number
"""
_COSTS = """
SELECT judge, count(*) AS calls, count(*) FILTER (WHERE result <> 'ok') AS failed_calls,
       sum(prompt_tokens)::bigint AS prompt_tokens, sum(completion_tokens)::bigint AS completion_tokens,
       sum(cost_usd)::float8 AS usd
FROM hindsight.judge_calls WHERE run_id = $1 GROUP BY judge ORDER BY usd DESC, judge
"""
_COST_CURVE = """
SELECT row_number() OVER calls AS calls, sum(cost_usd) OVER calls AS usd
FROM hindsight.judge_calls WHERE run_id = $1 WINDOW calls AS (ORDER BY call_id)
"""
_CURVE_POINTS = 60


async def newest_run(database: Database, model: str) -> str:
    """The id of the model's latest run. NotEnoughData if it has none."""
    query = "SELECT run_id FROM hindsight.runs WHERE model = $1 ORDER BY started_at DESC, run_id DESC LIMIT 1"
    run_id = await database.pool.fetchval(query, model)
    if run_id is None:
        raise NotEnoughData(f"The model {model!r} has no run yet; `python scripts/train_mmo.py` makes one.")
    return str(run_id)


async def gather(database: Database, run_id: str) -> RunFacts:
    """The facts of ``run_id``. NotEnoughData if there is no such run."""
    async with (
        database.pool.acquire() as connection,
        connection.transaction(isolation="repeatable_read", readonly=True),
    ):
        run = await connection.fetchrow("SELECT * FROM hindsight.runs WHERE run_id = $1", run_id)
        if run is None:
            raise NotEnoughData(f"There is no run {run_id!r}; `python scripts/report.py --list` names them.")
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
        evaluated = await connection.fetchrow(_EVALUATION, run_id)
        evaluation = None if evaluated is None else from_json(evaluated["report"])
        promotion = await connection.fetchrow(_PROMOTION, run_id)
        identities = await connection.fetch(_IDENTITIES, run_id)
        orders = await connection.fetch(_ORDERS, run_id)
        costs = await connection.fetch(_COSTS, run_id)
        curve = await connection.fetch(_COST_CURVE, run_id)
        windows = _windows(planned, members, excluded, batches)
        simulated = await connection.fetchval(
            "SELECT count(*) FROM hindsight.simulated_windows WHERE window_id = ANY($1)",
            [window.window_id for window in windows],
        )
        leaked = await _leaked(connection, run_id, run["model"], float(settings.get("held_out_share", 0.1)), evaluation)
    judge = _identity(identities[0]) if identities else None
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
        judge=judge,
        certificate=None if judge is None else await find_certificate(database, judge),
        groups_judged=sum(row["groups"] for row in identities),
        evaluation=evaluation,
        ruling=None if evaluated is None else evaluated["ruling"],
        ruling_reasons=() if evaluated is None else tuple(evaluated["reasons"]),
        promotion=None if promotion is None else promotion_of(promotion),
        steps=tuple(_step(row, members) for row in batches if row["state"] == "trained"),
        failed_batches=tuple(
            f"batch {row['number']}: {row['error'] or row['state']}"
            for row in batches
            if row["state"] in ("failed", "lost")
        ),
        days=tuple(_day(day) for day in json.loads(run["summary"]).get("days", [])),
        exclusions=_by_reason(excluded),
        agreement=order_agreement(_by_group(orders)),
        scored_pnl=await scored_pnl(database, {row["trajectory_id"]: row["score"] for row in members}),
        costs=tuple(CostFacts(**row) for row in costs),
        cost_curve=_thinned([(row["calls"], row["usd"]) for row in curve]),
        windows=windows,
        simulated_windows=simulated,
        leaked_windows=leaked,
    )


async def _leaked(
    connection: Any, run_id: str, model: str, share: float, evaluation: Evaluation | None
) -> tuple[str, ...]:
    """Held-out windows in a batch of this run, and windows of the evaluation in any batch of the model."""
    rows = await connection.fetch(
        "SELECT DISTINCT t.window_id, b.run_id = $1 AS is_own FROM hindsight.batch_trajectories t"
        " JOIN hindsight.batches b USING (batch_id) WHERE b.run_id = $1 OR (b.model = $2 AND NOT t.released)",
        *(run_id, model),
    )
    evaluated = {window.window_id for window in evaluation.windows} if evaluation is not None else set()
    leaked = {
        row["window_id"]
        for row in rows
        if row["window_id"] in evaluated or (row["is_own"] and is_held_out(row["window_id"], share))
    }
    return tuple(sorted(leaked))


def _identity(row: Any) -> JudgeIdentity:
    return JudgeIdentity(row["judge"], row["rubric"], row["rubric_version"], row["prompt_version"], row["is_llm"])


def _step(row: Any, members: Sequence[Any]) -> StepFacts:
    metrics = json.loads(row["metrics"])
    return StepFacts(
        step=row["step"],
        groups=len(decode_groups(row["groups"])),
        trajectories=sum(member["step"] == row["step"] for member in members),
        trainable_tokens=row["trainable_tokens"],
        metrics={
            name: float(value)
            for name, value in metrics.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        },
        histogram=metrics.get("advantage_histogram"),
    )


def _day(figures: Mapping[str, Any]) -> DayFacts:
    return DayFacts(
        figures["day"],
        figures["played_with"],
        figures["step"],
        figures.get("valid_share"),
        figures.get("mean_pnl"),
    )


def _by_reason(excluded: Iterable[Any]) -> dict[str, int]:
    """Most frequent first."""
    total: Counter[str] = Counter()
    for row in excluded:
        total[row["reason"]] += row["number"]
    return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))


def _by_group(orders: Iterable[Any]) -> list[list[dict[str, float]]]:
    """Scores by trajectory, of every order of every group."""
    found: dict[str, dict[int, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in orders:
        found[row["verdict_key"]][row["order_number"]][row["trajectory_id"]] = row["score"]
    return [list(group.values()) for group in found.values()]


def _windows(
    planned: Sequence[Any], members: Sequence[Any], excluded: Sequence[Any], batches: Sequence[Any]
) -> tuple[WindowFacts, ...]:
    """Every window that the run planned or left something out of, in order."""
    trained: dict[str, list[Any]] = defaultdict(list)
    for member in members:
        trained[member["window_id"]].append(member)
    left_out: dict[str, dict[str, int]] = defaultdict(dict)
    for row in excluded:
        left_out[row["window_id"]][row["reason"]] = row["number"]
    words = _words(batches)
    known = {row["window_id"]: row for row in planned}
    return tuple(
        WindowFacts(
            window_id=window_id,
            state=known[window_id]["state"] if window_id in known else _unplanned(left_out[window_id]),
            groups=known[window_id]["groups"] if window_id in known else 0,
            steps=tuple(sorted({member["step"] for member in trained[window_id]})),
            mean_score=_mean([member["score"] for member in trained[window_id]]),
            excluded=dict(sorted(left_out[window_id].items())),
            best=max(words[window_id], key=lambda one: one.score, default=None),
            worst=min(words[window_id], key=lambda one: one.score, default=None),
        )
        for window_id in sorted(known.keys() | left_out.keys())
    )


def _unplanned(reasons: Mapping[str, int]) -> str:
    return "held_out" if Reason.HELD_OUT.value in reasons else "not planned"


def _words(batches: Sequence[Any]) -> dict[str, list[Words]]:
    """What the judge said of every trained trajectory, by window."""
    found: dict[str, list[Words]] = defaultdict(list)
    for row in batches:
        if row["state"] == "trained":
            for group in decode_groups(row["groups"]):
                for agent_id, verdict in zip(group.agent_ids, group.verdicts, strict=True):
                    found[group.window_id].append(Words(agent_id, verdict.score, verdict.explanation))
    return found


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _thinned(curve: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """At most some points of the curve, the last one always among them."""
    stride = max(1, -(-len(curve) // _CURVE_POINTS))
    return tuple(curve[place] for place in range(len(curve) - 1, -1, -stride))[::-1]
