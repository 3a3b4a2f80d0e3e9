"""A rollback in the middle of a whole training run, by the scripts as a user runs them."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from data_bridge.database import Database
from data_bridge.window_ids import end_of, start_of, windows_from
from tests.tiny_model import shared_tiny_model
from trainer.ledger.checkpoints import find_checkpoint
from trainer.ledger.evaluations import leaked_windows
from trainer.promote.publish import publish
from trainer.types import Serving
from trainer.world.agents import scripted_cast
from trainer.world.market import Market
from trainer.world.play import play_windows

ROOT = Path(__file__).resolve().parents[2]
WINDOWS = windows_from("2026-10-05T00:00", 64)


async def _script(name: str, *arguments: str, cwd: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, str(ROOT / "scripts" / name), *arguments),
        cwd=cwd,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def _told(name: str, *arguments: str, cwd: Path) -> dict[str, Any]:
    process = await _script(name, *arguments, "--json", cwd=cwd)
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    told: dict[str, Any] = json.loads(out)
    return told


@pytest.mark.model
async def test_rollback_during_a_training_run_that_never_touches_the_windows_that_decide(
    database: Database, database_url: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = tmp_path / "home"
    await play_windows(database, home / "spool", Market(7), scripted_cast(4, 7), WINDOWS, write_together=64)
    base = await asyncio.to_thread(shared_tiny_model, tmp_path_factory)
    flags = ["--database-url", database_url, "--home", str(home)]
    until = f"{end_of(WINDOWS[-1], 2):%Y-%m-%dT%H:%M}"
    training = await _script(
        "train_mmo.py",
        *flags,
        *("--base-model", str(base), "--backend", "cpu", "--simulate", "off", "--judge", "outcome", "--until", until),
        *("--groups-per-step", "3", "--threads", "1", "--no-promote", "--eval-samples", "2"),
        cwd=tmp_path,
    )
    assert training.stdout is not None
    assert training.stderr is not None
    reading = asyncio.gather(training.stdout.read(), training.stderr.read())

    async def step_is_there(step: int) -> None:
        query = "SELECT max(step) FROM hindsight.checkpoints"
        while (await database.pool.fetchval(query) or 0) < step:
            assert training.returncode is None, (await reading)[1].decode()
            await asyncio.sleep(0.05)

    for step in (1, 2):
        await step_is_there(step)
        point = await find_checkpoint(database, "hindsight", step)
        await publish(
            database, home, point.as_release(), Serving("http://127.0.0.1:1/v1", point.name), reason="a rehearsal"
        )
    started = time.monotonic()
    back = await _told("promote.py", "--rollback", "--reason", "a rehearsal", *flags, cwd=tmp_path)
    took = time.monotonic() - started
    assert training.returncode is None, "the run is still going on"
    assert back["checkpoint"]["step"] == 1
    assert took < 10, f"{took:.1f} s with the interpreter's start, on a busy machine"

    err = (await reading)[1].decode()
    assert await training.wait() in (0, 5), err
    listed = (await _told("promote.py", "--list", *flags, cwd=tmp_path))["checkpoints"]
    states = {one["checkpoint"]["step"]: one["state"] for one in listed}
    assert states[1] == "serving"
    assert states[2] == "rolled_back"
    assert len(states) > 2

    used = {row[0] for row in await database.pool.fetch("SELECT DISTINCT window_id FROM hindsight.batch_trajectories")}
    assert used <= set(WINDOWS[:45]), "without the newest quarter, and three hours before it"
    [report] = await database.pool.fetch("SELECT report::text FROM hindsight.evaluations")
    evaluated = {window["window_id"] for window in json.loads(report[0])["windows"]}
    assert evaluated >= set(WINDOWS[48:])
    assert start_of(min(evaluated)) >= end_of(max(used), 1) + timedelta(hours=3)
    assert await leaked_windows(database) == set()
