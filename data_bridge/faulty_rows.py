"""The faults that occur in real tables, by name: for testing the code that reads them.

A fault is an SQL statement for one trajectory's or one window's id ($1), or a function that rewrites a trajectory's
steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from data_bridge.trajectory_rows import to_json

_OVERSIZED = 5_500_000

Steps = list[dict[str, Any]]


def _truncated(steps: Steps) -> str:
    text = to_json(steps)
    return text[: len(text) * 2 // 3]


def _without_calls(steps: Steps) -> str:
    return to_json([{**step, "llmCalls": []} for step in steps])


def _lower_case(steps: Steps) -> str:
    return to_json(
        [{**step, "action": {**step["action"], "actionType": step["action"]["actionType"].lower()}} for step in steps]
    )


def _half_a_character(steps: Steps) -> str:
    marked = [{**step, "reasoning": "@half@"} for step in steps]
    return to_json(marked).replace("@half@", "\\ud83d")


def _unknown_pnl(steps: Steps) -> str:
    return to_json([{**step, "environmentState": {**step["environmentState"], "agentPnL": None}} for step in steps])


def _oversized(steps: Steps) -> str:
    access = {"providerName": "HISTORY", "data": {"text": "x" * _OVERSIZED}, "purpose": "everything"}
    return to_json([{**steps[0], "providerAccesses": [access]}, *steps[1:]])


STEPS_FAULTS: dict[str, Callable[[Steps], str]] = {
    "malformed JSON": _truncated,
    "null": lambda _: "null",
    "object instead of a list": lambda _: '{"steps":[]}',
    "no steps": lambda _: "[]",
    "no LLM calls": _without_calls,
    "lower-case action names": _lower_case,
    "half of a surrogate pair": _half_a_character,
    "unknown P&L": _unknown_pnl,
    "oversized": _oversized,
}
ROW_FAULTS: dict[str, str] = {
    "evaluation row": 'UPDATE trajectories SET "isEvaluation" = true WHERE "trajectoryId" = $1',
    "window id with seconds": """
        UPDATE trajectories SET "windowId" = "windowId" || ':00.000Z' WHERE "trajectoryId" = $1""",
    "no window id": 'UPDATE trajectories SET "windowId" = NULL WHERE "trajectoryId" = $1',
    "same agent twice": """
        INSERT INTO trajectories
        SELECT (jsonb_populate_record(t, jsonb_build_object(
            'id', '9' || t.id, 'trajectoryId', '9' || t."trajectoryId"))).*
        FROM trajectories t WHERE t."trajectoryId" = $1""",
}
WINDOW_FAULTS: dict[str, str] = {
    "no outcomes": 'DELETE FROM market_outcomes WHERE "windowId" = $1',
    "half of the outcomes": """
        UPDATE market_outcomes SET "endPrice" = NULL, "changePercent" = NULL, "outcome" = NULL
        WHERE id IN (SELECT id FROM (
            SELECT id, row_number() OVER (ORDER BY id) AS place FROM market_outcomes WHERE "windowId" = $1
        ) AS placed WHERE place % 2 = 1)""",
    "no changePercent": 'UPDATE market_outcomes SET "changePercent" = NULL WHERE "windowId" = $1',
}
SELECT_STEPS = 'SELECT "trajectoryId", "stepsJson" FROM trajectories WHERE "windowId" = ANY($1) ORDER BY "trajectoryId"'
UPDATE_STEPS = 'UPDATE trajectories SET "stepsJson" = $2 WHERE "trajectoryId" = $1'
