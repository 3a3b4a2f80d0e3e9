"""A host that takes a training: the settings reach the process, its end is recorded, the scheduler does it too."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from data_bridge.database import Database
from trainer.config.commands import ScheduleSettings, TrainSettings
from trainer.config.settings import settings_from
from trainer.ledger.commands import ask_to_start, newest_start
from trainer.schedule.commanded import environment_of, run_next

ECHO = (
    "import os, sys; print(os.environ['HINDSIGHT_LEARNING_RATE'], os.environ['HINDSIGHT_PURPOSES'],"
    " os.environ['HINDSIGHT_MODEL'], sys.argv[-1], file=sys.stderr); sys.exit(3)"
)
ASKED: dict[str, dict[str, Any]] = {"training": {"learning_rate": 0.001}, "judge": {"purposes": ["action", "trade"]}}


async def test_what_was_asked_for_reaches_the_training_and_its_end_the_ledger(
    database: Database, tmp_path: Path
) -> None:
    await ask_to_start(database, "m", ASKED, run_id="run-9", asked_by="somebody")
    settings = settings_from(ScheduleSettings, home=tmp_path)
    command = (sys.executable, "-c", ECHO)
    ended = await run_next(database, settings, command=command, stop=asyncio.Event(), quiet=True)
    assert ended is not None
    assert (ended.exit_code, ended.last_words) == (3, "0.001 action,trade m run-9")
    found = await newest_start(database.pool, "m")
    assert found is not None
    assert (found.state, found.exit_code, found.outcome) == ("done", 3, "0.001 action,trade m run-9")
    assert await run_next(database, settings, command=command, stop=asyncio.Event(), quiet=True) is None


def test_a_host_adds_its_own_settings_and_what_was_asked_for_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HINDSIGHT_LEARNING_RATE", "0.5")
    settings = settings_from(ScheduleSettings, home=tmp_path, lookback="3d")
    variables = environment_of(settings, ASKED, "m")
    assert variables["HINDSIGHT_LEARNING_RATE"] == "0.001"
    assert variables["HINDSIGHT_LOOKBACK"] == "3d"
    assert variables["HINDSIGHT_HOME"] == str(tmp_path)
    assert TrainSettings.model_fields.keys() >= ASKED.keys()


async def test_the_scheduler_takes_a_training_that_was_asked_for(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    """The real command, with a training that stops at once for want of data."""
    await ask_to_start(database, "m", {"run": {"simulate": "off"}}, run_id="run-9", asked_by="somebody")
    root = Path(__file__).parents[2]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(root / "scripts" / "schedule_training.py"), "--cron", "0 0 1 1 *"),
        *("--home", str(tmp_path)),
        env={"PATH": "/usr/bin:/bin", "DATABASE_URL": database_url},
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(120):
            while (found := await newest_start(database.pool, "m")) is None or found.state in ("waiting", "taken"):
                await asyncio.sleep(0.2)
        assert (found.state, found.exit_code) == ("done", 3)
        assert await database.pool.fetchval("SELECT part FROM hindsight.hosts") == "scheduler"
    finally:
        process.terminate()
        await process.wait()
