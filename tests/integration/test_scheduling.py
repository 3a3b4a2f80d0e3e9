"""On any number of hosts a period is trained once: claims, takeovers, retries, and six schedulers of which one dies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta, tzinfo
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import asyncpg
import pytest

from data_bridge.database import Database
from tests.builders import hours_before, insert_window
from trainer.cli import schedule_training
from trainer.config.sections import ReadinessSettings
from trainer.ledger.periods import LEASE, Claim, Held, Periods, beating
from trainer.ledger.periods import PeriodResult as Outcome
from trainer.schedule.cron import Summary, period_due
from trainer.schedule.notify import notify
from trainer.schedule.readiness import Readiness, readiness_of

ROOT = Path(__file__).parents[2]
PERIOD = datetime(2026, 11, 15, 3, tzinfo=UTC)
SUMMARY = Summary("weekly", PERIOD.isoformat(), "done", 0, "")


async def test_a_period_is_claimed_by_one_of_many(database: Database) -> None:
    claims = await asyncio.gather(*(Periods(database, "weekly").claim(PERIOD) for _ in range(20)))
    assert sum(isinstance(claim, Claim) for claim in claims) == 1
    assert all(claim.state == "running" for claim in claims if isinstance(claim, Held))


async def test_another_job_and_another_period_are_their_own(database: Database) -> None:
    assert isinstance(await Periods(database, "weekly").claim(PERIOD), Claim)
    assert isinstance(await Periods(database, "nightly").claim(PERIOD), Claim)
    assert isinstance(await Periods(database, "weekly").claim(PERIOD + timedelta(days=7)), Claim)


async def test_a_finished_or_skipped_period_is_over(database: Database) -> None:
    for days, outcome in enumerate((Outcome.DONE, Outcome.SKIPPED)):
        period = PERIOD + timedelta(days=days)
        periods = Periods(database, "weekly")
        claim = await periods.claim(period)
        assert isinstance(claim, Claim)
        assert await periods.finish(claim, outcome, 0, "")
        held = await periods.claim(period)
        assert isinstance(held, Held)
        assert held.state == outcome


async def test_a_failed_period_is_tried_again_so_often_and_no_more(database: Database) -> None:
    periods = Periods(database, "weekly", attempts=3)
    for attempt in (1, 2, 3):
        claim = await periods.claim(PERIOD)
        assert isinstance(claim, Claim)
        assert claim.attempts == attempt
        await periods.finish(claim, Outcome.FAILED, 4, "the judge is down")
    assert isinstance(await periods.claim(PERIOD), Held)


async def test_a_dead_hosts_period_is_taken_over_and_the_dead_cannot_finish_it(database: Database) -> None:
    periods = Periods(database, "weekly")
    dead = await periods.claim(PERIOD)
    assert isinstance(dead, Claim)
    assert isinstance(await periods.claim(PERIOD), Held)
    await database.pool.execute("UPDATE hindsight.periods SET heartbeat_at = now() - $1::interval", LEASE * 2)
    heir = await periods.claim(PERIOD)
    assert isinstance(heir, Claim)
    assert heir.taken_over_from is not None
    assert not await periods.beat(dead)
    assert not await periods.finish(dead, Outcome.DONE, 0, "")
    assert await periods.beat(heir)
    assert await periods.finish(heir, Outcome.DONE, 0, "")


async def _once(database_url: str, home: Path, *flags: str) -> int:
    argv = ["--once", "--database-url", database_url, "--home", str(home), *(flags or ("--command", "true"))]
    return await asyncio.to_thread(schedule_training.main, argv)


async def _ready(database: Database, settings: ReadinessSettings) -> Readiness:
    return Readiness(True, "")


async def test_a_training_that_left_no_run_is_no_success(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule_training, "readiness_of", _ready)
    monkeypatch.setattr(schedule_training, "_TRAIN_MMO", ("true",))
    assert await _once(database_url, tmp_path, "--job", "by default") == 1
    assert await _once(database_url, tmp_path, "--job", "of their own", "--command", "true") == 0
    rows = await database.pool.fetch("SELECT state, reason FROM hindsight.periods ORDER BY job")
    assert [row["state"] for row in rows] == ["failed", "done"]
    assert "left no run" in rows[0]["reason"]


async def test_a_host_that_lives_keeps_its_period_while_it_asks_for_windows(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.ledger.periods.BEAT", timedelta(seconds=0.05))
    beats: set[datetime] = set()

    async def slowly(database: Database, settings: ReadinessSettings) -> Readiness:
        async with asyncio.timeout(60):
            while len(beats) < 4:
                beats.add(await database.pool.fetchval("SELECT heartbeat_at FROM hindsight.periods"))
                await asyncio.sleep(0.02)
        return Readiness(False, "Nothing yet.")

    monkeypatch.setattr(schedule_training, "readiness_of", slowly)
    assert await _once(database_url, tmp_path) == 3


async def test_a_host_that_lost_its_period_while_it_asked_for_windows_trains_nothing(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.ledger.periods.BEAT", timedelta(seconds=0.05))
    losses: list[asyncio.Event] = []

    @asynccontextmanager
    async def seen(periods: Periods, claim: Claim) -> AsyncIterator[asyncio.Event]:
        async with beating(periods, claim) as lost:
            losses.append(lost)
            yield lost

    async def too_late(database: Database, settings: ReadinessSettings) -> Readiness:
        await database.pool.execute("UPDATE hindsight.periods SET claim = 'another host'")
        await asyncio.wait_for(losses[0].wait(), 60)
        return Readiness(True, "")

    monkeypatch.setattr(schedule_training, "beating", seen)
    monkeypatch.setattr(schedule_training, "readiness_of", too_late)
    trace = tmp_path / "trained"
    assert await _once(database_url, tmp_path, "--command", f"touch {trace}") == 4
    assert not trace.exists()


async def test_a_hosts_wrong_clock_does_not_hide_the_windows(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for window_id in hours_before(datetime.now(UTC), number=3):
        await insert_window(database.pool, window_id)

    class Wrong(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Wrong:
            return cls(2020, 1, 1, tzinfo=tz)

    monkeypatch.setattr("trainer.config.sections.datetime", Wrong)
    ready = await readiness_of(database, ReadinessSettings())
    assert (ready.ready, ready.sentence) == (True, "3 usable windows in the last 7d, 3 needed.")


async def test_once_also_takes_over_an_older_period_of_a_dead_host(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule_training, "readiness_of", _ready)
    periods = Periods(database, "weekly")
    due = period_due("0 3 * * 0", await periods.now())
    assert isinstance(await periods.claim(due - timedelta(days=7)), Claim)
    await database.pool.execute("UPDATE hindsight.periods SET heartbeat_at = now() - $1::interval", LEASE * 2)
    assert await _once(database_url, tmp_path) == 0
    rows = await database.pool.fetch("SELECT period, state, attempts FROM hindsight.periods ORDER BY period")
    assert [tuple(row) for row in rows] == [(due - timedelta(days=7), "done", 2), (due, "done", 1)]


async def test_a_period_that_failed_a_moment_ago_is_not_called_a_success(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    periods = Periods(database, "weekly")
    claim = await periods.claim(period_due("0 3 * * 0", await periods.now()))
    assert isinstance(claim, Claim)
    await periods.finish(claim, Outcome.FAILED, 4, "the judge is down")
    assert await _once(database_url, tmp_path) == 4
    await database.pool.execute("UPDATE hindsight.periods SET finished_at = now() - interval '1 hour'")
    assert await _once(database_url, tmp_path) == 3  # tried again: there are no windows
    assert await _once(database_url, tmp_path) == 0  # skipped, which is over


async def test_once_with_json_prints_the_summary_as_the_one_object_on_stdout(
    database: Database, database_url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    period = period_due("0 3 * * 0", await Periods(database, "weekly").now()).isoformat()
    told = {"job": "weekly", "period": period, "outcome": "skipped", "exit_code": 3, "taken_over": []}
    assert await _once(database_url, tmp_path, "--json") == 3
    printed = json.loads(capfd.readouterr().out)
    assert "0 usable windows" in printed.pop("reason")
    assert printed == told
    assert await _once(database_url, tmp_path, "--json") == 0
    printed = json.loads(capfd.readouterr().out)
    assert printed.pop("reason").startswith("Nothing to do, skipped by")
    assert printed == told | {"exit_code": 0}


async def test_with_json_what_the_training_prints_goes_to_stderr(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(schedule_training, "readiness_of", _ready)
    assert await _once(database_url, tmp_path, "--json", "--command", "echo trained") == 0
    output = capfd.readouterr()
    assert json.loads(output.out)["outcome"] == "done"
    assert "trained" in output.err


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--cron", "0 3 31 2 *"),
        ("--command", "/no/such/program"),
        ("--command", 'train "and'),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_before_a_period_is_due(
    flag: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert schedule_training.main([flag, value, "--home", str(tmp_path)]) == 2
    assert f"error: {flag}" in capsys.readouterr().err


def test_a_webhook_that_is_no_address_is_refused_before_a_period_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HINDSIGHT_NOTIFY_URL", "my-webhook")
    assert schedule_training.main(["--home", str(tmp_path)]) == 2
    assert "error: HINDSIGHT_NOTIFY_URL" in capsys.readouterr().err


async def test_once_takes_over_from_a_host_that_has_just_died_but_not_from_one_that_lives(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.ledger.periods.LEASE", timedelta(seconds=3))
    monkeypatch.setattr(schedule_training, "LEASE", timedelta(seconds=3))
    monkeypatch.setattr(schedule_training, "BEAT", timedelta(seconds=0.2))
    periods = Periods(database, "weekly")
    other = await periods.claim(period_due("0 3 * * 0", await periods.now()))
    assert isinstance(other, Claim)
    asked = asyncio.create_task(_once(database_url, tmp_path))
    while not asked.done():
        assert await periods.beat(other)
        await asyncio.sleep(0.1)
    assert await asked == 0
    assert await _once(database_url, tmp_path) == 3  # it no longer beats: taken over, and there are no windows
    assert not await periods.beat(other)


@pytest.fixture
def webhook() -> Iterator[tuple[str, list[dict[str, object]]]]:
    """A webhook that fails once, then takes what it is told."""
    told: list[dict[str, object]] = []
    failures = [503]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = failures.pop() if failures else 200
            if status == 200:
                told.append(json.loads(body))
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            return

    server = HTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/hook", told
    server.shutdown()
    server.server_close()


async def test_a_webhook_that_fails_is_asked_again_and_one_that_is_gone_is_no_error(
    webhook: tuple[str, list[dict[str, object]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.schedule.notify._PAUSES", (0.01, 0.01))
    url, told = webhook
    assert await notify(url, SUMMARY)
    assert told == [asdict(SUMMARY)]
    assert not await notify("http://127.0.0.1:9/hook", SUMMARY)
    assert not await notify("http://[no-address", SUMMARY)


TRAINING = """
import os, sys, time, asyncio, asyncpg
async def main():
    connection = await asyncpg.connect(os.environ["DATABASE_URL"])
    await connection.execute("INSERT INTO trainings (pid, step) VALUES ($1, 'begun')", os.getpid())
    await asyncio.sleep(1.5)
    await connection.execute("INSERT INTO trainings (pid, step) VALUES ($1, 'done')", os.getpid())
    await connection.close()
