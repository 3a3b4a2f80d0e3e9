"""schedule_training as cron, systemd and Kubernetes call it: a period that is due is really trained."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from data_bridge.database import Database
from tests.builders import NOW, hours_before, insert_window
from tests.tiny_model import shared_tiny_model

ROOT = Path(__file__).resolve().parents[2]


async def test_once_trains_the_period_with_what_its_own_flags_say(
    database: Database, database_url: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    ids = [trajectory for hour in hours_before(number=4) for trajectory in await insert_window(database.pool, hour)]
    tiny, home = shared_tiny_model(tmp_path_factory), tmp_path / "home"
    for_the_training = {
        "HINDSIGHT_BASE_MODEL": str(tiny),
        "HINDSIGHT_BACKEND": "cpu",
        "HINDSIGHT_THREADS": "1",
        "HINDSIGHT_LORA_RANK": "2",
        "HINDSIGHT_GROUPS_PER_STEP": "2",
        "HINDSIGHT_STOP_ON": "off",
        "HINDSIGHT_PROMOTE": "false",
    }
    flags = ("--database-url", database_url, "--home", str(home), "--until", NOW.isoformat(), "--lookback", "6h")
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, str(ROOT / "scripts" / "schedule_training.py"), "--once", *flags),
        env=os.environ | for_the_training,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await running.communicate()
    assert running.returncode == 0, output.decode()
    run = await database.pool.fetchrow("SELECT state, (summary->>'steps')::int AS steps FROM hindsight.runs")
    assert run is not None, output.decode()
    assert (run["state"], run["steps"]) == ("done", 2)
    trained = await database.pool.fetchval('SELECT count(*) FROM trajectories WHERE "usedInTraining"')
    assert trained == len(ids)
    assert len(list(home.glob("checkpoints/hindsight/step-*"))) == 2
    assert await database.pool.fetchval("SELECT state FROM hindsight.periods") == "done"
