"""Every stage of a run, gone for good in turn: exit 4, a sentence that names what the run waits for, and a resume.

The waits are short by ``--gone-after``. That its default ends a run within a minute is computed from the parts of each
wait, and measured by ``benchmarks/gone.py``. Ranks that die are in ``test_ranks.py``: a run goes on without them.
"""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from data_bridge.database import Database, open_database
from data_bridge.migrate import apply
from tests.builders import NOW, hours_before
from tests.builders_judge import API_KEY
from tests.fakes.judge_server import JudgeServer, Request, Response, honest
from tests.fakes.own_postgres import OwnPostgres
from tests.fakes.trainer_process import start
from tests.fakes.wandb_server import listening, silent_from, wandb_server
from tests.tiny_model import shared_tiny_model
from tests.trainer_command import ON_LOG, Command, insert_windows, trained
from trainer import probed
from trainer.config.sections import DatabaseSettings
from trainer.judge import client
from trainer.ledger import heartbeat
from trainer.train.backends.remote_job import Pace
from trainer.workers import elsewhere

WINDOWS = 6
BRIEFLY = ("--gone-after", "1s")
LESS_BRIEFLY = ("--gone-after", "5s")
"""For servers that a busy machine may answer for late."""
HELD = timedelta(hours=1).total_seconds()


@pytest.fixture
def own_postgres(server_folder: Path) -> Iterator[OwnPostgres]:
    own = OwnPostgres(server_folder)
    yield own
    own.stop()


@asynccontextmanager
async def _log(url: str, home: Path) -> AsyncIterator[Database]:
    async with open_database(url, home) as database:
        await apply(database.pool)
        await insert_windows(database, WINDOWS)
        yield database


class Remote(Command):
    """train_mmo with a training server."""

    def start(self, *flags: str, ignoring: Sequence[int] = ()) -> ForkServerProcess:
        self.output.write_text("")
        where = ("--home", str(self.home), "--base-model", str(self.base_model), "--backend", "serverless")
        return start([*where, "--no-promote", *ON_LOG, *flags], self.environment, self.output, ignoring=ignoring)


class Judging(Command):
    """judge_windows, which has no run."""

    def start(self, *flags: str, ignoring: Sequence[int] = ()) -> ForkServerProcess:
        self.output.write_text("")
        argv = ["--home", str(self.home), "--until", NOW.isoformat(), *flags]
        return start(argv, self.environment, self.output, command="judge_windows", ignoring=ignoring)


def _training(
    url: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, kind: type[Command] = Command
) -> Command:
    command = kind(url, tmp_path / "home", shared_tiny_model(tmp_path_factory))
    command.environment |= {"JUDGE_API_KEY": API_KEY, "JUDGE_PRICE": "1/10", "WANDB_API_KEY": "test-key-of-wandb"}
    return command


def _judged_by(server: JudgeServer) -> tuple[str, ...]:
    asked = ("--judge-model", "judge", "--judge-base-url", server.base_url, "--judge-concurrency", "2")
    return (*asked, "--judge-order-rule", "all")


async def _until(happened: Callable[[], bool], process: ForkServerProcess) -> None:
    while not happened():
        assert process.is_alive(), "it ended before what it was to meet"
        await asyncio.sleep(0.02)


async def _done_once(database: Database) -> None:
    """The one run is done, every trajectory was trained once, and no verdict is missing."""
    assert [row["state"] for row in await database.pool.fetch("SELECT state FROM hindsight.runs")] == ["done"]
    assert list((await trained(database)).values()) == [1] * (3 * WINDOWS)


async def _verdicts(database: Database) -> int:
    return int(await database.pool.fetchval("SELECT count(*) FROM hindsight.verdicts"))


