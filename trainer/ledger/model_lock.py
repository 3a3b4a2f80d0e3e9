"""One trainer at a time for one model, on any number of hosts.

The lock is a row with a lease and a heartbeat: it works through a pooler in transaction mode, where a session's
advisory lock does not. The heartbeat of a dead holder stops and its lease expires within ``LEASE``; on the same
host the next trainer sees that the process is gone and takes over immediately. The token is a fence: every durable
write of the ledger checks it, so that a trainer that was suspended while another took over can write nothing.
The heartbeat also sees requests to stop (``ledger.commands``), so that they reach any host from any host. It also sees
a database that is gone for good, whatever the training itself waits for (``heartbeat``): the block is cancelled,
DatabaseLost raised.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from data_bridge.database import Database
from data_bridge.errors import HindsightError
from trainer.ledger.heartbeat import BEAT, while_answered

logger = logging.getLogger(__name__)

LEASE = timedelta(seconds=15)
_HEARD_WITHIN = timedelta(minutes=2)
"""A request to stop that is older was for a training that ended before it saw it; a new one may take this long to
load before its first heartbeat."""


class ModelBusy(HindsightError, BlockingIOError):
    """Another trainer holds the model. Names it."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class ModelLock:
    """Proof that this process holds the model; ``lost`` is set when it no longer does."""

    model: str
    token: str
    lost: asyncio.Event
    stop: asyncio.Event
    """Set when somebody asks, on any host, that the training stops after the step in hand."""
    is_unreachable: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the database has answered no heartbeat for ``Database.gone_after``."""


@asynccontextmanager
async def hold(
    database: Database, model: str, *, beat: timedelta = BEAT, stop: asyncio.Event | None = None
) -> AsyncIterator[ModelLock]:
    """Hold ``model`` for the duration of the block. ModelBusy if another live trainer holds it.

    The heartbeat also sees requests to stop, and sets ``stop``. DatabaseLost if it is not answered for too long.
    """
    token = await _take(database, model)
    lock = ModelLock(model, token, asyncio.Event(), stop or asyncio.Event())
    beats = partial(_beat, database, lock)
    try:
        async with while_answered(database, lock.is_unreachable, beats, every=beat, name=f"model {model}"):
            yield lock
    finally:
        await _let_go(database, lock)


async def check_held(connection: Any, lock: ModelLock) -> None:
    """Inside a transaction: ModelBusy unless the lock is still ours; nobody can take it before the commit."""
    query = "SELECT token FROM hindsight.model_locks WHERE model = $1 FOR UPDATE"
    if await connection.fetchval(query, lock.model) != lock.token:
        raise ModelBusy(
            f"Another trainer took over model {lock.model!r} while this one was suspended; "
            "nothing was written; run it again when the other one has finished."
        )


async def _take(database: Database, model: str) -> str:
    token, host, pid = uuid.uuid4().hex, _host(), os.getpid()
    holder, process = f"{socket.gethostname()} (pid {pid})", _started(pid)
    async with database.pool.acquire() as connection, connection.transaction():
        row = await connection.fetchrow(
            "INSERT INTO hindsight.model_locks AS l (model, token, holder, host, pid, process)"
            " VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (model) DO UPDATE SET model = l.model"
            " RETURNING token, holder, host, pid, process, taken_at, now() - heartbeat_at AS silence",
            *(model, token, holder, host, pid, process),
        )
        assert row is not None
        if row["token"] == token:
            return token
        on_this_host = row["host"] == host
        alive = _started(row["pid"]) == row["process"] if on_this_host else row["silence"] < LEASE
        if alive:
            raise ModelBusy(
                f"Model {model!r} is being trained by {row['holder']} since {row['taken_at']:%Y-%m-%d %H:%M} UTC; "
                "wait for it to finish, or give this run another --model."
            )
        logger.info("taking over model %s from %s, which is gone", model, row["holder"])
        await connection.execute(
            "UPDATE hindsight.model_locks SET token = $2, holder = $3, host = $4, pid = $5, process = $6,"
            " taken_at = now(), heartbeat_at = now() WHERE model = $1",
            *(model, token, holder, host, pid, process),
        )
    return token


async def _let_go(database: Database, lock: ModelLock) -> None:
    try:
        await database.pool.execute(
            "DELETE FROM hindsight.model_locks WHERE model = $1 AND token = $2", lock.model, lock.token
        )
    except Exception as error:  # report the fault that ended the block instead; the lease expires by itself
        logger.warning("the lock of model %s could not be released and will expire: %s", lock.model, error)


async def _beat(database: Database, lock: ModelLock) -> bool:
    """One heartbeat: says in ``lock`` what it learns. A lock that is lost needs no more."""
    status: str = await database.pool.execute(
        "UPDATE hindsight.model_locks SET heartbeat_at = now() WHERE model = $1 AND token = $2", lock.model, lock.token
    )
    if not status.endswith(" 1"):
        logger.error("another trainer took over model %s", lock.model)
        lock.lost.set()
    elif not lock.stop.is_set() and (asked := await _asked_to_stop(database, lock.model)) is not None:
        logger.info("%s asks to stop the training of %s: after the current step", asked, lock.model)
        lock.stop.set()
    return not lock.lost.is_set()


async def _asked_to_stop(database: Database, model: str) -> str | None:
    """Who asked that this training stops. A request that nobody saw in time was for a training that has ended."""
    who: str | None = await database.pool.fetchval(
        "UPDATE hindsight.commands SET state = 'done', taken_by = $2, finished_at = now()"
        " WHERE kind = 'stop' AND model = $1 AND state = 'waiting' AND created_at > now() - $3::interval"
        " RETURNING asked_by",
        *(model, f"{socket.gethostname()} (pid {os.getpid()})", _HEARD_WITHIN),
    )
    return who


async def holder_of(source: Any, model: str) -> str | None:
    """Who is training ``model``, and since when; None if nobody is, as far as can be told from another host."""
    row = await source.fetchrow(
        "SELECT holder, host, pid, process, taken_at, now() - heartbeat_at AS silence FROM hindsight.model_locks"
        " WHERE model = $1",
        model,
    )
    if row is None:
        return None
    on_this_host = row["host"] == _host()
    alive = _started(row["pid"]) == row["process"] if on_this_host else row["silence"] < LEASE
    return f"{row['holder']} since {row['taken_at']:%Y-%m-%d %H:%M} UTC" if alive else None


def _host() -> str:
    """This host and its process table: containers may share a host name, but not both."""
    parts = [socket.gethostname()]
    for source in (Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")):
        try:
            parts.append(os.readlink(source) if source.is_symlink() else source.read_text().strip())
        except OSError:
            continue  # not Linux: use the host name only
    return " ".join(parts)


def _started(pid: int) -> str:
    """When process ``pid`` started, in a form that distinguishes processes with the same pid; empty if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self/stat").exists():
            return ""
        return _started_without_proc(pid)
    fields = text.rpartition(")")[2].split()
    return "" if fields[0] in ("Z", "X") else fields[19]


def _started_without_proc(pid: int) -> str:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return "alive"
