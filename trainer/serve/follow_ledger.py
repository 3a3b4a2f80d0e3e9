"""Keeps the pointer file as the ledger has it: a promotion or rollback may be typed on any host, under any --home.

The server answers from the file alone, so it goes on with what it knows while Postgres is away.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path

import msgspec

from data_bridge.connection_url import parse_connection_url
from data_bridge.database import Database, open_database
from data_bridge.errors import DatabaseError
from trainer.ledger.pointer import read_from_database, read_pointer, sync

logger = logging.getLogger(__name__)

_PATIENCE = 5.0
"""Seconds that a start waits for the ledger before it serves what the file says."""


@asynccontextmanager
async def following_ledger(url: str, home: Path, model: str, *, every: float = 2.0) -> AsyncIterator[None]:
    """Within the block the file follows the ledger at ``url``; it agrees from the start if Postgres answers."""
    parse_connection_url(url)  # a wrong address never gets better: say so before the server starts
    has_tried = asyncio.Event()
    following = asyncio.create_task(_follow(url, home, model, every, has_tried), name="follow the ledger")
    try:
        with suppress(TimeoutError):
            await asyncio.wait_for(has_tried.wait(), _PATIENCE)
        yield
    finally:
        following.cancel()


async def _follow(url: str, home: Path, model: str, every: float, has_tried: asyncio.Event) -> None:
    is_away = False
    while True:
        try:
            async with open_database(
                url, home, statement_timeout=timedelta(seconds=10), max_size=1, read_only=True
            ) as database:
                while True:
                    await _agree(database, home, model)
                    has_tried.set()
                    is_away = False
                    await asyncio.sleep(every)
        except (DatabaseError, OSError) as error:
            if not is_away:
                logger.warning("promotions are not followed, agents keep what they have: %s", error)
            is_away = True
        has_tried.set()
        await asyncio.sleep(every)


async def _agree(database: Database, home: Path, model: str) -> None:
    """Write the file only when it differs: the server reads it again whenever it is written."""
    try:
        known = read_pointer(home, model)
    except msgspec.DecodeError:
        known = None
    if await read_from_database(database, model) != known:
        await sync(database, home, model)
