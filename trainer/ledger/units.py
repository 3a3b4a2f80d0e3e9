"""Units of work that any host may do: claimed with a lease, committed with a fencing number, done once.

Whatever places the workers, the rows here decide what counts. A claim raises the unit's ``fence``; a commit with an
older number is refused, so that a worker which was suspended or cut off, and whose unit another has taken, changes
nothing. Every step is one statement: a host that disappears in the middle of one leaves no lock behind, and a pooler in
transaction mode works.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec

from data_bridge.database import Database
from data_bridge.discovery import WindowRef
from data_bridge.quality import Exclusion, Reason
from trainer.progress import JudgeUsage
from trainer.types import JudgeIdentity, PlannedWindow, Verdict


class Unit(msgspec.Struct, frozen=True):
    """A slice of a planned window: at most ``workers.units.MAX_GROUPS`` of its groups."""

    planned: PlannedWindow
    """The window with the groups of this slice."""
    ref: WindowRef
    part: int = 1
    parts: int = 1

    @property
    def is_last(self) -> bool:
        return self.part == self.parts

    @property
    def name(self) -> str:
        """As errors and logs name it."""
        return f"window {self.planned.window_id}" + (f", slice {self.part} of {self.parts}" if self.parts > 1 else "")


class Member(msgspec.Struct, frozen=True):
    """A trajectory as it was judged."""

    trajectory_id: str
    agent_id: str
    agent_name: str | None
    made: float | int | None
    """What it made in the window: in a market what its row claims, in another world what is known by its facts."""
    content_hash: str


class GroupResult(msgspec.Struct, frozen=True):
    """What judging a group came to: a verdict for each member, or the reason why there is none."""

    group_id: str
    members: tuple[Member, ...]
    verdicts: tuple[Verdict, ...] = ()
    identity: JudgeIdentity | None = None
    verdict_key: str = ""
    cost_usd: float = 0.0
    cached: bool = False
    left_out: tuple[Exclusion, ...] = ()
    reason: Reason | None = None
    """Why there is no verdict; None if there is one."""
    detail: str = ""


class UnitResult(msgspec.Struct, frozen=True):
    """What a unit came to."""

    groups: tuple[GroupResult, ...] = ()
    excluded: tuple[Exclusion, ...] = ()
    """Planned members that turned out not to be usable when they were read."""
    usage: JudgeUsage = msgspec.field(default_factory=JudgeUsage)
    """What the worker has spent since its last commit, whatever unit it was for."""
    fault: str | None = None
    """The sentence of a fault that makes all further work pointless."""
    exit_code: int = 0


@dataclass(frozen=True, slots=True)
class UnitClaim:
    """A unit that is ours until its lease ends; ``fence`` proves it."""

    number: int
    fence: int
    unit: Unit


@dataclass(frozen=True, slots=True)
class DoneUnit:
    number: int
    unit: Unit
    result: UnitResult


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker is told about its job, without any secret."""

    job_id: str
    run_id: str
    settings: Mapping[str, Any]
    lease: timedelta
    workers: int
    max_cost: float | None


@dataclass(frozen=True, slots=True)
class Beat:
    """The answer to a heartbeat."""

    is_open: bool
    """Whether the job goes on: its driver was heard of within a minute."""
    held: frozenset[tuple[int, int]]
    """Number and fence of the units that are still ours."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How a job stands, for the driver that waits for it."""

    alive: int
    """Workers heard of within a lease, and for longer than their start: one that dies at once does not count."""
    done: int
    """Units that are done."""
    taken_most: int
    """The largest number of times that a unit which is not done was claimed."""
    first_open: int | None
    """The first unit that is not done."""


def _counted(kind: type, value: Any) -> Counter[str]:
    """The counters of a ``JudgeUsage``: JSON has them as objects."""
    return Counter(value)


