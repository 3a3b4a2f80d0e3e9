"""A server learns of promotions from the ledger, wherever they were typed, and goes on without it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from data_bridge.database import Database, open_database
from data_bridge.embedded import EmbeddedServer
from data_bridge.errors import DatabaseError
from tests.builders_promotion import insert_checkpoint
from trainer.ledger.releases import pointer_file, read_pointer
from trainer.promote.publish import publish, roll_back
from trainer.serve.checkpoints import following_ledger
from trainer.types import Serving


def served_step(home: Path) -> int | None:
    pointer = read_pointer(home, "hindsight")
    return pointer.serving.checkpoint.step if pointer is not None and pointer.serving is not None else None


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_true():
            await asyncio.sleep(0.02)


async def promote(database: Database, home: Path, *steps: int) -> None:
    for step in steps:
        point = await insert_checkpoint(database, step)
        await publish(database, home, point.as_release(), Serving("url", point.name), reason="better")


async def go_back(database: Database, home: Path, step: int) -> None:
    await roll_back(database, home, "hindsight", lambda point: Serving("url", point.name), step=step, reason="worse")


async def test_a_rollback_typed_under_another_home_reaches_the_server(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    server, laptop = tmp_path / "server", tmp_path / "laptop"
    await promote(database, server, 1, 2)
    async with following_ledger(database_url, server, "hindsight", every=0.05):
        await go_back(database, laptop, 1)
        await until(lambda: served_step(server) == 1)


async def test_a_server_starts_with_what_the_ledger_says_whatever_its_file_says(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    server, laptop = tmp_path / "server", tmp_path / "laptop"
    await promote(database, server, 1, 2)
    await go_back(database, laptop, 1)
    async with following_ledger(database_url, server, "hindsight"):
        assert served_step(server) == 1
    pointer_file(server, "hindsight").write_text("{")
    async with following_ledger(database_url, server, "hindsight"):
        assert served_step(server) == 1


async def test_a_file_that_agrees_is_left_alone(database: Database, database_url: str, tmp_path: Path) -> None:
    await promote(database, tmp_path, 1)
    written = pointer_file(tmp_path, "hindsight").stat()
    async with following_ledger(database_url, tmp_path, "hindsight", every=0.01):
        await asyncio.sleep(0.2)
    assert pointer_file(tmp_path, "hindsight").stat() == written


async def test_while_postgres_is_away_the_file_stays_and_one_line_says_so_until_it_is_back(
    postgres: EmbeddedServer, database_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server, laptop = tmp_path / "server", tmp_path / "laptop"
    async with open_database(database_url, tmp_path) as database:
        await promote(database, server, 1, 2)
        await go_back(database, laptop, 1)
    name = urlsplit(database_url).path.removeprefix("/")
    elsewhere = await asyncpg.connect(postgres.url())
    await elsewhere.execute(f'ALTER DATABASE "{name}" RENAME TO "{name}_away"')
    with caplog.at_level(logging.WARNING):
        async with following_ledger(database_url, server, "hindsight", every=0.05):
            await until(lambda: "promotions are not followed" in caplog.text)
            await asyncio.sleep(0.5)  # it tries again meanwhile, without another line
            assert served_step(server) == 2
            await elsewhere.execute(f'ALTER DATABASE "{name}_away" RENAME TO "{name}"')
            await until(lambda: served_step(server) == 1)
    await elsewhere.close()
    assert len([record for record in caplog.records if "promotions are not followed" in record.message]) == 1


async def test_an_address_that_is_none_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(DatabaseError, match="not a Postgres address"):
        async with following_ledger("mysql://here/game", tmp_path, "hindsight"):
            pass
