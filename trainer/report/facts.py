"""Everything the report shows of one run, read from the ledger and nowhere else."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import combinations
from typing import Any

from data_bridge.database import Database
from data_bridge.errors import NotEnoughData
from trainer.evaluation import Evaluation, from_json


@dataclass(frozen=True, slots=True)
class StepFacts:
    """One gradient step."""

    step: int
    groups: int
    trajectories: int
    trainable_tokens: int
    metrics: Mapping[str, float]
    histogram: Mapping[str, list[float]] | None
    """Advantages: ``edges`` and ``counts``."""


@dataclass(frozen=True, slots=True)
class OrderAgreement:
    """How well the judge agreed with itself when the same group was shown in another order."""

    pairs: tuple[tuple[float, float], ...]
    mean_difference: float
    flip_share: float
    """Of pairs of trajectories in a group, those that one order ranks one way and another order the other way."""


@dataclass(frozen=True, slots=True)
class CostFacts:
    calls: int
    failed_calls: int
    prompt_tokens: int
    completion_tokens: int
    usd: float
    groups_judged: int


@dataclass(frozen=True, slots=True)
class WindowFacts:
    window_id: str
    state: str
    groups: int
    steps: tuple[int, ...]
    """The gradient steps that learnt from it."""
    mean_score: float | None
    excluded: int


@dataclass(frozen=True, slots=True)
class RunFacts:
    run_id: str
    model: str
    base_model: str
    backend: str
    state: str
    error: str | None
    started_at: datetime
    finished_at: datetime | None
    settings: Mapping[str, Any]
    plan: Mapping[str, Any]
    summary: Mapping[str, Any]
    judge: str
    judge_is_llm: bool
    rubric: str
    evaluation: Evaluation | None
    ruling: str | None
    ruling_reasons: tuple[str, ...]
    promoted_as: str | None
    """The served name if this run's checkpoint was given to the agents."""
    base_url: str | None
    steps: tuple[StepFacts, ...]
    exclusions: Mapping[str, int]
    agreement: OrderAgreement | None
    cost: CostFacts
    windows: tuple[WindowFacts, ...]


async def newest_run(database: Database, model: str) -> str:
    """The id of the model's latest run. NotEnoughData if it has none."""
    query = "SELECT run_id FROM hindsight.runs WHERE model = $1 ORDER BY started_at DESC LIMIT 1"
    run_id = await database.pool.fetchval(query, model)
    if run_id is None:
        raise NotEnoughData(f"The model {model!r} has no run yet; `python scripts/train_mmo.py` makes one.")
    return str(run_id)


