"""Discovering and streaming windows from a real Postgres."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from data_bridge.database import Database
from data_bridge.models import Window
from data_bridge.quality import Rules, check
from data_bridge.reader import WindowReader
from tests.builders import (
    NOW,
    WINDOW,
    Writer,
    hours_before,
    insert_outcomes,
    insert_trajectory,
    insert_window,
)

RULES = Rules(now=NOW)


async def read_all(database: Database, rules: Rules = RULES, *, everything: bool = False) -> list[Window]:
    reader = WindowReader(database, rules)
    return [window async for window in reader.stream(await reader.discover(everything=everything))]


async def test_windows_arrive_in_order_with_their_rows_and_outcomes(database: Database) -> None:
    ids = hours_before(number=12)
    for window_id in reversed(ids):
        await insert_window(database.pool, window_id, agents=3)

    windows = await read_all(database)

    assert [window.window_id for window in windows] == ids
    for window in windows:
        assert [trajectory.agent_id for trajectory in window.trajectories] == ["agent-1", "agent-2", "agent-3"]
        assert [trajectory.window_pnl for trajectory in window.trajectories] == [0, 10, 20]
        assert window.outcomes.stocks[0].change_percent == 10
        assert window.outcomes.stocks[0].news[0].headline == "ACME wins a large order"
        assert window.outcomes.predictions[0].outcome == "YES"


@pytest.mark.parametrize("writer", ["recorder", "plugin"])
async def test_both_writers_decode_to_the_same_types(database: Database, writer: Writer) -> None:
    await insert_window(database.pool, writer=writer)

    [window] = await read_all(database)

    for trajectory in window.trajectories:
        assert trajectory.start_time.tzinfo is UTC
        assert trajectory.agent_name == trajectory.agent_id.title()
        assert [action.kind for action in trajectory.actions] == ["BUY", "BUY"]
        assert [message.content for message in trajectory.llm_calls[0].chat()] == ["You trade.", "ACME trades at 100."]
        assert trajectory.size_bytes > 1000


async def test_spellings_and_missing_ids_belong_to_the_same_window(database: Database) -> None:
    spellings = [WINDOW, f"{WINDOW}:00", f"{WINDOW}:00Z", f"{WINDOW}:00.000Z", f"{WINDOW[:-3]}:37", None]
    for number, spelling in enumerate(spellings):
        start = datetime(2026, 11, 2, 10, 20, tzinfo=UTC)
        await insert_trajectory(database.pool, f"agent-{number}", window_id=spelling, start_time=start)
    await insert_outcomes(database.pool, f"{WINDOW}")

    [window] = await read_all(database)

    assert window.window_id == WINDOW
    assert {trajectory.agent_id for trajectory in window.trajectories} == {f"agent-{n}" for n in range(6)}
    assert {trajectory.window_id for trajectory in window.trajectories} == {WINDOW}


async def test_agents_are_counted_across_spellings_and_missing_ids(database: Database) -> None:
    start = datetime(2026, 11, 2, 10, 20, tzinfo=UTC)
    await insert_trajectory(database.pool, "agent-1")
    await insert_trajectory(database.pool, "agent-2", window_id=f"{WINDOW}:00Z", start_time=start)
    await insert_trajectory(database.pool, "agent-1", window_id=f"{WINDOW}:00", start_time=start)
    reader = WindowReader(database, RULES)
    assert await reader.discover() == []

    await insert_trajectory(database.pool, "agent-3", window_id=None, start_time=start)

    [ref] = await reader.discover()
    assert (ref.window_id, ref.agents) == (WINDOW, 3)


async def test_outcomes_are_found_under_another_spelling_and_later_rows_correct(database: Database) -> None:
    await insert_window(database.pool, outcomes=False)
    early, late = datetime(2026, 11, 2, 11, 0), datetime(2026, 11, 2, 11, 5)
    stocks: list[dict[str, Any]] = [
        {"endPrice": None, "changePercent": None, "createdAt": early},
        {"endPrice": 120, "createdAt": late},
    ]
    for stock in stocks:
        await insert_outcomes(database.pool, WINDOW, stocks=[stock | {"windowId": f"{WINDOW}:00.000Z"}], predictions=[])

    [window] = await read_all(database)

    assert [stock.end_price for stock in window.outcomes.stocks] == [120]


async def test_discovery_gives_only_windows_that_can_be_eligible(database: Database) -> None:
    [*_, used, evaluated, excluded, few, good] = hours_before(number=6)
    await insert_window(database.pool, used, usedInTraining=True)
    await insert_window(database.pool, evaluated, isEvaluation=True)
    await insert_window(database.pool, excluded, isTrainingData=False)
    await insert_window(database.pool, few, agents=2)
    await insert_window(database.pool, good)
    await insert_window(database.pool, "2026-11-02T12:00")  # open
    await insert_window(database.pool, "2026-10-01T12:00")  # before the lookback
    reader = WindowReader(database, RULES)

    assert [ref.window_id for ref in await reader.discover()] == [good]
    everything = {ref.window_id for ref in await reader.discover(everything=True)}
    assert everything == {used, evaluated, excluded, few, good, "2026-11-02T12:00"}


async def test_a_longer_window_is_closed_only_after_its_last_hour(database: Database) -> None:
    await insert_window(database.pool, WINDOW, windowHours=2)
    end = datetime(2026, 11, 2, 12, 0, tzinfo=UTC)

    for minutes, usable in ((9, 0), (10, 3)):
        rules = Rules(now=end + timedelta(minutes=minutes))
        [window] = await read_all(database, rules)
        assert (window.hours, len(check(window, rules).usable)) == (2, usable)


async def test_one_row_with_absurd_hours_does_not_keep_the_window_open(database: Database) -> None:
    await insert_window(database.pool, agents=4)
    await insert_trajectory(database.pool, "agent-0", windowHours=2_000_000_000)

    [window] = await read_all(database)

    assert window.hours == 1
    assert len(window.trajectories) == 5


async def test_rows_whose_id_names_no_hour_are_reported_in_the_hour_they_started(database: Database) -> None:
    await insert_window(database.pool)
    start = datetime(2026, 11, 2, 10, 20, tzinfo=UTC)
    bad = ["window-7", "", "2026-11-02T99:00", "2026-11-02Tnoon"]
    for raw in bad:
        await insert_trajectory(database.pool, "agent-9", window_id=raw, scenarioId=None, start_time=start)
    await insert_trajectory(
        database.pool, "agent-8", window_id="window-7", start_time=start - timedelta(hours=3), scenarioId=None
    )

    windows = await read_all(database, everything=True)

    by_id = {window.window_id: window for window in windows}
    assert set(by_id) == {WINDOW, "2026-11-02T07:00"}
    assert [row.reason for row in by_id[WINDOW].unreadable] == ["bad_window_id"] * 4
    assert len(by_id[WINDOW].trajectories) == 3
    assert [row.agent_id for row in by_id["2026-11-02T07:00"].unreadable] == ["agent-8"]


async def test_an_oversized_row_is_not_even_sent(database: Database) -> None:
    await insert_window(database.pool)
    await insert_trajectory(database.pool, "agent-big", steps_json='[{"x": "' + "y" * 5_100_000 + '"}]')

    [window] = await read_all(database)

    assert len(window.trajectories) == 3
    [row] = window.unreadable
    assert (row.agent_id, row.reason) == ("agent-big", "oversized")


async def test_read_gives_one_window_in_any_spelling(database: Database) -> None:
    await insert_window(database.pool, agents=1)
    reader = WindowReader(database, RULES)

    for spelling in (WINDOW, f"{WINDOW}:00Z"):
        window = await reader.read(spelling)
        assert window is not None
        assert window.window_id == WINDOW
    assert await reader.read("2026-11-02T03:00") is None
    assert await reader.read("not a window") is None


async def test_leaving_a_stream_early_leaves_no_task_and_no_connection_behind(database: Database) -> None:
    for window_id in hours_before(number=30):
        await insert_window(database.pool, window_id)
    reader = WindowReader(database, RULES)
    tasks = asyncio.all_tasks()
    refs = await reader.discover()

    async with aclosing(reader.stream(refs)) as windows:
        async for window in windows:
            assert window.window_id == refs[0].window_id
            break

    assert asyncio.all_tasks() == tasks
    assert database.pool.get_size() == database.pool.get_idle_size()


async def test_reading_works_without_the_right_to_read_users(database: Database) -> None:
    await insert_window(database.pool)
    await database.pool.execute('ALTER TABLE "User" RENAME TO "Users"')

    [window] = await read_all(database)

    assert [trajectory.agent_name for trajectory in window.trajectories] == [None] * 3
