"""Rows of the game's tables → the types of ``models``. Naive database times become aware UTC in the columns read."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Protocol

from xxhash import xxh3_128_hexdigest

from data_bridge.decode import Undecodable, decode_metadata, decode_news, decode_steps
from data_bridge.models import AgentTrajectory, MarketOutcomes, PredictionOutcome, StockOutcome, UnreadableRow
from data_bridge.quality import Reason

TRAJECTORY_COLUMNS = """
  "trajectoryId", "agentId", "windowId", "windowHours", "scenarioId",
  "startTime" AT TIME ZONE 'UTC' AS "startTime", "endTime" AT TIME ZONE 'UTC' AS "endTime",
  octet_length("stepsJson") AS size,
  CASE WHEN octet_length("stepsJson") + octet_length("metadataJson") <= $1
       THEN textsend("stepsJson") END AS steps,
  CASE WHEN octet_length("stepsJson") + octet_length("metadataJson") <= $1 THEN "metadataJson" END AS metadata,
  "finalStatus", "finalBalance", "finalPnL", "isTrainingData", "isEvaluation", "usedInTraining"
"""
"""With the most bytes of JSON as $1: of a larger row Postgres sends (and even loads) none.

The steps come as the bytes that Postgres sends for text (UTF-8: asyncpg asks for no other): they are decoded and
hashed as such, and making a string of them first would cost a third more.
"""

OUTCOME_COLUMNS = """
  "windowId", "stockTicker", "startPrice"::float8, "endPrice"::float8, "changePercent"::float8, sentiment,
  "newsEvents"::text, "predictionMarketId", question, outcome, "finalProbability"::float8, volume::float8
"""

_UNRESOLVED = frozenset({"", "unresolved", "pending", "open", "unknown", "null", "none"})


class Row(Protocol):
    """A row by column name: asyncpg's Record, or a dict."""

    def __getitem__(self, name: str, /) -> Any: ...


def trajectory_of(row: Row, window_id: str, agent_name: str | None) -> AgentTrajectory | UnreadableRow:
    """One row of ``trajectories`` that belongs to ``window_id``, or why it cannot be read."""
    text: bytes | None = row["steps"]
    if text is None:
        return unreadable(row, window_id, Reason.OVERSIZED, f"{row['size'] / 1e6:.1f} MB of stepsJson")
    try:
        steps = decode_steps(text)
    except Undecodable as error:
        return unreadable(row, window_id, error.reason, error.detail)
    ground_truth, role = decode_metadata(row["metadata"])
    return AgentTrajectory(
        trajectory_id=row["trajectoryId"],
        agent_id=row["agentId"],
        window_id=window_id,
        window_hours=row["windowHours"],
        start_time=row["startTime"],
        end_time=row["endTime"],
        steps=steps,
        content_hash=xxh3_128_hexdigest(text),
        size_bytes=row["size"],
        agent_name=agent_name,
        role=role or steps[0].state.role,
        scenario_id=row["scenarioId"],
        final_status=row["finalStatus"],
        final_balance=_finite(row["finalBalance"]),
        lifetime_pnl=_finite(row["finalPnL"]),
        ground_truth=ground_truth,
        is_training_data=row["isTrainingData"],
        is_evaluation=row["isEvaluation"],
        used_in_training=row["usedInTraining"],
    )


def unreadable(row: Row, window_id: str, reason: Reason, detail: str) -> UnreadableRow:
    return UnreadableRow(row["trajectoryId"], row["agentId"], window_id, reason.value, detail)


def outcomes_of(rows: Iterable[Row]) -> MarketOutcomes:
    """The ground truth from the rows of ``market_outcomes`` of one window, oldest first: a later row corrects."""
    stocks: dict[str, StockOutcome] = {}
    predictions: dict[str, PredictionOutcome] = {}
    for row in rows:
        if row["stockTicker"]:
            stocks[row["stockTicker"]] = _stock(row)
        elif row["predictionMarketId"]:
            predictions[row["predictionMarketId"]] = _prediction(row)
    return MarketOutcomes(
        tuple(stocks[ticker] for ticker in sorted(stocks)),
        tuple(predictions[market] for market in sorted(predictions)),
    )


def _stock(row: Row) -> StockOutcome:
    start, end, change = _finite(row["startPrice"]), _finite(row["endPrice"]), _finite(row["changePercent"])
    if change is None and start and end is not None:
        change = round((end - start) / start * 100, 4)
    return StockOutcome(
        row["stockTicker"], start, end, change, sentiment=row["sentiment"], news=decode_news(row["newsEvents"])
    )


def _prediction(row: Row) -> PredictionOutcome:
    outcome: str | None = row["outcome"]
    return PredictionOutcome(
        row["predictionMarketId"],
        question=row["question"],
        outcome=None if outcome is None or outcome.strip().lower() in _UNRESOLVED else outcome,
        final_probability=_finite(row["finalProbability"]),
        volume=_finite(row["volume"]),
    )


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None