_OPEN = """
INSERT INTO hindsight.unit_jobs (job_id, run_id, settings, lease, workers, max_cost, committed_usd)
SELECT $1, $2, $3::jsonb, $4, $5, $6, coalesce(sum(cost_usd), 0) FROM hindsight.judge_calls WHERE run_id = $2
"""
_ADD = """
INSERT INTO hindsight.units (job_id, number, window_id, unit)
SELECT $1, u.number, u.window_id, u.unit FROM unnest($2::int[], $3::text[], $4::jsonb[]) AS u(number, window_id, unit)
"""
# A worker takes several small units at once, but leaves the others their share.
_CLAIM = """
WITH waiting AS (
    SELECT count(*) AS n FROM (SELECT FROM hindsight.units WHERE job_id = $1 AND state = 'waiting' LIMIT 1000) AS few),
free AS (
    SELECT job_id, number FROM hindsight.units
     WHERE job_id = $1 AND (state = 'waiting' OR (state = 'taken' AND expires_at < clock_timestamp()))
     ORDER BY number
     LIMIT (SELECT greatest(1, least($3, waiting.n / (2 * j.workers))) FROM waiting, hindsight.unit_jobs AS j
             WHERE j.job_id = $1 AND j.is_open)
       FOR UPDATE SKIP LOCKED)
UPDATE hindsight.units AS u
   SET state = 'taken', holder = $2, fence = fence + 1, expires_at = clock_timestamp() + j.lease
  FROM free JOIN hindsight.unit_jobs AS j USING (job_id)
 WHERE u.job_id = free.job_id AND u.number = free.number AND j.is_open
RETURNING u.number, u.fence, u.unit::text AS unit
"""
_BEAT = """
WITH seen AS (
    INSERT INTO hindsight.unit_workers AS w (job_id, holder, host, pid)
    SELECT $1, $2, $3, $4 FROM hindsight.unit_jobs WHERE job_id = $1
        ON CONFLICT (job_id, holder) DO UPDATE SET seen_at = clock_timestamp()),
kept AS (
    UPDATE hindsight.units AS u SET expires_at = clock_timestamp() + j.lease FROM hindsight.unit_jobs AS j
     WHERE j.job_id = $1 AND u.job_id = $1 AND u.number = ANY($5) AND u.holder = $2 AND u.state = 'taken'
    RETURNING u.number, u.fence)
SELECT j.is_open AND j.seen_at > clock_timestamp() - interval '1 minute' AS is_open,
       (SELECT array_agg(number) FROM kept) AS numbers, (SELECT array_agg(fence) FROM kept) AS fences
  FROM hindsight.unit_jobs AS j WHERE job_id = $1
"""
_COMMIT = """
UPDATE hindsight.units SET state = 'done', result = $4::jsonb, done_at = clock_timestamp(), expires_at = NULL
 WHERE job_id = $1 AND number = $2 AND fence = $3 AND state = 'taken' RETURNING number
"""
_DONE = """
SELECT number, unit::text AS unit, result::text AS result FROM hindsight.units
 WHERE job_id = $1 AND number = ANY($2) AND state = 'done'
"""
_STANDING = """
WITH driver AS (UPDATE hindsight.unit_jobs SET seen_at = clock_timestamp() WHERE job_id = $1)
SELECT (SELECT count(*) FROM hindsight.unit_workers AS w
         WHERE w.job_id = j.job_id AND w.seen_at > clock_timestamp() - j.lease
           AND w.seen_at > w.started_at + j.lease / 2) AS alive,
       (SELECT count(*) FROM hindsight.units AS u WHERE u.job_id = j.job_id AND state = 'done') AS done,
       (SELECT coalesce(max(fence), 0) FROM hindsight.units AS u WHERE u.job_id = j.job_id AND state <> 'done') AS most,
       (SELECT min(number) FROM hindsight.units AS u WHERE u.job_id = j.job_id AND state <> 'done') AS first_open
  FROM hindsight.unit_jobs AS j WHERE job_id = $1
"""


