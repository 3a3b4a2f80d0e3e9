"""Reading from a Postgres that may restart: the same questions are asked again once it is back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import asyncpg

from data_bridge.database import Database
from data_bridge.database_faults import explain, is_transient

logger = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds between tries

T = TypeVar("T")


class Fetch(Protocol):
    """Runs one query and gives its rows."""

    def __call__(self, query: str, *arguments: Any) -> Awaitable[list[asyncpg.Record]]: ...


async def patiently(
    database: Database, read: Callable[[Fetch], Awaitable[T]], *, reconnect_for: timedelta = timedelta(minutes=2)
) -> T:
    """What ``read`` gives on one connection. If the connection is lost it is called again on a new one.

    ``read`` must therefore only read. DatabaseError if Postgres is not back within ``reconnect_for``, and at once
    for a fault that waiting does not cure.
    """
    loop = asyncio.get_running_loop()
    deadline: float | None = None
    pause = _FIRST_PAUSE
    while True:
        try:
            async with database.pool.acquire() as connection:
                return await read(_fetch_on(connection))
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            deadline = deadline or loop.time() + reconnect_for.total_seconds()
            if not is_transient(error) or loop.time() + pause > deadline:
                raise explain(error, database.label) from error
            logger.warning("lost %s (%s); trying again", database.label, type(error).__name__)
        await asyncio.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)


def _fetch_on(connection: Any) -> Fetch:
    async def fetch(query: str, *arguments: Any) -> list[asyncpg.Record]:
        try:
            rows: list[asyncpg.Record] = await connection.fetch(query, *arguments)
        except TimeoutError as error:  # a statement that was too slow once will be again: not a lost connection
            raise asyncpg.QueryCanceledError("canceling statement due to statement timeout") from error
        return rows

    return fetch
