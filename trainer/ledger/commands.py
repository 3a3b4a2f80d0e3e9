"""What somebody asked the trainers to do, from any host for any host: start a training, stop it.

A start is a row that an idle host takes, with a claim and a heartbeat: the host that dies is replaced, and the one
that was replaced cannot finish it. The training itself is resumable and alone on its model by the model's lock, so
taking over trains nothing twice. A stop is a row that the heartbeat of whoever trains the model sees
(``ledger.model_lock``), however that training was started. A key makes two clicks one command.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import socket
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import msgspec

from data_bridge.database import Database
from data_bridge.errors import ConfigurationError, HindsightError
from data_bridge.redaction import redact
from trainer.ledger.events import EventKind, tell
from trainer.ledger.model_lock import ModelBusy, holder_of

logger = logging.getLogger(__name__)

LEASE = timedelta(seconds=30)
"""A host without a heartbeat for this long is dead, and what it took is free."""
BEAT = timedelta(seconds=5)
MAX_ATTEMPTS = 3

Settings = Mapping[str, Mapping[str, Any]]
"""As the tables of ``run.toml``."""


class KeyUsed(HindsightError, ValueError):
    """The idempotency key belongs to another request."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class StartCommand:
    """A training that was asked for."""

    command_id: int
    model: str
    state: str
    settings: Settings
    run_id: str
    asked_by: str
    created_at: datetime
    taken_by: str | None = None
    exit_code: int | None = None
    outcome: str | None = None


@dataclass(frozen=True, slots=True)
class TakenStart:
    """A start that this host has taken; ``claim`` proves it."""

    command: StartCommand
    claim: str


def _command(row: Any) -> StartCommand:
    return StartCommand(**{**row, "settings": msgspec.json.decode(row["settings"])})


_COLUMNS = "command_id, model, state, settings::text, run_id, asked_by, created_at, taken_by, exit_code, outcome"


async def ask_to_start(
    database: Database, model: str, settings: Settings, *, run_id: str, asked_by: str, key: str | None = None
) -> StartCommand:
    """Ask any host to train ``model``. ModelBusy names who holds it; KeyUsed if ``key`` was for something else.

    With a key that is known the earlier command is returned, whatever became of it.
    """
    text = msgspec.json.encode(settings, order="deterministic").decode()
    digest = hashlib.sha256(f"{model} {text}".encode()).hexdigest()
    async with database.pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(hashtext('hindsight.commands ' || $1))", model)
        known = await _known(connection, key, digest)
        if known is not None:
            return known
        await _refuse_busy(connection, model)
        await connection.execute(
            "UPDATE hindsight.commands SET state = 'withdrawn', finished_at = now()"
            " WHERE kind = 'stop' AND model = $1 AND state = 'waiting'",
            model,
        )
        try:
            async with connection.transaction():
                row = await connection.fetchrow(
                    "INSERT INTO hindsight.commands (kind, model, settings, idempotency_key, digest, run_id, asked_by)"
                    f" VALUES ('start', $1, $2::jsonb, $3, $4, $5, $6) RETURNING {_COLUMNS}",
                    *(model, text, key, digest, run_id, asked_by),
                )
        except asyncpg.UniqueViolationError:  # the key was used for another model at the same moment
            raise KeyUsed("This Idempotency-Key was used for another request: send a new one.") from None
        await tell(connection, EventKind.COMMAND, {"deed": "start", "state": "waiting"}, model=model, run_id=run_id)
    return _command(row)


async def _known(connection: Any, key: str | None, digest: str) -> StartCommand | None:
    if key is None:
        return None
    row = await connection.fetchrow(
        f"SELECT {_COLUMNS}, digest FROM hindsight.commands WHERE idempotency_key = $1", key
    )
    if row is None:
        return None
    if row["digest"] != digest:
        raise KeyUsed("This Idempotency-Key was used for another request: send a new one.")
    return _command({name: value for name, value in row.items() if name != "digest"})


