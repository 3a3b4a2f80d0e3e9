"""Opening the database: what works, and the sentence for what does not."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from data_bridge.database import Database, open_database
from data_bridge.embedded import EmbeddedServer
from data_bridge.errors import DatabaseError
from data_bridge.models import Action, StockOutcome, WindowOutcomes
from data_bridge.outcomes import record_outcomes
from data_bridge.recorder import Recorder
from data_bridge.traces import export_traces
from tests.builders import insert_trajectory
from trainer.ledger.turns import one_at_a_time

ROOT = Path(__file__).parents[2]


@pytest.fixture
def without_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data_bridge.database._FIRST_CONNECT_PAUSES", (0.05,))


async def test_a_fresh_database_has_the_games_tables_and_ours(database: Database) -> None:
    tables = await database.pool.fetch(
        "SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema IN ('public', 'hindsight')"
    )
    names = {f"{row['table_schema']}.{row['table_name']}" for row in tables}
    game = {"trajectories", "market_outcomes", "llm_call_logs", "training_batches", "trained_models"}
    assert {f"public.{name}" for name in game | {"reward_judgments", "User"}} <= names
    assert "hindsight.migrations" in names


async def test_prismas_parameters_do_not_reach_the_server(database_url: str, tmp_path: Path) -> None:
    url = f"{database_url}&schema=public&connection_limit=2&pool_timeout=5&socket_timeout=3&sslmode=prefer"
    async with open_database(url, tmp_path) as database:
        assert await database.pool.fetchval("SELECT 1") == 1
        assert database.pool.get_max_size() == 2
        assert not database.is_pooled


async def test_another_schema_than_public_is_searched(database_url: str, tmp_path: Path) -> None:
    async with open_database(f"{database_url}&schema=Arena", tmp_path) as database:
        await database.pool.execute('CREATE SCHEMA "Arena"; CREATE TABLE here (a int)')
        assert await database.pool.fetchval("SELECT schemaname FROM pg_tables WHERE tablename = 'here'") == "Arena"


async def test_a_statement_cannot_take_longer_than_the_timeout(database_url: str, tmp_path: Path) -> None:
    async def sleep() -> None:
        async with open_database(database_url, tmp_path, statement_timeout=timedelta(seconds=0.3)) as database:
            await database.pool.execute("SELECT pg_sleep(200)")

    started = time.monotonic()
    with pytest.raises(DatabaseError, match="took too long"):
        await sleep()
    assert time.monotonic() - started < 60


async def test_only_a_timeout_of_the_database_is_told_as_one(database_url: str, tmp_path: Path) -> None:
    async def wait(for_the_database: bool) -> None:
        behind_a_pooler = f"{database_url}&pgbouncer=true"  # where the timeout is ours, not the server's
        quick = timedelta(seconds=0.3)
        async with open_database(behind_a_pooler, tmp_path, statement_timeout=quick) as database:
            if for_the_database:
                await database.pool.execute("SELECT pg_sleep(20)")
            await asyncio.wait_for(asyncio.sleep(20), 0.1)

    with pytest.raises(DatabaseError, match=r"did not answer in time: .* or raise --statement-timeout"):
        await wait(for_the_database=True)
    with pytest.raises(TimeoutError) as of_another:
        await wait(for_the_database=False)
    assert not isinstance(of_another.value, DatabaseError)


async def test_a_missing_table_is_one_sentence(make_database: Callable[..., str], tmp_path: Path) -> None:
    async def read() -> None:
        async with open_database(make_database(), tmp_path) as database:
            await database.pool.fetch("SELECT * FROM trajectories")

    with pytest.raises(DatabaseError, match=r"trajectories.*is it the game's\?"):
        await read()


@pytest.mark.usefixtures("without_patience")
@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("postgresql://user:topsecret@127.0.0.1:9/game", "cannot be reached"),
        ("postgresql://user:topsecret@no-such-host.invalid/game", "host .* is unknown"),
    ],
)
async def test_what_cannot_be_reached_is_one_sentence(url: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(DatabaseError, match=sentence) as raised:
        async with open_database(url, tmp_path):
            pass
    assert "topsecret" not in str(raised.value)


async def test_a_missing_database_is_one_sentence(postgres: EmbeddedServer, tmp_path: Path) -> None:
    with pytest.raises(DatabaseError, match="no such database") as raised:
        async with open_database(postgres.url("no_such"), tmp_path):
            pass
    assert "no_such" in str(raised.value)


def test_a_wrong_password_is_told_at_once_in_one_sentence_without_it(locked_url: str, tmp_path: Path) -> None:
    url = locked_url.replace("PASSWORD", "wr0ng-password")
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "run_migrations.py"), "--status"],
        env={"DATABASE_URL": url, "PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "refused the login" in done.stderr
    assert "wr0ng-password" not in done.stderr


async def test_a_wrong_password_is_not_tried_again(
    locked_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("data_bridge.database._FIRST_CONNECT_PAUSES", (600.0,))
    async with asyncio.timeout(60):
        with pytest.raises(DatabaseError, match="refused the login"):
            async with open_database(locked_url.replace("PASSWORD", "wr0ng-password"), tmp_path):
                pass


async def test_the_right_password_opens(locked_url: str, tmp_path: Path) -> None:
    async with open_database(locked_url.replace("PASSWORD", "right-password"), tmp_path) as database:
        assert await database.pool.fetchval("SELECT current_user LIKE 'locked_%'")


async def test_a_role_that_may_only_read_can_read(database: Database, database_url: str, tmp_path: Path) -> None:
    await insert_trajectory(database.pool)
    role = f"reader_{uuid.uuid4().hex[:8]}"
    await database.pool.execute(
        f"CREATE ROLE {role} LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role};"
        f"GRANT USAGE ON SCHEMA hindsight TO {role}; GRANT SELECT ON ALL TABLES IN SCHEMA hindsight TO {role}"
    )
    try:
        url = database_url.replace("postgres@", f"{role}@")
        async with open_database(url, tmp_path, migrate=True) as reading:  # up to date: nothing to write
            assert await reading.pool.fetchval("SELECT count(*) FROM trajectories") == 1

        async def write() -> None:
            async with open_database(url, tmp_path) as writing:
                await writing.pool.execute("DELETE FROM trajectories")

        with pytest.raises(DatabaseError, match="lacks a privilege"):
            await write()
    finally:
        await database.pool.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


# A pooler in transaction mode


@pytest.fixture
def pooler(postgres: EmbeddedServer, database_url: str) -> Iterator[Callable[[str], str]]:
    """``pooler(configuration)`` starts a real PgBouncer in front of the database and gives its URL."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        pytest.skip("pgbouncer is not installed")
    folder = Path(tempfile.mkdtemp(prefix="hindsight-pooler-"))
    folder.chmod(0o755)
    running: list[subprocess.Popen[bytes]] = []
    name = database_url.split("@/")[1].split("?")[0]

    def start(configuration: str = "") -> str:
        port = free_port()
        (folder / "users.txt").write_text('"postgres" ""\n')
        (folder / "pgbouncer.ini").write_text(
            f"[databases]\n{name} = host={postgres.folder / 'data'} user=postgres pool_size=2\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            f"auth_type = any\npool_mode = transaction\n{configuration}\n"
        )
        owner = (postgres.folder / "data").stat()
        identity: dict[str, Any] = {}
        if os.geteuid() == 0:  # neither Postgres nor pgbouncer runs as root
            identity = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []}
            postgres.folder.chmod(0o711)  # the way to Postgres' socket, which is its user's alone
        running.append(
            subprocess.Popen(
                [program, "-q", str(folder / "pgbouncer.ini")],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                **identity,
            )
        )
        wait_for_port(port)
        return f"postgresql://postgres@127.0.0.1:{port}/{quote(name)}"

    yield start
    for process in running:
        process.send_signal(signal.SIGINT)
        process.wait()
    shutil.rmtree(folder)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_for_port(port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise AssertionError("pgbouncer did not start")


@pytest.mark.parametrize(
    ("configuration", "parameters"),
    [
        ("", "?pgbouncer=true"),
        ("", ""),  # not told: it refuses our session settings
        ("ignore_startup_parameters = statement_timeout", ""),  # not told: it ignores them
    ],
)
async def test_everything_works_through_a_pooler_in_transaction_mode(
    pooler: Callable[[str], str], configuration: str, parameters: str, tmp_path: Path
) -> None:
    url = pooler(configuration) + parameters
    async with open_database(url, tmp_path, migrate=True) as database:
        assert database.is_pooled

        async def use(number: int) -> int:
            total = 0
            for _ in range(20):
                total += await database.pool.fetchval("SELECT $1::int + $2::int", number, 1)
            return total

        assert await asyncio.gather(*(use(number) for number in range(8))) == [20 * (n + 1) for n in range(8)]
        await record_outcomes(database, "2026-03-02T10:00", WindowOutcomes(stocks=(StockOutcome("ACME", 1.0, 2.0),)))
        async with Recorder(database, tmp_path / "spool") as recorder:
            for number in range(5):
                trajectory = recorder.start_trajectory(f"agent-{number}")
                trajectory.step({}).complete_step(Action(action_type="BUY", success=True))
                await trajectory.end_trajectory()
        assert await database.pool.fetchval("SELECT count(*) FROM trajectories") == 5
        now = datetime.now(UTC)
        first, end = now - timedelta(days=1), now + timedelta(hours=1)
        assert (await export_traces(database, tmp_path / "t.jsonl", first=first, end=end)).trajectories == 5


async def test_a_turn_is_given_back_through_a_pooler(pooler: Callable[[str], str], tmp_path: Path) -> None:
    async with open_database(pooler("") + "?pgbouncer=true", tmp_path) as database:
        async with one_at_a_time(database, "task") as first, one_at_a_time(database, "task") as second:
            assert (first, second) == (True, False)
        async with database.pool.acquire() as one, one.transaction():  # each has one of the pooler's two connections
            await one.execute("SELECT 1")
            async with one_at_a_time(database, "task") as again:
                assert again
        async with one_at_a_time(database, "task") as at_last:
            assert at_last


async def test_a_schema_cannot_be_switched_through_a_pooler(database_url: str, tmp_path: Path) -> None:
    with pytest.raises(DatabaseError, match="pooler cannot switch to the schema arena"):
        async with open_database(f"{database_url}&pgbouncer=true&schema=arena", tmp_path):
            pass


async def test_pooled_connections_prepare_nothing_and_set_nothing(database_url: str, tmp_path: Path) -> None:
    """Without a PgBouncer at hand: what would break behind one is not there."""
    async with open_database(f"{database_url}&pgbouncer=true", tmp_path, max_size=1) as database:
        await database.pool.fetch("SELECT $1::int", 1)
        async with database.pool.acquire() as connection:
            assert await connection.fetch("SELECT name FROM pg_prepared_statements WHERE name <> ''") == []
            changed = await connection.fetch(
                "SELECT name FROM pg_settings WHERE source = 'client' AND name ~ 'timeout|search'"
            )
            assert changed == []
