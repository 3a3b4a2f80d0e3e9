"""What a console does by itself: alarms to a webhook, once; forgetting what is old; and *Now* in a terminal."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import StringIO
from pathlib import Path

from data_bridge.database import Database
from tests.builders_console import ROOT
from tests.builders_report_run import record_run
from trainer.config.console import ConsoleSettings
from trainer.console.upkeep import alarm_of, forget_old, send_alarms
from trainer.console.watch import current, table_of
from trainer.ledger.events import Cursor, EventKind, tell


@asynccontextmanager
async def webhook(*statuses: int) -> AsyncIterator[tuple[str, list[dict[str, str]]]]:
    """A server that answers with ``statuses`` in turn, then 200; and what it was sent."""
    heard: list[dict[str, str]] = []
    left = list(statuses)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        size = int(next(line for line in head.lower().splitlines() if line.startswith("content-length"))[15:])
        body = json.loads(await reader.readexactly(size))
        status = left.pop(0) if left else 200
        if status == 200:
            heard.append(body)
        writer.write(f"HTTP/1.1 {status} x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", heard


async def burn(database: Database) -> None:
    """One of each that burns, and one of each that does not."""
    pool = database.pool
    await tell(pool, EventKind.RUN, {"state": "running"}, model="m", run_id="r")
    await tell(pool, EventKind.RUN, {"state": "failed", "error": "the judge is away"}, model="m", run_id="r")
    await tell(pool, EventKind.COLLAPSE, {"reason": "entropy fell"}, model="m", run_id="r")
    await tell(pool, EventKind.BUDGET, {"left_out": 7, "max_cost": 5}, model="m", run_id="r")
    await tell(pool, EventKind.RELEASE, {"state": "serving", "release": "m@step1", "reason": ""}, model="m")
    await tell(pool, EventKind.RELEASE, {"state": "rolled_back", "release": "m@step1", "reason": "lost"}, model="m")
    await tell(pool, EventKind.STEP, {"step": 1}, model="m", run_id="r")


async def test_the_webhook_is_told_of_what_burns_once_by_any_number_of_consoles(database: Database) -> None:
    await burn(database)
    async with webhook() as (url, heard):
        await asyncio.gather(*(send_alarms(database, url, pauses=()) for _ in range(4)))
        assert sorted(one["alarm"] for one in heard) == ["budget", "collapse", "failure", "rollback"]
        sentences = {one["alarm"]: one["sentence"] for one in heard}
        assert sentences["rollback"] == "m@step1 was rolled back: lost"
        assert "the judge is away" in sentences["failure"]
        assert await send_alarms(database, url, pauses=()) == 0


async def test_a_webhook_that_fails_is_tried_again_and_never_fatal(database: Database) -> None:
    await tell(database.pool, EventKind.COLLAPSE, {"reason": "entropy fell"}, model="m", run_id="r")
    async with webhook(500, 503) as (url, heard):
        assert await send_alarms(database, url, pauses=(0.0, 0.0, 0.0)) == 1
        assert len(heard) == 1
    await tell(database.pool, EventKind.COLLAPSE, {"reason": "again"}, model="m", run_id="r")
    assert await send_alarms(database, "http://127.0.0.1:9/", pauses=()) == 0


async def test_ordinary_news_are_no_alarm(database: Database) -> None:
    cursor = await Cursor.at_the_end(database)
    await burn(database)
    alarms = [alarm_of(event) for event in await cursor.advance(database)]
    assert [None if one is None else one.alarm for one in alarms] == [
        None, "failure", "collapse", "budget", None, "rollback", None
    ]  # fmt: skip


async def test_what_is_old_is_forgotten_and_what_was_trained_is_not(database: Database, tmp_path: Path) -> None:
    await record_run(database, tmp_path)
    pool = database.pool
    await pool.execute("INSERT INTO hindsight.audit (who, address, deed, target) VALUES ('x', 'x', 'x', 'x')")
    for table, column in (("events", "at"), ("audit", "at"), ("verdicts", "created_at")):
        await pool.execute(f"UPDATE hindsight.{table} SET {column} = now() - interval '400 days'")
    await pool.execute("UPDATE hindsight.verdicts SET run_id = 'console-2025-01-01'")
    await pool.execute("INSERT INTO hindsight.audit (who, address, deed, target) VALUES ('new', 'x', 'x', 'x')")
    kept = ConsoleSettings()
    assert await forget_old(database, kept) > 2
    assert await pool.fetchval("SELECT count(*) FROM hindsight.events") == 0
    assert await pool.fetchval("SELECT who FROM hindsight.audit") == "new"
    used = "SELECT verdict_key FROM hindsight.batch_trajectories"
    trained = f"SELECT count(*) FROM hindsight.verdicts WHERE verdict_key IN ({used})"
    assert await pool.fetchval(trained) == 6, "verdicts of batches stay"
    assert await pool.fetchval("SELECT count(*) FROM hindsight.verdicts") == 6


async def test_the_terminal_shows_what_the_page_shows(database: Database, tmp_path: Path) -> None:
    from rich.console import Console

    await record_run(database, tmp_path)
    shown = StringIO()
    Console(width=100, file=shown).print(table_of(*await current(database, "hindsight")))
    text = shown.getvalue()
    assert "hindsight: idle" in text
    assert "0.600 ± 0.200" in text
    assert "hindsight@step2" in text


def test_json_prints_the_status_once_without_a_server(database_url: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "console.py"), "--json", "--home", str(tmp_path)],
        env={"PATH": "/usr/bin:/bin", "DATABASE_URL": database_url},
        capture_output=True,
        text=True,
        check=True,
    )
    status = json.loads(done.stdout)
    assert (status["state"], status["model"], status["step"]) == ("idle", "hindsight", None)
    assert not (tmp_path / "console").exists(), "looking makes no keys"


async def test_watching_as_json_prints_a_line_whenever_something_changes_and_ends_normally(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    watching = await asyncio.create_subprocess_exec(
        *(sys.executable, str(ROOT / "scripts" / "console.py"), "--watch", "--json", "--home", str(tmp_path)),
        env={"PATH": "/usr/bin:/bin", "DATABASE_URL": database_url},
        stdout=asyncio.subprocess.PIPE,
    )
    assert watching.stdout is not None
    assert json.loads(await asyncio.wait_for(watching.stdout.readline(), 60))["step"] is None
    await record_run(database, tmp_path)
    lines = [json.loads(await asyncio.wait_for(watching.stdout.readline(), 60))]
    while lines[-1]["step"] != 2 or lines[-1]["serving"] is None:  # it may look in the middle of the run
        lines.append(json.loads(await asyncio.wait_for(watching.stdout.readline(), 60)))
    assert (lines[-1]["run_state"], lines[-1]["serving"]) == ("done", "hindsight@step2")
    watching.send_signal(signal.SIGINT)
    assert await asyncio.wait_for(watching.wait(), 60) == 0


def test_the_command_and_its_first_page_import_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "import trainer.cli.console, trainer.console.app, trainer.console.pages, trainer.console.host\n"
        "heavy = [name for name in ('torch', 'art', 'transformers', 'wandb', 'openai', 'numpy', 'scipy')"
        " if name in sys.modules]\n"
        "assert heavy == [], heavy"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