async def _refuse_busy(connection: Any, model: str) -> None:
    holder = await holder_of(connection, model)
    if holder is not None:
        raise ModelBusy(f"Model {model!r} is being trained by {holder}; wait for it to finish, or stop it.")
    waiting = await connection.fetchrow(
        "SELECT state, coalesce(taken_by, 'no host yet') AS by, run_id FROM hindsight.commands"
        " WHERE kind = 'start' AND model = $1 AND state IN ('waiting', 'taken')",
        model,
    )
    if waiting is not None:
        raise ModelBusy(
            f"A training of model {model!r} was asked for already (run {waiting['run_id']}, {waiting['state']}, "
            f"{waiting['by']}); wait for it to finish, or stop it."
        )


async def ask_to_stop(database: Database, model: str, *, asked_by: str, reason: str) -> str | None:
    """Ask whoever trains ``model`` to stop after the step in hand; returns the run if it is known.

    A start that no host has taken yet is withdrawn. ConfigurationError if there is nothing to stop.
    """
    async with database.pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(hashtext('hindsight.commands ' || $1))", model)
        withdrawn = await connection.fetchval(
            "UPDATE hindsight.commands SET state = 'withdrawn', finished_at = now(), outcome = $2"
            " WHERE kind = 'start' AND model = $1 AND state = 'waiting' RETURNING run_id",
            *(model, redact(f"withdrawn by {asked_by}")),
        )
        starting = await connection.fetchval(
            "SELECT run_id FROM hindsight.commands WHERE kind = 'start' AND model = $1 AND state = 'taken'", model
        )
        holder = await holder_of(connection, model)
        if withdrawn is None and starting is None and holder is None:
            raise ConfigurationError(f"Model {model!r} is not being trained: there is nothing to stop.")
        run_id = await connection.fetchval(
            "SELECT run_id FROM hindsight.runs WHERE model = $1 AND state = 'running' ORDER BY started_at DESC LIMIT 1",
            model,
        )
        run_id = withdrawn or run_id or starting
        if withdrawn is None:
            await connection.execute(
                "INSERT INTO hindsight.commands (kind, model, asked_by, reason, run_id)"
                " VALUES ('stop', $1, $2, $3, $4)",
                *(model, asked_by, redact(reason), run_id),
            )
        state = "withdrawn" if withdrawn is not None else "waiting"
        await tell(connection, EventKind.COMMAND, {"deed": "stop", "state": state}, model=model, run_id=run_id)
    return None if run_id is None else str(run_id)


def this_host() -> str:
    return f"{socket.gethostname()} (pid {os.getpid()})"


async def take_start(database: Database) -> TakenStart | None:
    """The oldest start that waits, or that a dead host left; None if there is none, or its model is held."""
    claim = uuid.uuid4().hex
    async with database.pool.acquire() as connection, connection.transaction():
        found = await connection.fetchrow(
            "SELECT command_id, model FROM hindsight.commands AS c WHERE kind = 'start' AND (state = 'waiting'"
            " OR (state = 'taken' AND now() - heartbeat_at > $1 AND attempts < $2))"
            " AND NOT EXISTS (SELECT FROM hindsight.model_locks AS l WHERE l.model = c.model"
            "   AND now() - l.heartbeat_at < $1)"
            " ORDER BY command_id LIMIT 1 FOR UPDATE SKIP LOCKED",
            *(LEASE, MAX_ATTEMPTS),
        )
        if found is None:
            return None
        row = await connection.fetchrow(
            "UPDATE hindsight.commands SET state = 'taken', taken_by = $2, claim = $3, attempts = attempts + 1,"
            f" heartbeat_at = now() WHERE command_id = $1 RETURNING {_COLUMNS}",
            *(found["command_id"], this_host(), claim),
        )
        command = _command(row)
        data = {"deed": "start", "state": "taken", "by": this_host()}
        await tell(connection, EventKind.COMMAND, data, model=command.model, run_id=command.run_id)
    return TakenStart(command, claim)