async def test_a_judge_whose_endpoint_is_gone_ends_the_run_and_loses_no_group(
    database_url: str, database: Database, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    await insert_windows(database, WINDOWS)
    training = _training(database_url, tmp_path, tmp_path_factory)
    with JudgeServer() as server:
        server.otherwise = _stalls_after(server, answers=5)
        process = training.start(*ON_LOG, *_judged_by(server), *BRIEFLY)
        await _until(lambda: len(server.requests) > 5, process)
    code, said = await training.ended(process)
    assert code == 4, said
    assert re.search(r"The judge is gone: group \S+ of window (\S+) waits for it", said)
    assert await _verdicts(database) == 5, "as many as were answered"

    with JudgeServer() as server:  # this one takes calls, and at some point answers nothing any more
        server.otherwise = _stalls_after(server, answers=2)
        process = training.start(*ON_LOG, *_judged_by(server), *BRIEFLY)
        await _until(lambda: len(server.requests) > 2, process)
        server.was_probed.clear()  # an answer to a probe while a call is held: from then on its silence tells
        await _until(server.was_probed.is_set, process)
        server.is_silent.set()
        code, said = await training.ended(process)
    assert code == 4, said
    assert re.search(r"The judge is gone: group \S+ of window \S+ waits .* nor a probe was answered for 1 s", said), (
        said
    )
    stored = await _verdicts(database)
    assert stored == 7

    with JudgeServer() as server:
        code, said = await training.run(*ON_LOG, *_judged_by(server))
        assert code == 0, said
        assert len(server.requests) == 2 * WINDOWS - stored, "what was paid for is not asked again"
    await _done_once(database)


async def test_an_endpoint_that_is_away_for_less_is_waited_for(
    database_url: str, database: Database, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """As when a model server is started again: with one attempt a call, no group may fail on it."""
    await insert_windows(database, WINDOWS)
    training = _training(database_url, tmp_path, tmp_path_factory)
    away = socket.socket()  # bound, so that the port is nobody else's, and not listening, so that it refuses
    away.bind(("127.0.0.1", 0))
    server = JudgeServer(at=away)
    process = training.start(*ON_LOG, *_judged_by(server), "--judge-attempts", "1")
    while not await database.pool.fetchval("SELECT count(*) FROM hindsight.judge_calls WHERE result = 'failed'"):
        assert process.is_alive()
        await asyncio.sleep(0.02)
    with server:
        code, said = await training.ended(process)
        assert code == 0, said
        assert len(server.requests) == 2 * WINDOWS
    await _done_once(database)


def _stalls_after(server: JudgeServer, *, answers: int) -> Callable[[Request], Response]:
    """An honest judge that answers so many requests, and no other one ever."""

    def behave(request: Request) -> Response:
        return honest(delay=0.0 if len(server.requests) <= answers else HELD)(request)

    return behave


async def test_postgres_killed_while_groups_are_judged(
    own_postgres: OwnPostgres, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The next verdict cannot be stored, which ends the run at once."""
    async with _log(own_postgres.url, tmp_path):
        pass
    training = _training(own_postgres.url, tmp_path, tmp_path_factory)
    with JudgeServer() as server:
        server.otherwise = _strikes(own_postgres.kill, server, answers=5)
        code, said = await training.run(*ON_LOG, *_judged_by(server), *BRIEFLY)
    assert code == 4, said
    window = re.search(r"error: .* stopped while judging window (\S+): The database \S+ is gone .* same command", said)
    assert window is not None, said
    assert window[1] in hours_before(number=WINDOWS)

    own_postgres.bring_back()
    training.environment["DATABASE_URL"] = own_postgres.url
    async with open_database(own_postgres.url, tmp_path) as database:
        stored = await _verdicts(database)
        with JudgeServer() as server:
            code, said = await training.run(*ON_LOG, *_judged_by(server))
            assert code == 0, said
            assert len(server.requests) == 2 * WINDOWS - stored
        await _done_once(database)


async def test_postgres_silent_and_then_killed_while_windows_are_judged_without_a_run(
    own_postgres: OwnPostgres, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    async with _log(own_postgres.url, tmp_path):
        pass
    judging = _training(own_postgres.url, tmp_path, tmp_path_factory, Judging)
    for strike, says in ((own_postgres.fall_silent, "has not answered for 1 s"), (own_postgres.kill, "is gone")):
        with JudgeServer() as server:
            server.otherwise = _strikes(strike, server, answers=2)
            code, said = await judging.run(*_judged_by(server), *BRIEFLY)
        own_postgres.speak_again() if strike == own_postgres.fall_silent else own_postgres.bring_back()
        assert code == 4, said
        named = re.search(r"error: judge_windows.py stopped while judging window (\S+): The database \S+ (.*)", said)
        assert named is not None, said
        assert named[1] in hours_before(number=WINDOWS)
        assert named[2].startswith(says)

    judging.environment["DATABASE_URL"] = own_postgres.url
    async with open_database(own_postgres.url, tmp_path) as database:
        stored = await _verdicts(database)
        await database.pool.execute("UPDATE hindsight.verdict_claims SET expires_at = now()")  # as half a minute later
        with JudgeServer() as server:
            code, said = await judging.run(*_judged_by(server))
            assert code == 0, said
            assert len(server.requests) == 2 * WINDOWS - stored


def _strikes(strike: Callable[[], None], server: JudgeServer, *, answers: int) -> Callable[[Request], Response]:
    """An honest judge; at the request after so many ``answers`` something happens, once."""
    struck = threading.Lock()

    def behave(request: Request) -> Response:
        if len(server.requests) > answers and struck.acquire(blocking=False):
            strike()
        return honest()(request)

    return behave


async def test_postgres_killed_while_a_remote_job_is_followed(
    own_postgres: OwnPostgres, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Nothing is asked of it but heartbeats, and they notice."""
    async with _log(own_postgres.url, tmp_path):
        pass
    training = _training(own_postgres.url, tmp_path, tmp_path_factory, Remote)
    with wandb_server(training_seconds=HELD) as server:
        process = training.start("--wandb-base-url", server.url, "--distil", "off", *LESS_BRIEFLY)
        await _until(lambda: server.count("GET", "events") > 2, process)
        own_postgres.kill()
        code, said = await training.ended(process)
        assert code == 4, said
        assert re.search(r"stopped while training batch 1: The database \S+ has not answered for 5 s", said), said

        own_postgres.bring_back()
        training.environment["DATABASE_URL"] = own_postgres.url
        server.training_seconds, server.jobs[0].ends_at = 0.0, 0.0
        code, said = await training.run("--wandb-base-url", server.url)
        assert code == 0, said
        assert set(server.jobs_per_batch().values()) == {1}, "no batch was sent twice"
    async with open_database(own_postgres.url, tmp_path) as database:
        await _done_once(database)


async def test_a_training_server_that_is_silent_or_gone_ends_the_run_and_its_jobs_are_taken_up(
    database_url: str, database: Database, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Silent since it took the first batch; gone while the second is trained."""
    await insert_windows(database, WINDOWS)
    training = _training(database_url, tmp_path, tmp_path_factory, Remote)
    with wandb_server() as server:
        server.holds = silent_from(lambda route, body: route == "jobs")
        code, said = await training.run("--wandb-base-url", server.url, *LESS_BRIEFLY)
    assert code == 4, said
    assert re.search(r"W&B does not answer about the submission for batch \S+ \(no answer in time\)", said), said

    server.holds, server.training_seconds = lambda route, body: False, HELD
    with listening(server):
        process = training.start("--wandb-base-url", server.url, *LESS_BRIEFLY)
        await _until(lambda: bool(server.count("GET", "events")), process)
    code, said = await training.ended(process)
    assert code == 4, said
    assert re.search(r"W&B does not answer about training job job-2 for batch \S+", said), said

    server.training_seconds, server.jobs[1].ends_at = 0.0, 0.0
    with listening(server):
        code, said = await training.run("--wandb-base-url", server.url)
        assert code == 0, said
    assert set(server.jobs_per_batch().values()) == {1}
    await _done_once(database)


PLAYING = (
    "--simulate",
    "on",
    "--iterations",
    "1",
    "--windows-per-iteration",
    "2",
    "--agents",
    "4",
    "--explore",
    "answers",
)
EVALUATING = ("--eval-windows", "2", "--eval-samples", "2", "--eval-questions", "0")


async def test_the_agents_model_gone_while_a_day_is_played_and_silent_while_it_is_evaluated(
    database_url: str, database: Database, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A reply that takes longer than --gone-after is waited for as long as the server answers probes."""
    training = _training(database_url, tmp_path, tmp_path_factory, Remote)
    asked = ("--gone-after", "2s", *PLAYING, *EVALUATING)
    with wandb_server() as server:
        server.holds = lambda route, body: route == "chat"
        process = training.start("--wandb-base-url", server.url, *asked)
        await _until(lambda: server.count("GET", "unknown") > 1, process)
    code, said = await training.ended(process)
    assert code == 4, said
    assert re.search(r"stopped while playing day 1 of 1: The model wandb-\S+:step0 at \S+ has not answered", said), said

    server.holds = silent_from(lambda route, body: route == "chat" and body["n"] > 1)
    with listening(server):
        process = training.start("--wandb-base-url", server.url, *asked)
        code, said = await training.ended(process)
    assert code == 4, said
    assert re.search(r"stopped while evaluating hindsight@step1: The model wandb-\S+:step1 at \S+ has not", said), said

    server.holds = lambda route, body: False
    with listening(server):
        code, said = await training.run("--wandb-base-url", server.url, *asked)
        assert code == 0, said
    assert set(server.jobs_per_batch().values()) == {1}
    assert set((await trained(database)).values()) == {1}
    played = 'SELECT "windowId", count(*) AS rows FROM trajectories GROUP BY 1'
    assert [row["rows"] for row in await database.pool.fetch(played)] == [4] * (2 + 2), "no hour was played twice"


async def test_workers_that_can_never_be_placed_end_a_training(
    database_url: str, database: Database, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    await insert_windows(database, WINDOWS)
    training = _training(database_url, tmp_path, tmp_path_factory)
    nowhere = ("--workers", "1", "--ray-address", "127.0.0.1:1")
    code, said = await training.run(*ON_LOG, *BRIEFLY, *nowhere)
    assert code == 4, said
    waited = re.search(r"Judging waits for window (\S+), and no worker was heard of for 1 s", said)
    assert waited is not None, said
    assert waited[1] in hours_before(number=WINDOWS)

    code, said = await training.run(*ON_LOG)
    assert code == 0, said
    await _done_once(database)


def test_by_default_every_stage_is_given_up_within_a_minute() -> None:
    gone_after = DatabaseSettings().gone_after
    beats = 2 * heartbeat.BEAT + heartbeat.BEAT_TIMEOUT
    connecting = timedelta(seconds=2 * client.CONNECT_TIMEOUT)
    last_word = timedelta(seconds=Pace().brief.gone_after)
    ending_ray = timedelta(seconds=elsewhere.ENDING)
    last_probe = timedelta(seconds=probed.LAST_WORD)
    for beside in (beats, connecting, last_word, ending_ray, last_probe):
        assert gone_after + beside < timedelta(minutes=1)
    assert Pace().gone_after == gone_after.total_seconds()
