"""Every command and program in the README is run, in the README's order, on one home with a tiny model.

What costs money is a local endpoint that judges honestly; what would run for ever is started, heard, and stopped.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
import pytest

from tests.fakes.judge_server import JudgeServer, Request
from tests.fakes.judge_server import honest as answering
from tests.fakes.judges_with_faults import by_decision
from tests.tiny_model import shared_tiny_model

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
COMMANDS = [
    line
    for language, block in BLOCKS
    for line in block.splitlines()
    if language == "" and line.startswith(("make ", "python "))
]
PROGRAMS = [block for language, block in BLOCKS if language == "python"]
FOREVER = {"scripts/schedule_training.py": "Next period", "scripts/serve.py": "Serving hindsight@step"}
FOREVER |= {"scripts/console.py": "Console at"}
REFUSED_IS_FINE = {"scripts/train_mmo.py --max-cost 5"}
"""A tiny random model may learn nothing in a step or two; the gate then says so."""


KEY = "sk-readme-0123456789"


@dataclass(slots=True)
class Desk:
    """Where the README's reader sits."""

    home: Path
    environment: dict[str, str] = field(default_factory=dict)

    def run(self, command: str, *, extra: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        words = [sys.executable if word == "python" else word for word in _words(command)]
        return subprocess.run(
            words, cwd=ROOT, env=self.environment | (extra or {}), capture_output=True, text=True, timeout=300
        )

    def start(self, command: str) -> subprocess.Popen[str]:
        words = [sys.executable if word == "python" else word for word in _words(command)]
        pipe = subprocess.PIPE
        return subprocess.Popen(words, cwd=ROOT, env=self.environment, stdout=pipe, stderr=pipe, text=True)


def _telling_failures_apart(request: Request) -> dict[str, float]:
    """An honest judge that likes some invalid replies of a random model a little better than others."""
    return {
        shown.id: by_decision(shown.content) or 0.1 * len(set(str(shown.content["steps"]))) / 100
        for shown in request.shown
    }


def _words(command: str) -> list[str]:
    import shlex

    return shlex.split(command)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    home = tmp_path_factory.mktemp("readme")
    tiny = shared_tiny_model(tmp_path_factory)
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("HINDSIGHT_", "JUDGE_", "WANDB_"))
    }
    with JudgeServer(otherwise=answering(_telling_failures_apart)) as judge:
        yield Desk(
            home,
            clean
            | {
                "HINDSIGHT_HOME": str(home),
                "HINDSIGHT_BASE_MODEL": str(tiny),
                "HINDSIGHT_ITERATIONS": "1",
                "HINDSIGHT_WINDOWS_PER_ITERATION": "12",
                "HINDSIGHT_GROUPS_PER_STEP": "3",
                "HINDSIGHT_MIN_SPREAD": "0",
                "HINDSIGHT_EVAL_QUESTIONS": "8",
                "HINDSIGHT_EVAL_SAMPLES": "1",
                "HINDSIGHT_THREADS": "1",
                "HINDSIGHT_PORT": "0",
                "JUDGE_MODEL": "honest",
                "JUDGE_BASE_URL": judge.base_url,
                "JUDGE_API_KEY": KEY,
                "JUDGE_PRICE": "0.25/2",
                "BROWSER": "true",
                "OMP_NUM_THREADS": "1",
            },
        )


def test_the_readme_names_the_two_commands_and_the_makefile_has_every_target() -> None:
    assert COMMANDS[0] == "make train"
    assert "make test" in COMMANDS
    assert len(COMMANDS) >= 15
    for command in COMMANDS:
        if command.startswith("make "):
            dry = subprocess.run([*command.split(), "-n"], cwd=ROOT, capture_output=True, text=True)
            assert dry.returncode == 0, dry.stderr


def test_every_script_is_named_in_the_readme() -> None:
    for script in (ROOT / "scripts").glob("[a-z]*.py"):
        assert f"{script.name}" in README, script.name