async def gather(database: Database, run_id: str) -> RunFacts:
    """The facts of ``run_id``, from one snapshot of the ledger."""
    async with (
        database.pool.acquire() as connection,
        connection.transaction(isolation="repeatable_read", readonly=True),
    ):
        run = await connection.fetchrow("SELECT * FROM hindsight.runs WHERE run_id = $1", run_id)
        if run is None:
            raise NotEnoughData(f"There is no run {run_id!r}; `python scripts/report.py --list` names them.")
        batches = await connection.fetch(
            "SELECT batch_id, step, groups, trainable_tokens, metrics FROM hindsight.batches"
            " WHERE run_id = $1 AND state = 'trained' ORDER BY step",
            run_id,
        )
        members = await connection.fetch(
            "SELECT t.window_id, t.score, b.step FROM hindsight.batch_trajectories t"
            " JOIN hindsight.batches b USING (batch_id) WHERE b.run_id = $1 AND b.state = 'trained'",
            run_id,
        )
        excluded = await connection.fetch(
            "SELECT reason, window_id, count(*) AS rows FROM hindsight.exclusions WHERE run_id = $1 GROUP BY 1, 2",
            run_id,
        )
        windows = await connection.fetch(
            "SELECT window_id, state, groups FROM hindsight.windows WHERE run_id = $1 ORDER BY window_id", run_id
        )
        evaluation = await connection.fetchrow(
            "SELECT report, ruling, reasons FROM hindsight.evaluations"
            " WHERE run_id = $1 ORDER BY created_at DESC LIMIT 1",
            run_id,
        )
        promotion = await connection.fetchrow(
            "SELECT p.served_model, p.base_url FROM hindsight.promotions p"
            " JOIN hindsight.checkpoints c USING (model, step)"
            " WHERE c.run_id = $1 AND p.kind = 'promotion' ORDER BY promotion_id DESC LIMIT 1",
            run_id,
        )
        verdicts = await connection.fetch(
            "SELECT v.verdict_key, v.order_number, v.judge, v.is_llm, v.rubric, v.rubric_version, v.scores"
            " FROM hindsight.verdicts v WHERE v.verdict_key IN (SELECT DISTINCT t.verdict_key"
            " FROM hindsight.batch_trajectories t JOIN hindsight.batches b USING (batch_id) WHERE b.run_id = $1)",
            run_id,
        )
        cost = await connection.fetchrow(
            "SELECT count(*) AS calls, count(*) FILTER (WHERE result <> 'ok') AS failed,"
            " coalesce(sum(prompt_tokens), 0)::bigint AS prompt,"
            " coalesce(sum(completion_tokens), 0)::bigint AS completion,"
            " coalesce(sum(cost_usd), 0)::float8 AS usd FROM hindsight.judge_calls WHERE run_id = $1",
            run_id,
        )
    judged = verdicts[0] if verdicts else None
    reasons: dict[str, int] = defaultdict(int)
    for row in excluded:
        reasons[row["reason"]] += row["rows"]
    return RunFacts(
        run_id=run_id,
        model=run["model"],
        base_model=run["base_model"],
        backend=run["backend"],
        state=run["state"],
        error=run["error"],
        started_at=run["started_at"],
        finished_at=run["finished_at"],
        settings=_json(run["settings"]),
        plan=_json(run["plan"]),
        summary=_json(run["summary"]),
        judge=judged["judge"] if judged else "",
        judge_is_llm=bool(judged["is_llm"]) if judged else False,
        rubric=f"{judged['rubric']} {judged['rubric_version']}" if judged else "",
        evaluation=from_json(evaluation["report"]) if evaluation is not None else None,
        ruling=evaluation["ruling"] if evaluation is not None else None,
        ruling_reasons=tuple(evaluation["reasons"]) if evaluation is not None else (),
        promoted_as=promotion["served_model"] if promotion is not None else None,
        base_url=promotion["base_url"] if promotion is not None else None,
        steps=tuple(_step(row, members) for row in batches),
        exclusions=dict(sorted(reasons.items(), key=lambda item: -item[1])),
        agreement=order_agreement([_orders(key, verdicts) for key in {row["verdict_key"] for row in verdicts}]),
        cost=CostFacts(
            calls=cost["calls"] if cost else 0,
            failed_calls=cost["failed"] if cost else 0,
            prompt_tokens=cost["prompt"] if cost else 0,
            completion_tokens=cost["completion"] if cost else 0,
            usd=cost["usd"] if cost else 0.0,
            groups_judged=len({row["verdict_key"] for row in verdicts}),
        ),
        windows=tuple(_window(row, members, excluded) for row in windows),
    )


def order_agreement(groups: Sequence[Sequence[Mapping[str, float]]]) -> OrderAgreement | None:
    """Agreement over ``groups``, each a list of orders, each a score by trajectory. None with a single order."""
    pairs: list[tuple[float, float]] = []
    flips = comparisons = 0
    for orders in groups:
        for first, second in combinations(orders, 2):
            shared = sorted(first.keys() & second.keys())
            pairs += [(first[one], second[one]) for one in shared]
            for one, other in combinations(shared, 2):
                product = (first[one] - first[other]) * (second[one] - second[other])
                comparisons += 1
                flips += product < 0
    if not pairs:
        return None
    difference = sum(abs(first - second) for first, second in pairs) / len(pairs)
    return OrderAgreement(tuple(pairs), difference, flips / comparisons if comparisons else 0.0)


def _orders(key: str, verdicts: Sequence[Any]) -> list[dict[str, float]]:
    own = sorted((row for row in verdicts if row["verdict_key"] == key), key=lambda row: int(row["order_number"]))
    return [{str(score["trajectory_id"]): float(score["score"]) for score in _json(row["scores"])} for row in own]


def _step(row: Any, members: Sequence[Any]) -> StepFacts:
    metrics = _json(row["metrics"])
    return StepFacts(
        step=row["step"],
        groups=len(_json(row["groups"])),
        trajectories=sum(member["step"] == row["step"] for member in members),
        trainable_tokens=row["trainable_tokens"],
        metrics={
            key: float(value)
            for key, value in metrics.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        },
        histogram=metrics.get("advantage_histogram"),
    )


def _window(row: Any, members: Sequence[Any], excluded: Sequence[Any]) -> WindowFacts:
    own = [member for member in members if member["window_id"] == row["window_id"]]
    return WindowFacts(
        window_id=row["window_id"],
        state=row["state"],
        groups=len(_json(row["groups"])),
        steps=tuple(sorted({member["step"] for member in own})),
        mean_score=sum(member["score"] for member in own) / len(own) if own else None,
        excluded=sum(other["rows"] for other in excluded if other["window_id"] == row["window_id"]),
    )


def _json(value: Any) -> Any:
    """asyncpg gives jsonb as text unless a codec is set; either is fine here."""
    return json.loads(value) if isinstance(value, str) else value
