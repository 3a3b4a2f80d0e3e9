"""A real Postgres for every test that wants one: one server a test run, one fresh database a test."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import os
import shutil
import signal
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import pytest

from data_bridge.database import Database, open_database
from data_bridge.embedded import EmbeddedServer
from data_bridge.migrate import apply, load_migrations

T = TypeVar("T")

_IN_MEMORY = Path("/dev/shm")
_ROOM = 2 * 2**30
_UNSAFE_BUT_FAST = {"fsync": "off", "full_page_writes": "off", "max_connections": "200"}


# Before anything imports torch or the hub's client. Workers share the cores: two of them with two threads each wait for
# each other. And no test asks the hub, whose client tries again for 40 s where there is no network.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def pytest_configure() -> None:
    """A suite started with ``&`` ignores SIGINT, with nohup SIGHUP; so would each process that a test sends it to."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """No garbage is looked for in what the tests import, torch and art above all: a look there takes 0.8 s of CPU."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables of the developer's shell must not decide a test."""
    for variable in list(os.environ):
        if variable.startswith(("HINDSIGHT_", "JUDGE_", "WANDB_", "PG")) or variable in (
            "DATABASE_URL",
            "OPENAI_API_KEY",
        ):
            monkeypatch.delenv(variable)


def in_own_loop(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run async ``work`` from a fixture that is not async, without touching the test's own event loop."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(work())).result()


def folder_for_servers() -> Path:
    """In memory where there is room: a copied database is 300 files, which take a disk's file system 0.2 s of CPU."""
    has_room = _IN_MEMORY.is_dir() and os.access(_IN_MEMORY, os.W_OK) and shutil.disk_usage(_IN_MEMORY).free > _ROOM
    return _IN_MEMORY if has_room else Path(tempfile.gettempdir())


@pytest.fixture(scope="session")
def postgres() -> Iterator[EmbeddedServer]:
    """The server of this test run, shared by the workers of pytest-xdist."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or str(os.getpid())
    home = folder_for_servers() / f"hindsight-tests-{run}"
    server = EmbeddedServer(home, options=_UNSAFE_BUT_FAST)
    server.start()
    yield server
    if server.stop():
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def server_folder() -> Iterator[Path]:
    """A folder for a server of the test's own, which its user may enter: pytest closes its own folders to others."""
    folder = Path(tempfile.mkdtemp(prefix="hindsight-test-", dir=folder_for_servers()))
    yield folder
    server = EmbeddedServer(folder)
    if (folder / "data").exists():
        server.start()
        server.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def template_database(postgres: EmbeddedServer) -> str:
    """Name of a migrated database to copy from; made by the first worker that comes."""
    digest = hashlib.blake2b("".join(m.checksum for m in load_migrations()).encode(), digest_size=6).hexdigest()
    name = f"template_{digest}"

    async def make() -> None:
        admin = await asyncpg.connect(postgres.url())
        try:
            await admin.execute("SELECT pg_advisory_lock(1)")
            if not await admin.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", name):
                await admin.execute(f"CREATE DATABASE {name}_new")
                connection = await asyncpg.connect(postgres.url(f"{name}_new"))
                await apply(connection)
                await connection.close()
                await admin.execute(f"ALTER DATABASE {name}_new RENAME TO {name}")
        finally:
            await admin.close()

    in_own_loop(make)
    return name


@contextmanager
def databases_on(postgres: EmbeddedServer) -> Iterator[Callable[..., str]]:
    """Makes databases, which are dropped at the end."""
    names: list[str] = []

    async def on_server(*statements: str) -> None:
        admin = await asyncpg.connect(postgres.url())
        for statement in statements:
            await admin.execute(statement)
        await admin.close()

    def make(template: str = "template0") -> str:
        name = f"test_{uuid.uuid4().hex}"
        in_own_loop(lambda: on_server(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY"))  # no WAL
        names.append(name)
        return postgres.url(name)

    yield make
    if names:
        in_own_loop(lambda: on_server(*(f"DROP DATABASE {name} WITH (FORCE)" for name in names)))


@pytest.fixture
def make_database(postgres: EmbeddedServer) -> Iterator[Callable[..., str]]:
    """``make_database()`` gives the URL of a new empty database; ``make_database(template)`` of a copy."""
    with databases_on(postgres) as make:
        yield make


@pytest.fixture(scope="module")
def shared_database_url(postgres: EmbeddedServer, template_database: str) -> Iterator[str]:
    """The URL of a migrated database for all tests of a file that change nothing others look at."""
    with databases_on(postgres) as make:
        yield make(template_database)


@pytest.fixture
def database_url(make_database: Callable[..., str], template_database: str) -> str:
    """The URL of a fresh, migrated database."""
    return make_database(template_database)


@pytest.fixture
async def database(database_url: str, tmp_path: Path) -> AsyncIterator[Database]:
    """A fresh, migrated database, open."""
    async with open_database(database_url, tmp_path) as opened:
        yield opened


@pytest.fixture
def locked_url(database_url: str, postgres: EmbeddedServer) -> Iterator[str]:
    """The database through a role that must give a password, under a name of its own: roles are the whole server's."""
    role = f"locked_{uuid.uuid4().hex[:8]}"
    rules = postgres.folder / "data" / "pg_hba.conf"
    if "/^locked_" not in rules.read_text():
        rules.write_text(f"local all /^locked_ scram-sha-256\n{rules.read_text()}")

    async def on_server(sql: str) -> None:
        connection = await asyncpg.connect(postgres.url())
        await connection.execute(sql)
        await connection.close()

    in_own_loop(lambda: on_server(f"CREATE ROLE {role} LOGIN PASSWORD 'right-password'; SELECT pg_reload_conf()"))
    yield database_url.replace("postgres@", f"{role}:PASSWORD@")
    in_own_loop(lambda: on_server(f"DROP ROLE {role}"))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say so in the last lines if nobody looked at the report in a browser."""
    left_out = [report for report in terminalreporter.stats.get("skipped", []) if "browser" in report.keywords]
    if left_out:
        why = ", ".join(sorted({report.longrepr[2].removeprefix("Skipped: ") for report in left_out}))
        terminalreporter.write_line(
            f"The browser tests were left out ({len(left_out)}: {why}); `apt-get install chromium` brings one.",
            yellow=True,
        )