class UnitLedger:
    """``hindsight.unit_jobs``, ``units`` and ``unit_workers``. Stateless: the database is the only memory."""

    def __init__(self, database: Database) -> None:
        self._pool = database.pool

    # The driver

    async def open_job(self, job: Job) -> None:
        """Start a job. What its run has paid before counts towards the ceiling. Jobs whose driver is long gone go."""
        await self._pool.execute("DELETE FROM hindsight.unit_jobs WHERE seen_at < now() - interval '7 days'")
        text = msgspec.json.encode(job.settings).decode()
        await self._pool.execute(_OPEN, job.job_id, job.run_id, text, job.lease, job.workers, job.max_cost)

    async def add(self, job_id: str, first: int, units: Sequence[Unit]) -> None:
        """Hand out ``units``, numbered from ``first`` on."""
        numbers = list(range(first, first + len(units)))
        texts = [msgspec.json.encode(unit).decode() for unit in units]
        await self._pool.execute(_ADD, job_id, numbers, [unit.planned.window_id for unit in units], texts)

    async def done(self, job_id: str, numbers: Sequence[int]) -> list[DoneUnit]:
        """Those of ``numbers`` that are done."""
        return [
            DoneUnit(
                row["number"],
                msgspec.json.decode(row["unit"], type=Unit),
                msgspec.json.decode(row["result"], type=UnitResult, dec_hook=_counted),
            )
            for row in await self._pool.fetch(_DONE, job_id, list(numbers))
        ]

    async def unit(self, job_id: str, number: int) -> Unit:
        query = "SELECT unit::text FROM hindsight.units WHERE job_id = $1 AND number = $2"
        return msgspec.json.decode(await self._pool.fetchval(query, job_id, number), type=Unit)

    async def standing(self, job_id: str) -> Standing:
        row = await self._pool.fetchrow(_STANDING, job_id)
        assert row is not None, "the driver's own job"
        return Standing(row["alive"], row["done"], row["most"], row["first_open"])

    async def close_job(self, job_id: str) -> None:
        """End a job: its workers stop at their next heartbeat, and nothing of theirs is accepted any more."""
        await self._pool.execute("DELETE FROM hindsight.unit_jobs WHERE job_id = $1", job_id)

    async def close_jobs_of(self, run_id: str) -> None:
        """End the jobs that earlier processes of this run have left; only if they are known to be gone."""
        await self._pool.execute("DELETE FROM hindsight.unit_jobs WHERE run_id = $1", run_id)

    # A worker

    async def job(self, job_id: str) -> Job | None:
        """What a worker is to do; None if the job has ended."""
        row = await self._pool.fetchrow(
            "SELECT job_id, run_id, settings::text AS settings, lease, workers, max_cost FROM hindsight.unit_jobs"
            " WHERE job_id = $1 AND is_open",
            job_id,
        )
        return None if row is None else Job(**{**row, "settings": msgspec.json.decode(row["settings"])})

    async def claim(self, job_id: str, holder: str, most: int) -> list[UnitClaim]:
        """Up to ``most`` units that nobody works on, in the order of the plan."""
        rows = await self._pool.fetch(_CLAIM, job_id, holder, most)
        claims = [UnitClaim(row["number"], row["fence"], msgspec.json.decode(row["unit"], type=Unit)) for row in rows]
        return sorted(claims, key=lambda claim: claim.number)

    async def beat(self, job_id: str, holder: str, numbers: Sequence[int]) -> Beat:
        """Renew the leases of ``holder`` on these units; says which of them it still has."""
        row = await self._pool.fetchrow(_BEAT, job_id, holder, socket.gethostname(), os.getpid(), list(numbers))
        if row is None:
            return Beat(False, frozenset())
        return Beat(row["is_open"], frozenset(zip(row["numbers"] or (), row["fences"] or (), strict=True)))

    async def commit(self, job_id: str, claim: UnitClaim, result: UnitResult) -> bool:
        """Store what the unit came to; False if it is no longer ours, and then nothing is stored."""
        text = msgspec.json.encode(result).decode()
        return await self._pool.fetchval(_COMMIT, job_id, claim.number, claim.fence, text) is not None
