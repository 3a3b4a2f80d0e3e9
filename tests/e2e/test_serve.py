"""serve.py as a user runs it: it answers, and ends well when it is asked to."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from data_bridge.database import Database
from tests.builders_promotion import insert_checkpoint
from tests.tiny_model import shared_tiny_model
from trainer.inference.checkpoints import StoredStep, store_of
from trainer.promote.publish import publish
from trainer.types import Serving

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "serve.py"


@pytest.fixture
def flags(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    tiny = shared_tiny_model(tmp_path_factory)
    return ["--home", str(tmp_path), "--base-model", str(tiny), "--port", "0", "--threads", "1"]


def started(flags: list[str], tmp_path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *flags],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_answers_and_ends_with_0_when_it_is_asked_to_stop(
    tmp_path: Path, flags: list[str], number: signal.Signals
) -> None:
    with started(flags, tmp_path) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            assert line.startswith("Serving hindsight@step0"), line + server.stdout.read()
            url = line.split()[-1]
            question = {"model": "hindsight", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
            answer = httpx.post(f"{url}/chat/completions", json=question, timeout=300)
            assert answer.json()["model"] == "hindsight@step0"
            server.send_signal(number)
            rest, _ = server.communicate(timeout=300)
        finally:
            server.kill()
    assert (server.returncode, rest) == (0, "")


async def test_with_a_database_it_starts_with_what_the_ledger_says(
    database: Database, database_url: str, tmp_path: Path, flags: list[str]
) -> None:
    point = await insert_checkpoint(database, 1)
    await publish(database, tmp_path / "another home", point.as_release(), Serving("url", point.name), reason="better")
    with started([*flags, "--database-url", database_url], tmp_path) as server:
        try:
            assert server.stdout is not None
            line = await asyncio.to_thread(server.stdout.readline)
        finally:
            server.kill()
    assert line.startswith("Serving hindsight@step1")


async def test_it_does_not_start_on_another_base_model_than_the_promoted_checkpoints(
    database: Database, tmp_path: Path, flags: list[str]
) -> None:
    location = store_of(tmp_path, "hindsight").save(
        StoredStep(1, "batch-1", 1, "another-base"), lambda path: (path / "adapter_config.json").touch()
    )
    point = await insert_checkpoint(database, 1, backend="cpu", location=location)
    await publish(database, tmp_path, point.as_release(), Serving("url", point.name), reason="better")
    with started(flags, tmp_path) as server:
        told, _ = await asyncio.to_thread(server.communicate, timeout=300)
    assert server.returncode == 2
    assert told.startswith("error: hindsight@step1 was trained on another-base and cannot run on ")
