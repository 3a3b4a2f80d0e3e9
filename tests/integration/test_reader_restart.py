"""Postgres goes away in the middle of a stream."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from data_bridge.database import open_database
from data_bridge.embedded import EmbeddedServer
from data_bridge.errors import DatabaseLost
from data_bridge.migrate import apply
from data_bridge.quality import Rules
from data_bridge.reader import WindowReader
from tests.builders import NOW, hours_before, insert_window

RULES = Rules(now=NOW)
FAST = {"fsync": "off", "full_page_writes": "off"}


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    """A server of this test's own, to be killed."""
    folder = Path(tempfile.mkdtemp(prefix="hindsight-restart-"))
    own = EmbeddedServer(folder / "postgres", options=FAST)
    own.start()
    yield own
    own.stop()
    shutil.rmtree(folder, ignore_errors=True)


def kill(server: EmbeddedServer) -> None:
    """Postgres' immediate shutdown: every connection breaks, nothing is cleaned up."""
    os.kill(int((server.folder / "data" / "postmaster.pid").read_text().split()[0]), signal.SIGQUIT)


async def restart(server: EmbeddedServer, *, after: float) -> None:
    await asyncio.sleep(after)
    again = EmbeddedServer(server.folder, options=FAST)
    await asyncio.to_thread(again.start)
    again.stop()  # only lets go of it: ``server`` still holds it


async def test_the_same_windows_arrive_once_when_postgres_is_killed_and_restarted(
    server: EmbeddedServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ids = hours_before(number=140)  # three times as many as are fetched at once
    async with open_database(server.url(), tmp_path) as database:
        await apply(database.pool)
        for window_id in ids:
            await insert_window(database.pool, window_id)
        reader = WindowReader(database, RULES)
        refs = await reader.discover()
        arrived = []
        coming_back: list[asyncio.Task[None]] = []
        async for window in reader.stream(refs):
            arrived.append((window.window_id, len(window.trajectories), bool(window.outcomes)))
            if len(arrived) in (2, 70):
                await asyncio.gather(*coming_back)
                kill(server)
                coming_back.append(asyncio.create_task(restart(server, after=0.5)))
        await asyncio.gather(*coming_back)
        rediscovered = await reader.discover()

    assert caplog.text.count("retrying") >= 2  # it did go away, twice
    assert arrived == [(window_id, 3, True) for window_id in ids]
    assert rediscovered == refs


async def test_a_postgres_that_stays_away_is_one_sentence(server: EmbeddedServer, tmp_path: Path) -> None:
    async with open_database(server.url(), tmp_path, gone_after=timedelta(seconds=0.5)) as database:
        await apply(database.pool)
        for window_id in hours_before(number=8):
            await insert_window(database.pool, window_id)
        reader = WindowReader(database, RULES)
        refs = await reader.discover()
        kill(server)
        with pytest.raises(DatabaseLost, match=f"to read window {refs[0].window_id}, and is gone") as raised:
            [window async for window in reader.stream(refs)]

    assert "\n" not in str(raised.value)
