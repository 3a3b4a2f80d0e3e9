"""Disks that are really full, at each place that is written to: one sentence, the exit code, and nothing lost.

Each disk is a small tmpfs that is mounted over one folder of the home, so that only that place is full.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import asyncpg
import pytest

from data_bridge.database import Database
from data_bridge.embedded import EmbeddedServer
from data_bridge.errors import DiskFull
from data_bridge.migrate import apply
from tests.builders import NOW
from tests.builders_promotion import insert_checkpoint
from tests.tiny_model import shared_tiny_model
from tests.trainer_command import ON_LOG, Command, insert_windows, trained
from trainer.inference.base_model import EMBEDDED, model_directory
from trainer.ledger.checkpoints import find_checkpoint
from trainer.ledger.releases import read_pointer
from trainer.promote.publish import publish
from trainer.types import Serving

ROOT = Path(__file__).resolve().parents[2]
ALWAYS_FULL = Path("/dev/full")
SOON = 30.0
"""Seconds that a command may take to end once its disk is full."""

LOOP = (
    *("--iterations", "1", "--windows-per-iteration", "2", "--agents", "3", "--explore", "answers"),
    *("--held-out-share", "0", "--until", NOW.isoformat()),
)


class Disk:
    """A file system of its own at ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self) -> None:
        with self._ballast.open("ab", buffering=0) as file:
            for size in (2**20, 4096, 1):
                try:
                    while True:
                        file.write(b"\0" * size)
                except OSError:
                    continue

    def free(self) -> None:
        self._ballast.unlink()


