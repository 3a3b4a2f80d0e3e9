"""What the closed loop has played ahead of the wall clock is over, for every command that reads windows."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from data_bridge.database import Database, open_database
from data_bridge.window_ids import GRACE, end_of, window_of
from tests.builders import insert_window
from trainer.cli import check_windows, judge_windows, traces
from trainer.ledger.clock import clock

_SIMULATED = "INSERT INTO hindsight.simulated_windows VALUES ($1, 7, 0.2, 'one', 1, '1', 0, '{}'::jsonb, '{}'::jsonb)"
TOMORROW = datetime.now(UTC) + timedelta(days=1)
WINDOWS = [window_of(TOMORROW + timedelta(hours=hour)) for hour in range(3)]


async def test_the_market_may_be_ahead_of_the_wall_clock(database: Database) -> None:
    before = datetime.now(UTC)
    assert before <= await clock(database, None) <= datetime.now(UTC)
    await database.pool.execute(_SIMULATED, "2026-03-02T10:00")
    assert before <= await clock(database, None) <= datetime.now(UTC)
    await database.pool.execute(_SIMULATED, WINDOWS[-1])
    assert await clock(database, None) == end_of(WINDOWS[-1], 1) + GRACE
    assert await clock(database, "2026-11-02T12:00") == datetime(2026, 11, 2, 12, tzinfo=UTC)


async def test_a_role_that_may_not_read_what_was_simulated_goes_by_the_wall_clock(
    database: Database, locked_url: str, tmp_path: Path
) -> None:
    await database.pool.execute(_SIMULATED, WINDOWS[-1])
    async with open_database(locked_url.replace("PASSWORD", "right-password"), tmp_path, read_only=True) as limited:
        assert await clock(limited, None) <= datetime.now(UTC)


async def test_windows_that_were_played_ahead_are_closed_for_every_command(
    database: Database,
    database_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for window_id in WINDOWS:
        await insert_window(database.pool, window_id)
        await database.pool.execute(_SIMULATED, window_id)
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("HINDSIGHT_HOME", str(tmp_path))

    assert await asyncio.to_thread(check_windows.main, ["--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [(window["id"], window["usable"]) for window in shown["windows"]] == [(name, 3) for name in WINDOWS]

    assert await asyncio.to_thread(check_windows.main, ["--json", "--window", WINDOWS[-1]]) == 0
    assert json.loads(capsys.readouterr().out)["state"].startswith("closed")

    assert await asyncio.to_thread(judge_windows.main, ["--json", "--judge", "outcome"]) == 0
    assert [window["window"] for window in json.loads(capsys.readouterr().out)["windows"]] == WINDOWS

    file = tmp_path / "ahead.jsonl"
    assert await asyncio.to_thread(traces.main, ["export", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["windows"] == len(WINDOWS)
