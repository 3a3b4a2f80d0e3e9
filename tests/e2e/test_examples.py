"""Every program in ``examples/`` is run as its reader would run it: on a database with a log, at a local endpoint."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from data_bridge.database import Database
from tests.fakes.judge_server import JudgeServer
from tests.fakes.policy_server import PolicyServer

ROOT = Path(__file__).parents[2]
EXAMPLES = {path.name: path.read_text() for path in (ROOT / "examples").glob("*.py")}
UNTIL = "2025-03-03T12:20"
"""Which hours before it are held out is decided by their ids."""
OURS = ("HINDSIGHT_", "JUDGE_", "WANDB_", "OPENAI_", "PG", "DATABASE_URL")

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """``run("examples/own_game.py", "--until", …, DATABASE_URL=…)``: one process, in a folder of its own."""

    def start(program: str, *flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        environment |= {"PYTHONPATH": str(ROOT), "HINDSIGHT_HOME": str(tmp_path / "home"), **variables}
        command = [sys.executable, str(ROOT / program), *flags]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert "Traceback" not in done.stderr
        return done

    return start


def with_a_log(run: Run, database_url: str, *, windows: int = 12) -> None:
    played = ("--start", "2025-03-03T00:00", "--windows", str(windows), "--agents", "4")
    done = run("scripts/spawn_test_agents.py", *played, DATABASE_URL=database_url)
    assert done.returncode == 0, done.stderr


def test_every_example_says_how_it_is_run_and_uses_nothing_of_the_tests() -> None:
    tested_below = ["agent_loop.py", "own_backend.py", "own_game.py", "own_rubric.py"]
    tested_with_the_export = ["groups_for_trl.py", "groups_for_verl.py"]
    assert sorted(EXAMPLES) == sorted(tested_below + tested_with_the_export)
    for name, source in EXAMPLES.items():
        tree = ast.parse(source)
        assert f"\n    python examples/{name}" in (ast.get_docstring(tree, clean=False) or "")
        imported = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        imported += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
        assert not [module for module in imported if module.split(".")[0] in ("tests", "benchmarks")]


def test_a_window_is_judged_with_ones_own_rubric(run: Run, database_url: str, tmp_path: Path) -> None:
    with_a_log(run, database_url)
    rubric = tmp_path / "mine.md"
    rubric.write_text("Only the brave are worth a point.")
    flags = ("--until", UNTIL, "--judge-model", "honest")
    with JudgeServer() as server:
        first = run("examples/own_rubric.py", *flags, DATABASE_URL=database_url, JUDGE_BASE_URL=server.base_url)
        assert first.returncode == 0, first.stderr
        asked = len(server.requests)
        again = run("examples/own_rubric.py", *flags, "--judge-base-url", server.base_url, DATABASE_URL=database_url)
        assert len(server.requests) == asked
        mine = run(
            *("examples/own_rubric.py", *flags, "--rubric", str(rubric)),
            DATABASE_URL=database_url,
            JUDGE_BASE_URL=server.base_url,
        )
        assert "Only the brave" in json.dumps(server.requests[-1].body)
    written = (ROOT / "examples/own_rubric.md").read_text().partition("\n")[2].strip()
    assert all(written in request.body["messages"][0]["content"] for request in server.requests[:asked])
    scores = [float(line.split()[0]) for line in first.stdout.splitlines() if line.startswith("  ")]
    assert len(scores) == 4
    assert scores == sorted(scores, reverse=True)
    assert "rubric own_rubric (version 1-" in first.stdout
    assert "2 calls, 0 of 1 groups judged before." in first.stdout
    assert "0 calls, 1 of 1 groups judged before." in again.stdout
    assert "2 calls, 0 of 1 groups judged before." in mine.stdout, mine.stderr


def test_ones_own_rubric_without_a_judge_or_a_window_is_one_sentence(run: Run, database_url: str) -> None:
    nobody = run("examples/own_rubric.py", DATABASE_URL=database_url)
    assert (nobody.returncode, nobody.stdout) == (2, "")
    assert nobody.stderr == "error: --judge llm needs JUDGE_MODEL: name the model that judges.\n"
    endpoint = {"JUDGE_MODEL": "honest", "JUDGE_BASE_URL": "http://127.0.0.1:9/v1"}
    nothing = run("examples/own_rubric.py", DATABASE_URL=database_url, **endpoint)
    assert (nothing.returncode, nothing.stdout) == (3, "")
    assert nothing.stderr == "error: There is nothing to judge: check_windows.py says why.\n"


async def test_a_backend_of_ones_own_trains_every_batch_once(
    run: Run, database: Database, database_url: str, tmp_path: Path
) -> None:
    with_a_log(run, database_url)
    flags = ("--model", "exported", "--until", UNTIL, "--groups-per-step", "4")
    done = run("examples/own_backend.py", *flags, DATABASE_URL=database_url)
    assert done.returncode == 0, done.stderr
    files = sorted((tmp_path / "home" / "exported" / "exported").glob("step-*/decisions.jsonl"))
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    words = sum(len(line["reply"].split()) for line in lines)
    assert f"{words} words exported in {len(files)} batches." in done.stdout
    assert f"exported@step{len(files)}: {files[-1].parent}" in done.stdout
    assert len(files) > 1
    assert all(set(line) == {"messages", "reply", "advantage"} for line in lines)
    used = "SELECT count(*), count(DISTINCT trajectory_id) FROM hindsight.batch_trajectories WHERE NOT released"
    assert tuple(await database.pool.fetchrow(used) or ()) == (len(lines), len(lines))
    again = run("examples/own_backend.py", *flags, DATABASE_URL=database_url)
    assert again.returncode == 3
    assert again.stderr.startswith("error: 0 usable windows of at least 3")


async def test_a_backend_of_ones_own_knows_after_a_crash_which_batch_it_took(
    run: Run, database: Database, database_url: str, tmp_path: Path
) -> None:
    with_a_log(run, database_url)
    flags = ("--model", "exported", "--until", UNTIL)
    assert run("examples/own_backend.py", *flags, DATABASE_URL=database_url).returncode == 0
    # As if it had been killed between its last checkpoint and the books.
    await database.pool.execute(
        "DELETE FROM hindsight.checkpoints WHERE step = (SELECT max(step) FROM hindsight.checkpoints)"
    )
    newest = "(SELECT max(number) FROM hindsight.batches)"
    await database.pool.execute(f"UPDATE hindsight.batches SET state = 'prepared', step = NULL WHERE number = {newest}")
    await database.pool.execute("UPDATE hindsight.runs SET state = 'running'")
    before = sorted((tmp_path / "home" / "exported").rglob("decisions.jsonl"))
    done = run("examples/own_backend.py", *flags, DATABASE_URL=database_url)
    assert done.returncode == 0, done.stderr
    assert sorted((tmp_path / "home" / "exported").rglob("decisions.jsonl")) == before
    states = await database.pool.fetch("SELECT DISTINCT state FROM hindsight.batches")
    assert [row["state"] for row in states] == ["trained"]


@pytest.mark.parametrize("is_embedded", [True, False], ids=["embedded", "DATABASE_URL"])
def test_agents_of_ones_own_game_are_ready_for_training(run: Run, database_url: str, is_embedded: bool) -> None:
    variables = {} if is_embedded else {"DATABASE_URL": database_url}
    with PolicyServer("Yes.") as server:
        endpoint = {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "none", "OPENAI_MODEL": "weather"}
        done = run("examples/own_game.py", "--until", UNTIL, "--json", **variables, **endpoint)
    assert done.returncode == 0, done.stderr
    assert "18 trajectories recorded." in done.stderr
    report = json.loads(done.stdout)
    assert ("embedded" in report["database"]) == is_embedded
    assert report["ready"]
    assert report["trajectories"] == 18
    assert set(report["reasons"]) <= {"held_out"}
    assert {request["model"] for request in server.requests} == {"weather"}
    assert len({request["messages"][0]["content"] for request in server.requests}) == 3


def test_agents_in_the_loop_do_better_once_something_was_learnt(run: Run, database_url: str) -> None:
    done = run("examples/agent_loop.py", "--until", UNTIL, DATABASE_URL=database_url)
    assert done.returncode == 0, done.stderr
    assert "48 trajectories recorded." in done.stderr
    right = [float(line.split()[1].rstrip("%")) for line in done.stdout.splitlines()]
    assert len(right) == 6
    assert max(right[:3]) < 50 < min(right[3:]), "the lesson was known after the third hour"


def test_a_game_without_an_endpoint_is_one_sentence(run: Run, database_url: str) -> None:
    for variables in ({}, {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1", "OPENAI_API_KEY": "none"}):
        done = run("examples/own_game.py", "--until", UNTIL, DATABASE_URL=database_url, **variables)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("error: No chat endpoint (")
        assert done.stderr.endswith("set OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL.\n")
        assert done.stderr.count("\n") == 1
