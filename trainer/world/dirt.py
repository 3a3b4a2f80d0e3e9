"""The faults of real tables, put into a share of simulated rows and windows: for testing whoever reads them.

Which row gets which fault follows from its id, so that the same world is soiled the same way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import asyncpg
import msgspec

from data_bridge.database import Database
from data_bridge.trajectory_rows import to_json
from trainer.world.chance import bits, unit

_OVERSIZED = 5_500_000
_MOST_OVERSIZED = 3
"""Rows of megabytes are worth meeting, not worth collecting."""

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


_STEPS_FAULTS: dict[str, Callable[[Steps], str]] = {
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
_ROW_FAULTS: dict[str, str] = {
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
_WINDOW_FAULTS: dict[str, str] = {
    "no outcomes": 'DELETE FROM market_outcomes WHERE "windowId" = $1',
    "half of the outcomes": """
        UPDATE market_outcomes SET "endPrice" = NULL, "changePercent" = NULL, "outcome" = NULL
        WHERE id IN (SELECT id FROM (
            SELECT id, row_number() OVER (ORDER BY id) AS place FROM market_outcomes WHERE "windowId" = $1
        ) AS placed WHERE place % 2 = 1)""",
    "no changePercent": 'UPDATE market_outcomes SET "changePercent" = NULL WHERE "windowId" = $1',
}
_ROWS = 'SELECT "trajectoryId", "stepsJson" FROM trajectories WHERE "windowId" = ANY($1) ORDER BY "trajectoryId"'


async def soil(database: Database, window_ids: Sequence[str], share: float, seed: int) -> Counter[str]:
    """Put faults into about ``share`` of the rows and of the windows; how many of each."""
    put = Counter[str]()
    async with database.pool.acquire() as connection, connection.transaction():
        for window_id in window_ids:
            if unit(seed, "dirty window", window_id) < share:
                fault = _choose(_WINDOW_FAULTS, seed, window_id)
                await connection.execute(_WINDOW_FAULTS[fault], window_id)
                put[fault] += 1
        for row in await connection.fetch(_ROWS, list(window_ids)):
            if unit(seed, "dirty row", row["trajectoryId"]) < share:
                put[await _soil_row(connection, row, put, seed)] += 1
    return put


async def _soil_row(connection: Any, row: asyncpg.Record, put: Counter[str], seed: int) -> str:
    trajectory_id = row["trajectoryId"]
    fault = _choose({**_STEPS_FAULTS, **_ROW_FAULTS}, seed, trajectory_id)
    if fault == "oversized" and put[fault] >= _MOST_OVERSIZED:
        fault = "malformed JSON"
    if fault in _ROW_FAULTS:
        await connection.execute(_ROW_FAULTS[fault], trajectory_id)
    else:
        text = _STEPS_FAULTS[fault](msgspec.json.decode(row["stepsJson"]))
        await connection.execute(
            'UPDATE trajectories SET "stepsJson" = $2 WHERE "trajectoryId" = $1', trajectory_id, text
        )
    return fault


def _choose(faults: dict[str, Any], seed: int, name: str) -> str:
    return sorted(faults)[bits(seed, "fault", name) % len(faults)]
