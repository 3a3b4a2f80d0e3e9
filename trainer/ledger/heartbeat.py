"""A database that is gone for good is noticed, whatever its user waits for: heartbeats are sent to it meanwhile.

A host that is cut off says nothing, and asyncpg's own end of a statement may take minutes then. So the block that sends
heartbeats is cancelled when none was answered for ``Database.gone_after``, and DatabaseLost is raised.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

from data_bridge.database import START_IT, Database, is_transient
from data_bridge.errors import DatabaseLost
from data_bridge.redaction import redact

logger = logging.getLogger(__name__)

BEAT = timedelta(seconds=3)
BEAT_TIMEOUT = timedelta(seconds=5)
"""More than ``Database.gone_after`` for the last answer: a busy host is slow, and one that is cut off says nothing."""

Beat = Callable[[], Awaitable[bool]]
"""Sends one heartbeat; False: no more are wanted."""


@asynccontextmanager
async def while_answered(
    database: Database,
    is_unreachable: asyncio.Event,
    beat: Beat | None = None,
    *,
    every: timedelta = BEAT,
    name: str = "the database",
) -> AsyncIterator[None]:
    """Send heartbeats of ``name`` for the duration of the block: ``beat``, or a statement that does nothing.

    If none is answered for too long, ``is_unreachable`` is set, the pool's connections are closed, so that nothing on
    the way out waits for an answer, and the block is cancelled: DatabaseLost, unless it raises something else then.
    """

    async def nothing() -> bool:
        await database.pool.execute("SELECT 1")
        return True

    keeping = _keep(database, is_unreachable, beat or nothing, every, name)
    beating = asyncio.create_task(keeping, name=f"heartbeat of {name}")
    try:
        async with _while_reachable(database, is_unreachable):
            yield
    except TimeoutError as error:
        if not is_unreachable.is_set():
            raise
        raise unreachable(database) from error
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)


def unreachable(database: Database) -> DatabaseLost:
    """What ends a block whose ``is_unreachable`` is set."""
    silent = f"{database.gone_after.total_seconds():g} s"
    return DatabaseLost(f"The database {database.label} has not answered for {silent}: {START_IT}")


@asynccontextmanager
async def _while_reachable(database: Database, is_unreachable: asyncio.Event) -> AsyncIterator[None]:
    """Cancel the block when the database is gone: TimeoutError, unless the block raises something else then."""

    async def give_up(deadline: asyncio.Timeout) -> None:
        await is_unreachable.wait()
        database.pool.terminate()
        deadline.reschedule(asyncio.get_running_loop().time())

    async with asyncio.timeout(None) as deadline:
        watching = asyncio.create_task(give_up(deadline), name="watch the database")
        try:
            yield
        finally:
            watching.cancel()


async def _keep(database: Database, is_unreachable: asyncio.Event, beat: Beat, every: timedelta, name: str) -> None:
    """Send heartbeats until cancelled. A brief outage is waited for."""
    silent_since: float | None = None
    while True:
        await asyncio.sleep(every.total_seconds())
        started = time.monotonic()
        silent_since = started if silent_since is None else silent_since
        beating = asyncio.ensure_future(beat())
        try:
            # Waited for from outside: on a host that is cut off, asyncpg's own end of a statement may take minutes.
            await asyncio.wait({beating}, timeout=_left(silent_since, database) + BEAT_TIMEOUT.total_seconds())
            if not beating.done():  # if this process was suspended itself, the answer is there and only not read yet
                await asyncio.wait({beating}, timeout=1)
            if beating.done():
                if not await beating:
                    return
                silent_since = None
        except Exception as error:
            said = redact(str(error)) or type(error).__name__
            logger.warning("the heartbeat of %s failed, retrying: %s", name, said)
            if not is_transient(error):  # it answers, if only with an error
                silent_since = None
        finally:
            beating.cancel()
        if silent_since is not None and _left(silent_since, database) <= 0:
            is_unreachable.set()
            return


def _left(silent_since: float, database: Database) -> float:
    return max(0.0, silent_since + database.gone_after.total_seconds() - time.monotonic())