async def keep_start(database: Database, taken: TakenStart) -> bool:
    """A heartbeat. False if another host has taken the command over."""
    status = await database.pool.execute(
        "UPDATE hindsight.commands SET heartbeat_at = now() WHERE command_id = $1 AND claim = $2 AND state = 'taken'",
        *(taken.command.command_id, taken.claim),
    )
    return bool(status.endswith(" 1"))


async def finish_start(database: Database, taken: TakenStart, exit_code: int, outcome: str, *, pid: int | None) -> bool:
    """How the training ended. False if another host has taken it over. ``pid``: of the process that trained."""
    state = "done" if exit_code in (0, 3, 5, 130, -2) else "failed"
    async with database.pool.acquire() as connection, connection.transaction():
        run_id = await connection.fetchval(
            "SELECT run_id FROM hindsight.runs WHERE model = $1 AND host = $2 AND pid = $3"
            " ORDER BY started_at DESC LIMIT 1",
            *(taken.command.model, socket.gethostname(), pid),
        )
        status = await connection.execute(
            "UPDATE hindsight.commands SET state = $3, exit_code = $4, outcome = $5, run_id = coalesce($6, run_id),"
            " finished_at = now() WHERE command_id = $1 AND claim = $2 AND state = 'taken'",
            *(taken.command.command_id, taken.claim, state, exit_code, redact(outcome), run_id),
        )
        if not status.endswith(" 1"):
            return False
        data = {"deed": "start", "state": state, "exit_code": exit_code, "outcome": redact(outcome)}
        run_id = run_id or taken.command.run_id
        await tell(connection, EventKind.COMMAND, data, model=taken.command.model, run_id=run_id)
    return True


async def newest_start(source: Any, model: str) -> StartCommand | None:
    row = await source.fetchrow(
        f"SELECT {_COLUMNS} FROM hindsight.commands WHERE kind = 'start' AND model = $1"
        " ORDER BY command_id DESC LIMIT 1",
        model,
    )
    return None if row is None else _command(row)


async def start_of_run(source: Any, run_id: str) -> StartCommand | None:
    """The command that asked for a run, also before the run exists."""
    row = await source.fetchrow(
        f"SELECT {_COLUMNS} FROM hindsight.commands WHERE kind = 'start' AND run_id = $1"
        " ORDER BY command_id DESC LIMIT 1",
        run_id,
    )
    return None if row is None else _command(row)


# Hosts


@dataclass(slots=True)
class Presence:
    """What this process says of itself; ``doing`` is told with the next heartbeat."""

    part: str
    doing: str = "idle"


@asynccontextmanager
async def presence(database: Database, part: str) -> AsyncIterator[Presence]:
    """Say that this process is there for the duration of the block."""
    said = Presence(part)

    async def beat() -> None:
        while True:
            try:
                await present(database, said.part, said.doing)
            except Exception as error:  # the next heartbeat may be heard
                logger.warning("the heartbeat of this %s failed: %s", part, redact(str(error) or type(error).__name__))
            await asyncio.sleep(BEAT.total_seconds())

    beating = asyncio.create_task(beat(), name=f"heartbeat of the {part}")
    try:
        yield said
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        with suppress(Exception):  # the database is away: the row goes with the next host that leaves
            await leave(database)


async def present(database: Database, part: str, doing: str) -> None:
    """Say that this process is there, and what it does."""
    await database.pool.execute(
        "INSERT INTO hindsight.hosts (host, pid, part, doing) VALUES ($1, $2, $3, $4)"
        " ON CONFLICT (host, pid) DO UPDATE SET part = EXCLUDED.part, doing = EXCLUDED.doing, heartbeat_at = now()",
        *(socket.gethostname(), os.getpid(), part, doing),
    )


async def leave(database: Database) -> None:
    """This process ends; so does the memory of hosts that were not heard of for a day."""
    await database.pool.execute(
        "DELETE FROM hindsight.hosts WHERE (host = $1 AND pid = $2) OR heartbeat_at < now() - interval '1 day'",
        *(socket.gethostname(), os.getpid()),
    )