@contextmanager
def mounted(path: Path, megabytes: int) -> Iterator[Disk]:
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a small disk")
    path.mkdir(parents=True)
    mounting = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=755", "tmpfs", str(path)]
    done = subprocess.run(mounting, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")
    try:
        yield Disk(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.fixture
def small_disk() -> Iterator[Callable[..., Disk]]:
    with ExitStack() as stack:
        yield lambda path, megabytes=4: stack.enter_context(mounted(path, megabytes))


@pytest.fixture
def home() -> Iterator[Path]:
    """Not under pytest's own folder, which is closed to the user of the embedded Postgres."""
    with tempfile.TemporaryDirectory(prefix="hindsight-full-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder) / "home"


@pytest.fixture
def on_log(database_url: str, home: Path, tmp_path_factory: pytest.TempPathFactory) -> Command:
    return Command(database_url, home, shared_tiny_model(tmp_path_factory))


@pytest.fixture
def in_loop(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Command:
    """The closed loop, with the embedded Postgres in its home."""
    return Command(None, home, shared_tiny_model(tmp_path_factory))


def sentence_in(output: str) -> str:
    """The one error, which is the last line."""
    assert "Traceback" not in output
    assert output.count("error: ") == 1, output
    last = output.splitlines()[-1]
    assert last.startswith("error: ")
    return last


async def test_checkpoints(database: Database, on_log: Command, home: Path, small_disk: Callable[..., Disk]) -> None:
    ids = await insert_windows(database, 3)
    disk = small_disk(home / "checkpoints")
    disk.fill()
    code, output = await on_log.run(*ON_LOG)
    assert code == 4, output
    assert f"disk of {home}/checkpoints/hindsight is full" in sentence_in(output)
    assert await trained(database) == {}
    disk.free()
    code, output = await on_log.run(*ON_LOG)
    assert code == 0, output
    assert await trained(database) == dict.fromkeys(ids, 1)


async def started_until_it_plays(command: Command) -> ForkServerProcess:
    """The closed loop, stopped in its first day so that its disk can be filled at one moment."""
    process = command.start(*LOOP)
    while process.is_alive() and "day 1: playing" not in command.output.read_text():
        await asyncio.sleep(0.01)
    assert process.pid is not None, command.output.read_text()
    os.kill(process.pid, signal.SIGSTOP)
    return process


async def ended_soon(command: Command, process: ForkServerProcess) -> tuple[int | None, str]:
    """How it ends when it goes on."""
    assert process.pid is not None
    os.kill(process.pid, signal.SIGCONT)
    since = time.monotonic()
    code, output = await command.ended(process)
    assert time.monotonic() - since < SOON, output
    return code, output


async def test_embedded_postgres(in_loop: Command, home: Path, small_disk: Callable[..., Disk]) -> None:
    disk = small_disk(home / "postgres", 120)
    process = await started_until_it_plays(in_loop)
    disk.fill()
    code, output = await ended_soon(in_loop, process)
    assert code == 4, output
    assert f"disk of {home}/postgres is full" in sentence_in(output)
    disk.free()
    code, output = await in_loop.run(*LOOP)
    assert code == 0, output


async def test_write_ahead_log(
    in_loop: Command, home: Path, small_disk: Callable[..., Disk], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The embedded Postgres ends itself when its log of writes has no room: all that we see is a lost connection."""
    server = EmbeddedServer(home / "postgres")
    original = server._call
    smallest = ("--wal-segsize=1",)  # so that it is soon used up
    monkeypatch.setattr(server, "_call", lambda *arguments, data=None: original(*arguments, *smallest, data=data))
    server.folder.mkdir(parents=True)
    server._create_cluster()
    data = server.folder / "data"
    (data / "pg_wal").rename(data / "log")
    disk = small_disk(data / "pg_wal", 40)
    shutil.copytree(data / "log", disk.path, dirs_exist_ok=True)
    for path in (disk.path, *disk.path.rglob("*")):
        shutil.chown(path, data.stat().st_uid, data.stat().st_gid)
    disk.path.chmod(0o700)
    process = await started_until_it_plays(in_loop)
    disk.fill()
    await write_until_it_ends(data)
    code, output = await ended_soon(in_loop, process)
    assert code == 4, output
    assert f"disk of {home}/postgres is full" in sentence_in(output)
    disk.free()
    code, output = await in_loop.run(*LOOP)
    assert code == 0, output


async def write_until_it_ends(data: Path) -> None:
    connection = await asyncpg.connect(f"postgresql://postgres@/postgres?host={data}")
    while not connection.is_closed():
        with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            await connection.execute("SELECT pg_switch_wal(), pg_logical_emit_message(true, 'test', 'a line')")


async def test_spool(in_loop: Command, home: Path, small_disk: Callable[..., Disk]) -> None:
    disk = small_disk(home / "spool")
    disk.fill()
    code, output = await in_loop.run(*LOOP)
    assert code == 4, output
    assert f"disk of {home}/spool is full" in sentence_in(output)
    disk.free()
    code, output = await in_loop.run(*LOOP)
    assert code == 0, output


async def test_table_of_the_agents_log(
    postgres: EmbeddedServer,
    make_database: Callable[..., str],
    home: Path,
    small_disk: Callable[..., Disk],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Only the recorder's table is full: it tried for ever, and the loop waited for it without a word."""
    url = make_database()
    disk = small_disk(home.parent / "tablespace", 8)
    owner = (postgres.folder / "data").stat()
    os.chown(disk.path, owner.st_uid, owner.st_gid)
    space = f"small_{uuid.uuid4().hex[:8]}"
    connection = await asyncpg.connect(url)
    await apply(connection)
    await connection.execute(f"CREATE TABLESPACE {space} LOCATION '{disk.path}'")
    await connection.execute(f"ALTER TABLE trajectories SET TABLESPACE {space}")
    disk.fill()
    command = Command(url, home, shared_tiny_model(tmp_path_factory))
    code, output = await ended_soon(command, command.start("--simulate", "on", *LOOP))
    assert code == 4, output
    assert "The disk of the database" in sentence_in(output)
    assert len(list((home / "spool").glob("*.spool"))) == 1, "what was recorded waits there"
    disk.free()
    code, output = await command.run("--simulate", "on", *LOOP)
    assert code == 0, output
    rows = await connection.fetch('SELECT "windowId", count(*) AS n FROM trajectories GROUP BY 1')
    assert [row["n"] for row in rows] == [3, 3]
    await connection.execute("ALTER TABLE trajectories SET TABLESPACE pg_default")
    await connection.execute(f"DROP TABLESPACE {space}")
    await connection.close()


async def test_run_folder_and_report(
    database: Database, on_log: Command, home: Path, small_disk: Callable[..., Disk]
) -> None:
    """What is only for people never ends a run: the ledger has it all, and report.py writes the page later."""
    ids = await insert_windows(database, 3)
    disk = small_disk(home / "runs")
    disk.fill()
    code, output = await on_log.run(*ON_LOG)
    assert code == 0, output
    assert output.count("cannot be written") == 2, output
    assert "No space left on device" in output
    assert "Report: " not in output
    assert await trained(database) == dict.fromkeys(ids, 1)


async def test_copy_of_the_promotion_that_serve_reads(
    database: Database, database_url: str, home: Path, small_disk: Callable[..., Disk]
) -> None:
    point = await insert_checkpoint(database, 1)
    disk = small_disk(home / "promoted")
    disk.fill()
    with pytest.raises(DiskFull, match=f"disk of {home}/promoted is full .* `promote.py --list`") as raised:
        await publish(database, home, point.as_release(), Serving("url", point.name), reason="better")
    assert raised.value.exit_code == 4
    assert [path.name for path in disk.path.iterdir()] == ["ballast"], "no half of a file"
    disk.free()
    done = await asyncio.to_thread(script, "promote.py", "--list", DATABASE_URL=database_url, HINDSIGHT_HOME=str(home))
    assert done.returncode == 0, done.stderr
    pointer = read_pointer(home, "hindsight")
    assert pointer is not None
    assert pointer.serving is not None
    assert pointer.serving.checkpoint == point


async def test_a_run_that_ended_between_promotion_and_copy_is_resumed_without_a_second_trial(
    database: Database, on_log: Command, home: Path, tmp_path: Path
) -> None:
    """The checkpoint was compared with itself, which is no gain, and the command ended with 5."""
    await insert_windows(database, 3)
    code, output = await on_log.run(*ON_LOG)
    assert code == 0, output
    point = await find_checkpoint(database, "hindsight", 2)
    await publish(database, tmp_path / "another home", point.as_release(), Serving("url", point.name), reason="better")
    await database.pool.execute("UPDATE hindsight.runs SET state = 'failed'")
    code, output = await on_log.run(*ON_LOG)
    assert code == 0, output
    assert "hindsight@step2 is promoted already" in output
    assert "evaluating" not in output
    pointer = read_pointer(home, "hindsight")
    assert pointer is not None
    assert pointer.serving is not None


def script(name: str, *flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts" / name), *flags],
        env={"PATH": os.environ["PATH"], **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


async def test_cache_of_the_converted_model(home: Path, small_disk: Callable[..., Disk]) -> None:
    disk = small_disk(home / "models")
    with pytest.raises(DiskFull, match=f"disk of {home}/models is full: the embedded model needs 700 MB") as raised:
        model_directory(EMBEDDED, home)
    assert raised.value.exit_code == 4
    assert [path.suffix for path in disk.path.iterdir()] == [".lock"]


@pytest.mark.skipif(not ALWAYS_FULL.exists(), reason="this system has no disk that is always full")
@pytest.mark.parametrize(("stream", "code"), [("stdout", 4), ("stderr", 0)])
def test_output_of_a_command(stream: str, code: int, database_url: str, tmp_path: Path) -> None:
    """A report that could not be printed is a fault; a log that could not be is none, and Python's 120 is no code."""
    with ALWAYS_FULL.open("wb") as full:
        done = subprocess.run(
            [sys.executable, str(ROOT / "scripts" / "promote.py"), "--list", "--json"],
            env={"PATH": os.environ["PATH"], "DATABASE_URL": database_url, "HINDSIGHT_HOME": str(tmp_path)},
            stdout=full if stream == "stdout" else subprocess.PIPE,
            stderr=full if stream == "stderr" else subprocess.PIPE,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == code
    if code:
        assert "The disk of the output is full (No space left on device)" in sentence_in(done.stderr)