def test_every_command_of_the_readme_works(desk: Desk) -> None:
    assert desk.run("python scripts/spawn_test_agents.py --windows 24 --agents 8").returncode == 0
    for command in COMMANDS:
        if command.startswith("make "):
            continue
        script, _, rest = command.removeprefix("python ").partition(" ")
        if "promote.py --rollback" in command:
            _promote_by_hand(desk)
        if script in FOREVER and not rest:
            _hear_and_stop(desk, command, FOREVER[script])
            continue
        done = desk.run(command)
        allowed = (0, 5) if f"{script} {rest}" in REFUSED_IS_FINE else (0,)
        assert done.returncode in allowed, f"{command}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        assert KEY not in done.stdout + done.stderr
    left = [path for path in desk.home.rglob("*") if path.is_file()]
    assert any(path.suffix == ".html" for path in left)
    for path in left:  # reports, run folders, checkpoints, and the database with all its rows
        assert KEY.encode() not in path.read_bytes(), path


def test_the_program_of_the_readme_records_an_agents_hour(
    desk: Desk, make_database: Callable[..., str], template_database: str
) -> None:
    """Into a database of ours, into a game's, whose users are the game's to create, and into the embedded one."""
    [program] = PROGRAMS
    ours, games = make_database(template_database), make_database(template_database)
    asyncio.run(_make_it_a_games(games))
    serving = desk.start("python scripts/serve.py")
    try:
        assert serving.stdout is not None
        address = re.search(r"http://\S+/v1", serving.stdout.readline())
        assert address is not None
        script = desk.home / "agent.py"
        script.write_text(program.replace("http://127.0.0.1:8808/v1", address[0]))

        def play(**extra: str) -> subprocess.CompletedProcess[str]:
            environment = desk.environment | {"PYTHONPATH": str(ROOT)} | extra
            return subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True)

        cases = [
            ({"DATABASE_URL": ours}, "agent-7"),
            ({"DATABASE_URL": games, "AGENT": "coin_fan"}, "u-1"),
            ({}, "agent-7"),
        ]
        for extra, agent in cases:
            done = play(**extra)
            assert done.returncode == 0, done.stderr
            assert f"{agent} said " in done.stdout
            shown = desk.run("python scripts/check_windows.py --json --lookback 1d", extra=extra)
            assert json.loads(shown.stdout)["trajectories"] >= 1, shown.stdout + shown.stderr
        unknown = play(DATABASE_URL=games, AGENT="nobody")
        assert "The game has no user 'nobody'" in unknown.stderr
    finally:
        serving.send_signal(signal.SIGINT)
        serving.wait(30)


async def _make_it_a_games(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute("UPDATE hindsight.migrations SET skipped = true WHERE number = 1")
    await connection.execute(
        "INSERT INTO \"User\" (id, username, \"displayName\") VALUES ('u-1', 'coin_fan', 'Coin Fan')"
    )
    await connection.close()


def test_the_embedded_databases_address_is_printed_and_works(desk: Desk) -> None:
    lending = desk.start("python scripts/run_migrations.py --url")
    try:
        assert lending.stdout is not None
        said = lending.stdout.readline().strip()
        assert said.startswith("DATABASE_URL=postgresql://")
        url = said.partition("=")[2]
        shown = desk.run("python scripts/run_migrations.py --status", extra={"DATABASE_URL": url})
        assert shown.returncode == 0, shown.stderr
        assert "window_facts" in shown.stdout
    finally:
        lending.send_signal(signal.SIGINT)
        lending.communicate(timeout=60)


def _promote_by_hand(desk: Desk) -> None:
    """Two promotions, so that there is something to roll back to."""
    for step in (1, 2):
        done = desk.run(f"python scripts/promote.py hindsight@step{step} --force --reason 'the README is tested'")
        assert done.returncode == 0, done.stdout + done.stderr


def _hear_and_stop(desk: Desk, command: str, words: str) -> None:
    running = desk.start(command)
    assert running.stdout is not None
    heard = running.stdout.readline()
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=300)
    assert words in heard, heard + errors
    assert "Traceback" not in errors