asyncio.run(main())
"""


async def test_six_schedulers_train_each_period_once_though_one_is_killed(database_url: str, tmp_path: Path) -> None:
    """Periods of five seconds, a stand-in for the training that takes 1.5 s; leases short enough to see a takeover."""
    training = tmp_path / "training.py"
    training.write_text(TRAINING)
    connection = await asyncpg.connect(database_url)
    await connection.execute("CREATE TABLE trainings (pid int, step text, at timestamptz DEFAULT now())")
    command = [sys.executable, "-c", _SCHEDULER, "--cron", "* * * * * */5", "--command", f"{sys.executable} {training}"]
    environment = os.environ | {"DATABASE_URL": database_url, "HINDSIGHT_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    hosts = [
        await asyncio.create_subprocess_exec(
            *command,
            env=environment,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            cwd=tmp_path,
        )
        for _ in range(6)
    ]
    try:
        victim = await _first_trainer(connection)
        os.kill(victim, signal.SIGKILL)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            done = await connection.fetchval("SELECT count(*) FROM hindsight.periods WHERE state = 'done'")
            if done >= 3:
                break
            await asyncio.sleep(0.2)
    finally:
        for host in hosts:
            if host.returncode is None:
                host.send_signal(signal.SIGINT)
        await asyncio.gather(*(host.wait() for host in hosts))
    finished = await connection.fetch("SELECT period, state, attempts FROM hindsight.periods ORDER BY period")
    completed = await connection.fetchval("SELECT count(*) FROM trainings WHERE step = 'done'")
    await connection.close()
    over = [row for row in finished if row["state"] == "done"]
    assert len(over) >= 3
    assert completed == len(over), "a period was trained twice, or not at all"
    assert any(row["attempts"] == 2 for row in over), "the killed host's period was not taken over"


async def _first_trainer(connection: asyncpg.Connection) -> int:
    """The scheduler that trains the first period, once its training has begun."""
    async with asyncio.timeout(120):
        while True:
            begun = await connection.fetchval("SELECT count(*) FROM trainings")
            if begun:
                return int(await connection.fetchval("SELECT pid FROM hindsight.periods ORDER BY period LIMIT 1"))
            await asyncio.sleep(0.1)


_SCHEDULER = """
import sys
from datetime import timedelta
from trainer.ledger import periods
from trainer.schedule import readiness
from trainer.cli import schedule_training
periods.LEASE = timedelta(seconds=3)
schedule_training.BEAT = periods.BEAT = timedelta(seconds=0.5)
async def ready(database, settings):
    return readiness.Readiness(True, "")
schedule_training.readiness_of = ready
sys.exit(schedule_training.main(sys.argv[1:]))
"""
"""The real command, with leases of three seconds instead of thirty and without the question for windows."""
