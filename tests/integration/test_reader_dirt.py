"""A table with every kind of dirt that real ones have: a bad row costs that row, under the right reason."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from data_bridge.database import Database
from data_bridge.quality import Rules
from data_bridge.reader import WindowReader
from data_bridge.survey import survey
from data_bridge.window_ids import start_of
from tests.builders import (
    NOW,
    hours_before,
    insert_agents,
    insert_outcomes,
    insert_rows,
    plugin_steps,
    recorder_steps,
    trajectory_row,
)

RULES = Rules(now=NOW)
_LIMIT = 5_000_000


def _steps(**changes: Any) -> str:
    return json.dumps([step | changes for step in recorder_steps()])


def _lower_case() -> str:
    return json.dumps(recorder_steps()).replace('"actionType": "BUY"', '"actionType": "buy"')


def _lone_surrogate() -> str:
    return json.dumps(plugin_steps()).replace("ACME trades", "\\ud83d ACME trades")


DIRT: dict[str, tuple[Callable[[], dict[str, Any]], str | None]] = {
    "malformed": (lambda: {"steps_json": '[{"stepNumber": 0, "llmCalls": ['}, "malformed_json"),
    "not json": (lambda: {"steps_json": "undefined"}, "malformed_json"),
    "null": (lambda: {"steps_json": "null"}, "no_steps"),
    "an object": (lambda: {"steps_json": '{"steps": []}'}, "malformed_json"),
    "empty": (lambda: {"steps_json": "[]"}, "no_steps"),
    "no calls": (lambda: {"steps_json": _steps(llmCalls=[])}, "no_llm_calls"),
    "null calls": (lambda: {"steps_json": _steps(llmCalls=None)}, "no_llm_calls"),
    "unfinished": (lambda: {"steps_json": _steps(action={"actionType": "pending"})}, "too_few_actions"),
    "evaluation": (lambda: {"isEvaluation": True}, "evaluation_row"),
    "not for training": (lambda: {"isTrainingData": False}, "not_training_data"),
    "used": (lambda: {"usedInTraining": True}, "already_used"),
    "oversized": (lambda: {"steps_json": _steps(observation="x" * (_LIMIT // 2))}, "oversized"),
    # odd, but good
    "lower case": (lambda: {"steps_json": _lower_case()}, None),
    "lone surrogate": (lambda: {"steps_json": _lone_surrogate()}, None),
    "broken metadata": (lambda: {"metadataJson": "{{{"}, None),
    "nan": (lambda: {"finalPnL": float("nan"), "finalBalance": float("inf")}, None),
    "rewritten": (lambda: {"updatedAt": NOW.replace(tzinfo=None)}, None),
}


def _rows(
    spelling: str | None, agents: int, rng: random.Random, start: datetime
) -> list[tuple[dict[str, Any], str | None]]:
    """The rows of one window, 30 % of them dirty, one agent twice, each with its expected reason."""
    rows: list[tuple[dict[str, Any], str | None]] = []
    for number in range(agents):
        writer = rng.choice(("recorder", "plugin"))
        changes, reason = rng.choice(list(DIRT.values())) if rng.random() < 0.3 else (dict, None)
        options: dict[str, Any] = {"writer": writer, "scenarioId": None, "start_time": start, **changes()}
        rows.append((trajectory_row(f"agent-{number:02}", window_id=spelling, **options), reason))
    again = start + timedelta(minutes=9)
    first = trajectory_row("agent-twice", window_id=spelling, steps=recorder_steps(1), start_time=start)
    longer = trajectory_row("agent-twice", window_id=spelling, steps=recorder_steps(4), start_time=again)
    return [*rows, (longer, "duplicate_agent"), (first, None)]


async def test_every_row_is_counted_rightly_and_no_window_vanishes(database: Database) -> None:
    rng = random.Random(11)
    ids = hours_before(number=17)
    missing, partial, all_bad, *plain = ids
    spellings: list[Callable[[str], str | None]] = [
        lambda w: w,
        lambda w: f"{w}:00",
        lambda w: f"{w}:00Z",
        lambda w: f"{w}:00.000Z",
        lambda w: None,
    ]
    expected: dict[str, str | None] = {}
    rows: list[dict[str, Any]] = []
    for number, window_id in enumerate(ids):
        spelling = spellings[number % len(spellings)](window_id)
        start = start_of(window_id) + timedelta(minutes=5)
        if window_id == all_bad:
            made: list[tuple[dict[str, Any], str | None]] = [
                (
                    trajectory_row(f"agent-{n:02}", window_id=spelling, steps_json="{", start_time=start),
                    "malformed_json",
                )
                for n in range(4)
            ]
        else:
            made = _rows(spelling, 12, rng, start)
        of_window = {missing: "outcomes_missing", partial: "outcomes_partial"}.get(window_id)
        for row, reason in made:
            expected[row["trajectoryId"]] = reason or of_window
            rows.append(row)
    await insert_agents(database.pool, {row["agentId"] for row in rows})
    await insert_rows(database.pool, "trajectories", rows)
    await insert_outcomes(
        database.pool, partial, stocks=[{}, {"stockTicker": "GLOBEX", "endPrice": None, "changePercent": None}]
    )
    for window_id in (all_bad, *plain):
        await insert_outcomes(
            database.pool,
            window_id,
            stocks=[{"changePercent": None}],
            predictions=[{}, {"predictionMarketId": "market-2", "outcome": None, "finalProbability": None}],
        )

    rules = Rules(now=NOW, max_bytes=_LIMIT)
    surveyed = await survey(WindowReader(database, rules), rules)

    found: dict[str, str | None] = {}
    for window in surveyed.windows:
        assert not found.keys() & {one.trajectory_id for one in window.usable}
        assert not found.keys() & {one.trajectory_id for one in window.excluded}
        found |= {one.trajectory_id: None for one in window.usable}
        found |= {exclusion.trajectory_id: exclusion.reason.value for exclusion in window.excluded}
    assert found == expected
    assert [window.window_id for window in surveyed.windows] == ids
    planted = {reason for reason in expected.values() if reason}
    assert planted == {reason for _, reason in DIRT.values() if reason} | {
        "duplicate_agent",
        "outcomes_missing",
        "outcomes_partial",
    }
    assert {ref.window_id for ref in surveyed.refs} == set(plain)
    assert all(window.trajectories == 14 for window in surveyed.windows if window.window_id != all_bad)


async def test_a_missing_change_is_computed_and_impossible_numbers_are_unknown(database: Database) -> None:
    window_id = hours_before(number=1)[0]
    row = trajectory_row(window_id=window_id, finalPnL=float("nan"))
    await insert_agents(database.pool, ["agent-1"])
    await insert_rows(database.pool, "trajectories", [row])
    await insert_outcomes(
        database.pool,
        window_id,
        stocks=[
            {"stockTicker": "A", "startPrice": 80, "endPrice": 100, "changePercent": None},
            {"stockTicker": "B", "startPrice": 0, "endPrice": 5, "changePercent": None},
            {"stockTicker": "C", "startPrice": Decimal("NaN"), "endPrice": 5, "changePercent": Decimal("NaN")},
            {"stockTicker": "D", "newsEvents": json.dumps({"events": ["one", {"title": "two"}, 3]})},
        ],
        predictions=[{"outcome": "UNRESOLVED"}],
    )
    window = await WindowReader(database, RULES).read(window_id)
    assert window is not None
    assert [stock.change_percent for stock in window.outcomes.stocks] == [25, None, None, 10]
    assert [event.headline for event in window.outcomes.stocks[3].news] == ["one", "two"]
    assert window.outcomes.predictions[0].outcome is None
    assert window.trajectories[0].lifetime_pnl is None
    assert window.trajectories[0].window_pnl == 10
