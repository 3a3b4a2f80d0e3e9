"""Who trains a scheduled period: one host at a time, and each period once.

A claim is a row ``(job, period)`` with a heartbeat; the heartbeat of a dead host stops, and the next host takes the
period over. Training is itself resumable and settles the remote job first, so taking over never trains a batch twice.
"Now" is the database's clock, so a host's wrong clock can neither repeat nor skip a period.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

import asyncpg

from data_bridge.database import Database
from data_bridge.redaction import redact

logger = logging.getLogger(__name__)

LEASE = timedelta(seconds=30)
"""A claim without a heartbeat for this long belongs to a dead host."""

BEAT = timedelta(seconds=5)

AWAY = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError)
"""Errors of a query while the database restarts."""


class PeriodResult(StrEnum):
    """How a period ended. Only ``failed`` may be retried."""

    DONE = "done"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to train one period, as long as its heartbeat continues."""

    job: str
    period: datetime
    token: str
    attempts: int
    taken_over_from: str | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """Why a period was not claimed: another host is training it, or it is finished."""

    state: str
    holder: str
    exit_code: int | None = None
    """Set for a finished period."""


class Periods:
    """The rows of ``hindsight.periods`` for one job."""

    def __init__(
        self, database: Database, job: str, *, attempts: int = 3, retry_after: timedelta = timedelta(0)
    ) -> None:
        self._database = database
        self._job = job
        self._attempts = attempts
        self._retry_after = retry_after

    async def now(self) -> datetime:
        moment: datetime = await self._database.pool.fetchval("SELECT now()")
        return moment.astimezone(UTC)

    async def has_history_before(self, period: datetime) -> bool:
        """Whether this job ran before: if not, an earlier period was not missed."""
        query = "SELECT EXISTS (SELECT 1 FROM hindsight.periods WHERE job = $1 AND period < $2)"
        return bool(await self._database.pool.fetchval(query, self._job, period))

    async def abandoned(self) -> list[datetime]:
        """Periods whose host's heartbeat has stopped, oldest first."""
        rows = await self._database.pool.fetch(
            "SELECT period FROM hindsight.periods"
            " WHERE job = $1 AND state = 'running' AND now() - heartbeat_at > $2 ORDER BY period",
            *(self._job, LEASE),
        )
        return [row["period"].astimezone(UTC) for row in rows]

    async def claim(self, period: datetime) -> Claim | Held:
        """Take ``period`` if it is free, failed a while ago with retries left, or was left by a dead host."""
        token, host, pid = uuid.uuid4().hex, socket.gethostname(), os.getpid()
        async with self._database.pool.acquire() as connection, connection.transaction():
            # One decision at a time per period; the lock ends with the transaction, so poolers work.
            await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", f"{self._job}/{period}")
            row = await connection.fetchrow(
                "SELECT state, host, pid, attempts, exit_code, now() - heartbeat_at > $3 AS dead,"
                " now() - finished_at >= $4 AS cooled FROM hindsight.periods WHERE job = $1 AND period = $2",
                *(self._job, period, LEASE, self._retry_after),
            )
            if row is None:
                await connection.execute(
                    "INSERT INTO hindsight.periods (job, period, state, host, pid, claim)"
                    " VALUES ($1, $2, 'running', $3, $4, $5)",
                    *(self._job, period, host, pid, token),
                )
                return Claim(self._job, period, token, attempts=1)
            holder = f"{row['host']} (pid {row['pid']})"
            abandoned = row["state"] == "running" and row["dead"]
            may_retry = row["state"] == PeriodResult.FAILED and row["cooled"] and row["attempts"] < self._attempts
            if not (abandoned or may_retry):
                return Held(row["state"], holder, row["exit_code"])
            await connection.execute(
                "UPDATE hindsight.periods SET state = 'running', host = $3, pid = $4, claim = $5,"
                " attempts = attempts + 1, heartbeat_at = now(), finished_at = NULL, exit_code = NULL, reason = NULL"
                " WHERE job = $1 AND period = $2",
                *(self._job, period, host, pid, token),
            )
            return Claim(self._job, period, token, row["attempts"] + 1, taken_over_from=holder if abandoned else None)

    async def beat(self, claim: Claim) -> bool:
        """Send a heartbeat. False if the claim is no longer ours."""
        status = await self._database.pool.execute(
            "UPDATE hindsight.periods SET heartbeat_at = now()"
            " WHERE job = $1 AND period = $2 AND claim = $3 AND state = 'running'",
            *(claim.job, claim.period, claim.token),
        )
        return bool(status.endswith(" 1"))

    async def finish(self, claim: Claim, outcome: PeriodResult, exit_code: int, reason: str) -> bool:
        """Close the period. False if another host has taken it over."""
        status = await self._database.pool.execute(
            "UPDATE hindsight.periods SET state = $4, exit_code = $5, reason = $6, finished_at = now()"
            " WHERE job = $1 AND period = $2 AND claim = $3",
            *(claim.job, claim.period, claim.token, str(outcome), exit_code, reason),
        )
        return bool(status.endswith(" 1"))

    async def finished_a_run(self, pid: int, since: datetime) -> bool:
        """Whether process ``pid`` of this host has finished a new or resumed run since then.

        A command that does nothing also exits with 0.
        """
        return bool(
            await self._database.pool.fetchval(
                "SELECT EXISTS (SELECT 1 FROM hindsight.runs"
                " WHERE host = $1 AND pid = $2 AND state = 'done' AND finished_at >= $3)",
                *(socket.gethostname(), pid, since),
            )
        )


@asynccontextmanager
async def beating(periods: Periods, claim: Claim) -> AsyncIterator[asyncio.Event]:
    """Send heartbeats for the duration of the block; the event is set when another host takes the claim."""
    lost = asyncio.Event()
    task = asyncio.create_task(_beat(periods, claim, lost), name="heartbeat of the period")
    try:
        yield lost
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _beat(periods: Periods, claim: Claim, lost: asyncio.Event) -> None:
    while not lost.is_set():
        try:
            if not await periods.beat(claim):
                lost.set()
        except AWAY as error:
            logger.warning("heartbeat failed: %s", redact(str(error) or type(error).__name__))
        await asyncio.sleep(BEAT.total_seconds())
