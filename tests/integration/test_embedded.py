"""The embedded Postgres: shared, stopped with its last user, and its data survives everything."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import asyncpg
import pytest

from data_bridge.database import open_database
from data_bridge.embedded import EmbeddedServer
from data_bridge.errors import DatabaseError

FAST = {"fsync": "off"}


async def query(url: str, sql: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(sql)
    finally:
        await connection.close()


def is_running(folder: Path) -> bool:
    pid_file = folder / "data" / "postmaster.pid"
    return pid_file.exists() and Path(f"/proc/{pid_file.read_text().split()[0]}").exists()


_USER = """
import asyncio, sys, time, asyncpg
from pathlib import Path
from data_bridge.embedded import EmbeddedServer
server = EmbeddedServer(Path(sys.argv[1]), options={"fsync": "off"})
server.start()
async def main():
    connection = await asyncpg.connect(server.url())
    async with connection.transaction():  # two that create it at once would both find that it does not exist
        await connection.execute("SELECT pg_advisory_xact_lock(1)")
        await connection.execute("CREATE TABLE IF NOT EXISTS visits (pid int)")
    await connection.execute("INSERT INTO visits VALUES (pg_backend_pid())")
    await connection.close()
asyncio.run(main())
print("ready", flush=True)
sys.stdin.readline()
print(server.stop(), flush=True)
"""


def start_user(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _USER, str(folder)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ready(user: subprocess.Popen[str]) -> None:
    assert user.stdout is not None
    assert user.stdout.readline() == "ready\n"


def test_processes_share_one_server_that_stops_with_the_last_and_keeps_the_data(server_folder: Path) -> None:
    users = [start_user(server_folder) for _ in range(3)]  # at once: one creates the cluster, the others wait
    for user in users:
        ready(user)
    stopped = [user.communicate("\n")[0].strip() for user in users]
    assert stopped == ["False", "False", "True"]
    assert not is_running(server_folder)
    with EmbeddedServer(server_folder, options=FAST) as server:
        assert asyncio.run(query(server.url(), "SELECT count(*) FROM visits")) == 3


def test_a_killed_user_takes_nothing_down_and_is_not_counted(server_folder: Path) -> None:
    killed, living = start_user(server_folder), start_user(server_folder)
    ready(killed)
    ready(living)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    with EmbeddedServer(server_folder, options=FAST) as server:
        assert asyncio.run(query(server.url(), "SELECT count(*) FROM visits")) == 2
    assert is_running(server_folder)
    assert living.communicate("\n")[0].strip() == "True"
    assert not is_running(server_folder)


def test_a_server_whose_only_user_was_killed_stops(server_folder: Path) -> None:
    user = start_user(server_folder)
    ready(user)
    user.send_signal(signal.SIGKILL)
    user.wait()
    deadline = time.monotonic() + 90
    while is_running(server_folder):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with EmbeddedServer(server_folder, options=FAST) as server:
        assert asyncio.run(query(server.url(), "SELECT count(*) FROM visits")) == 1


def test_a_killed_server_comes_back_with_its_data(server_folder: Path) -> None:
    with EmbeddedServer(server_folder, options=FAST) as server:
        asyncio.run(query(server.url(), "CREATE TABLE kept AS SELECT 42 AS answer"))
        postmaster = int((server_folder / "data" / "postmaster.pid").read_text().split()[0])
        os.kill(postmaster, signal.SIGKILL)
        again = EmbeddedServer(server_folder, options=FAST)
        again.start()
        assert asyncio.run(query(again.url(), "SELECT answer FROM kept")) == 42
        again.stop()


@pytest.mark.parametrize("name", ["very-long-folder-name-" * 5, "it's Ada's, with spaces é"])
def test_a_path_that_suits_no_socket_works(server_folder: Path, name: str) -> None:
    folder = server_folder / name
    with EmbeddedServer(folder, options=FAST) as server:
        assert asyncio.run(query(server.url(), "SELECT 1")) == 1
        assert str(folder) not in server.url()
        socket_folder = Path(server.url().partition("?host=")[2])
        assert socket_folder.stat().st_mode & 0o077 == 0
    assert not socket_folder.exists()


def test_a_cluster_that_was_never_finished_is_made_anew(server_folder: Path) -> None:
    (server_folder / "data.new" / "base").mkdir(parents=True)
    (server_folder / "data.new" / "PG_VERSION").write_text("18")
    with EmbeddedServer(server_folder, options=FAST) as server:
        assert asyncio.run(query(server.url(), "SELECT 1")) == 1


def test_data_of_an_unknown_version_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "PG_VERSION").write_text("9.6\n")
    with pytest.raises(DatabaseError, match=r"created by Postgres 9\.6"):
        EmbeddedServer(tmp_path).start()


def test_a_home_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DatabaseError, match="HINDSIGHT_HOME"):
        EmbeddedServer(tmp_path / "file" / "postgres").start()


def test_a_home_of_somebody_else_is_named(tmp_path: Path) -> None:
    (tmp_path / "start.lock").mkdir()  # stands for a lock that we may not open: root may open any file
    with pytest.raises(DatabaseError, match=rf"cannot use {tmp_path} \(.+\): set HINDSIGHT_HOME"):
        EmbeddedServer(tmp_path).start()


async def test_without_a_url_the_embedded_server_is_used_and_migrated(server_folder: Path) -> None:
    async with open_database(None, server_folder) as database:
        assert database.is_embedded
        assert await database.pool.fetchval("SELECT count(*) FROM trajectories") == 0
        assert str(server_folder) in database.label
        assert is_running(server_folder / "postgres")
    assert not is_running(server_folder / "postgres")
