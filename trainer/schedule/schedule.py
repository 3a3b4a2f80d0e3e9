"""When a period is due, and who trains it: the cron arithmetic, and the claim in Postgres.

Periods are named by their cron time in UTC, and "now" is the database's clock, so neither daylight saving
nor a host's wrong clock can make a period happen twice or not at all. A claim is a row ``(job, period)``
with a heartbeat; a host that dies stops beating, and the next one takes the period over. Training is
itself resumable and settles the remote job first, so taking over never trains a batch twice.
"""

from __future__ import annotations

import os
import socket
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from croniter import CroniterError, croniter

from data_bridge.database import Database
from data_bridge.errors import ConfigurationError

LEASE = timedelta(seconds=30)
"""A claim without a heartbeat for this long belongs to a dead host."""

BEAT = timedelta(seconds=5)

LONGEST_CATCH_UP = timedelta(days=31)
"""A missed period older than this is not worth training any more."""


class Outcome(StrEnum):
    """How a period ended. Only ``failed`` may be tried again."""

    DONE = "done"
    SKIPPED = "skipped"
    FAILED = "failed"


def outcome_of(exit_code: int) -> Outcome:
    """A refused promotion (5) is a finished period: the training happened, the gate did its work."""
    if exit_code in (0, 5):
        return Outcome.DONE
    return Outcome.SKIPPED if exit_code == 3 else Outcome.FAILED


@dataclass(frozen=True, slots=True)
class Summary:
    """What came of a period, as the webhook and ``--json`` tell it."""

    job: str
    period: str
    outcome: str
    exit_code: int
    reason: str


def check_cron(expression: str) -> str:
    """``expression`` if croniter understands it, else a ConfigurationError that names the setting."""
    try:
        period_due(expression, datetime.now(UTC))  # also refuses what never comes, like 31 February
    except (CroniterError, ValueError) as error:
        raise ConfigurationError(
            f"--cron: {expression!r} is not a cron expression ({error}); try '0 3 * * 0'."
        ) from None
    return expression


def period_due(expression: str, now: datetime) -> datetime:
    """The latest scheduled moment at or before ``now`` (aware UTC)."""
    # get_prev is exclusive, so ask from just after now.
    return _at(croniter(expression, now + timedelta(microseconds=1)).get_prev(datetime))


def next_period(expression: str, now: datetime) -> datetime:
    """The first scheduled moment after ``now``."""
    return _at(croniter(expression, now).get_next(datetime))


def _at(moment: datetime) -> datetime:
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to train one period, as long as its heartbeat goes on."""

    job: str
    period: datetime
    token: str
    attempts: int
    taken_over_from: str | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """Why a period was not claimed: somebody trains it now, or it is over."""

    state: str
    holder: str
    exit_code: int | None = None
    """Of a period that is over."""


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
        """Whether this job ran before: otherwise an earlier period was not missed, it never existed."""
        query = "SELECT EXISTS (SELECT 1 FROM hindsight.periods WHERE job = $1 AND period < $2)"
        return bool(await self._database.pool.fetchval(query, self._job, period))

    async def abandoned(self) -> list[datetime]:
        """Periods whose host has stopped beating, oldest first."""
        rows = await self._database.pool.fetch(
            "SELECT period FROM hindsight.periods"
            " WHERE job = $1 AND state = 'running' AND now() - heartbeat_at > $2 ORDER BY period",
            *(self._job, LEASE),
        )
        return [row["period"].astimezone(UTC) for row in rows]

    async def claim(self, period: datetime) -> Claim | Held:
        """Take ``period`` if it is free, failed a while ago with tries left, or left behind by a dead host."""
        token, host, pid = uuid.uuid4().hex, socket.gethostname(), os.getpid()
        async with self._database.pool.acquire() as connection, connection.transaction():
            # One decision at a time per period; the lock ends with the transaction, so poolers are fine.
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
            may_retry = row["state"] == Outcome.FAILED and row["cooled"] and row["attempts"] < self._attempts
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
        """Say that the claim's holder lives. False if the claim is no longer ours."""
        status = await self._database.pool.execute(
            "UPDATE hindsight.periods SET heartbeat_at = now()"
            " WHERE job = $1 AND period = $2 AND claim = $3 AND state = 'running'",
            *(claim.job, claim.period, claim.token),
        )
        return bool(status.endswith(" 1"))

    async def finish(self, claim: Claim, outcome: Outcome, exit_code: int, reason: str) -> bool:
        """Close the period. False if another host has taken it over meanwhile."""
        status = await self._database.pool.execute(
            "UPDATE hindsight.periods SET state = $4, exit_code = $5, reason = $6, finished_at = now()"
            " WHERE job = $1 AND period = $2 AND claim = $3",
            *(claim.job, claim.period, claim.token, str(outcome), exit_code, reason),
        )
        return bool(status.endswith(" 1"))
