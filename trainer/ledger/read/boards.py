"""What the judge did, what agents were given as rewards, and which machines are at work: for pages that look at all."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import msgspec

from data_bridge.database import Database
from trainer.ledger.certificates import EDITION, Line, gaps_in
from trainer.ledger.read.judging import order_agreement
from trainer.ledger.read.types import OrderAgreement

# The judge


@dataclass(frozen=True, slots=True)
class JudgeDay:
    """The calls of one judge on one day."""

    day: date
    judge: str
    calls: int
    failed: int
    usd: float
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class JudgeFault:
    """How calls failed, in the last weeks."""

    judge: str
    result: str
    count: int
    last_fault: str
    last_at: datetime


@dataclass(frozen=True, slots=True)
class Certified:
    """An examination of a judge."""

    judge: str
    rubric: str
    passed: bool
    is_current: bool
    """Whether its edition of the examination still counts."""
    material: str
    created_at: datetime
    lines: tuple[Line, ...]
    gaps: str = ""
    """What it could not measure, as a sentence; empty if it measured everything."""


@dataclass(frozen=True, slots=True)
class JudgeBoard:
    days: tuple[JudgeDay, ...]
    faults: tuple[JudgeFault, ...]
    certificates: tuple[Certified, ...]
    agreement: OrderAgreement | None
    """Between orders, over the newest groups that were judged in more than one."""
    total_usd: float
    verdicts: int


_DAYS = """
SELECT (made_at AT TIME ZONE 'UTC')::date AS day, judge, count(*) AS calls,
       count(*) FILTER (WHERE result <> 'ok') AS failed,
       sum(cost_usd)::float8 AS usd, sum(prompt_tokens)::bigint AS prompt_tokens,
       sum(completion_tokens)::bigint AS completion_tokens
  FROM hindsight.judge_calls WHERE made_at > now() - interval '35 days' GROUP BY 1, 2 ORDER BY 1, 2
"""
_FAULTS = """
SELECT judge, result, count(*) AS count, (array_agg(fault ORDER BY made_at DESC))[1] AS last_fault,
       max(made_at) AS last_at
  FROM hindsight.judge_calls WHERE result <> 'ok' AND made_at > now() - interval '35 days'
 GROUP BY 1, 2 ORDER BY count DESC, 1, 2
"""
_CERTIFICATES = """
SELECT DISTINCT ON (judge, rubric, rubric_version, prompt_version) judge, rubric, passed, material, created_at, edition,
       lines::text, unmeasured::text FROM hindsight.certificates
 ORDER BY judge, rubric, rubric_version, prompt_version, created_at DESC
"""
_ORDERS = """
WITH several AS (SELECT verdict_key FROM hindsight.verdicts WHERE is_llm AND order_number = 1
                 ORDER BY created_at DESC LIMIT 200)
SELECT verdict_key, order_number, one ->> 'trajectory_id' AS trajectory_id, (one ->> 'score')::float8 AS score
  FROM hindsight.verdicts JOIN several USING (verdict_key), jsonb_array_elements(scores) AS one
 ORDER BY verdict_key, order_number
"""


async def judge_board(database: Database) -> JudgeBoard:
    pool = database.pool
    groups: dict[str, dict[int, dict[str, float]]] = {}
    for row in await pool.fetch(_ORDERS):
        orders = groups.setdefault(row["verdict_key"], {})
        orders.setdefault(row["order_number"], {})[row["trajectory_id"]] = row["score"]
    totals = await pool.fetchrow(
        "SELECT (SELECT coalesce(sum(cost_usd), 0)::float8 FROM hindsight.judge_calls) AS usd,"
        " (SELECT count(*) FROM hindsight.verdicts) AS verdicts"
    )
    assert totals is not None
    return JudgeBoard(
        days=tuple(JudgeDay(**row) for row in await pool.fetch(_DAYS)),
        faults=tuple(JudgeFault(**row) for row in await pool.fetch(_FAULTS)),
        certificates=tuple(_certified(row) for row in await pool.fetch(_CERTIFICATES)),
        agreement=order_agreement([list(orders.values()) for orders in groups.values()]),
        total_usd=totals["usd"],
        verdicts=totals["verdicts"],
    )


def _certified(row: Any) -> Certified:
    values = {name: value for name, value in row.items() if name not in ("edition", "lines", "unmeasured")}
    lines = msgspec.json.decode(row["lines"], type=tuple[Line, ...])
    gaps = gaps_in(msgspec.json.decode(row["unmeasured"]))
    return Certified(**values, is_current=row["edition"] == EDITION, lines=lines, gaps=gaps)


# The system


@dataclass(frozen=True, slots=True)
class HostRow:
    """A console or scheduler."""

    host: str
    pid: int
    part: str
    doing: str
    started_at: datetime
    heartbeat_at: datetime
    is_alive: bool


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """Who holds a model."""

    model: str
    holder: str
    taken_at: datetime
    heartbeat_at: datetime
    is_alive: bool


@dataclass(frozen=True, slots=True)
class PeriodRow:
    job: str
    period: datetime
    state: str
    host: str
    attempts: int
    exit_code: int | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class TableSize:
    table: str
    bytes: int
    rows: int
    """As Postgres estimates."""


@dataclass(frozen=True, slots=True)
class SystemFacts:
    hosts: tuple[HostRow, ...]
    leases: tuple[LeaseRow, ...]
    periods: tuple[PeriodRow, ...]
    waiting_commands: int
    verdict_claims: int
    open_batches: int
    database_bytes: int
    tables: tuple[TableSize, ...]
    newest_migration: int
    warnings: tuple[str, ...]


_SIZES = """
SELECT c.relname AS table, pg_total_relation_size(c.oid) AS bytes, greatest(c.reltuples, 0)::bigint AS rows
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = 'hindsight' AND c.relkind = 'r' ORDER BY 2 DESC, 1 LIMIT 12
"""
_COUNTS = """
SELECT (SELECT count(*) FROM hindsight.commands WHERE state = 'waiting') AS commands,
       (SELECT count(*) FROM hindsight.verdict_claims WHERE expires_at > now()) AS claims,
       (SELECT count(*) FROM hindsight.batches WHERE state IN ('prepared', 'submitted')) AS batches,
       (SELECT count(*) FROM hindsight.commands WHERE kind = 'start' AND state = 'waiting'
          AND created_at < now() - interval '1 minute') AS stuck,
       pg_database_size(current_database()) AS size,
       (SELECT max(number) FROM hindsight.migrations) AS migration
"""


async def system_facts(database: Database) -> SystemFacts:
    pool = database.pool
    hosts = await pool.fetch(
        "SELECT host, pid, part, doing, started_at, heartbeat_at, now() - heartbeat_at < interval '30 seconds'"
        " AS is_alive FROM hindsight.hosts ORDER BY host, pid"
    )
    leases = await pool.fetch(
        "SELECT model, holder, taken_at, heartbeat_at, now() - heartbeat_at < interval '15 seconds' AS is_alive"
        " FROM hindsight.model_locks ORDER BY model"
    )
    periods = await pool.fetch(
        "SELECT job, period, state, host, attempts, exit_code, reason FROM hindsight.periods"
        " ORDER BY period DESC, job LIMIT 10"
    )
    counts = await pool.fetchrow(_COUNTS)
    assert counts is not None
    found = tuple(HostRow(**row) for row in hosts)
    held = tuple(LeaseRow(**row) for row in leases)
    return SystemFacts(
        hosts=found,
        leases=held,
        periods=tuple(PeriodRow(**row) for row in periods),
        waiting_commands=counts["commands"],
        verdict_claims=counts["claims"],
        open_batches=counts["batches"],
        database_bytes=counts["size"],
        tables=tuple(TableSize(**row) for row in await pool.fetch(_SIZES)),
        newest_migration=counts["migration"],
        warnings=tuple(_warnings(found, held, counts["stuck"])),
    )


def _warnings(hosts: tuple[HostRow, ...], leases: tuple[LeaseRow, ...], stuck: int) -> list[str]:
    found = [
        f"{one.holder} holds the model {one.model} and has not been heard of since {one.heartbeat_at:%H:%M:%S} UTC."
        for one in leases
        if not one.is_alive
    ]
    found += [
        f"The {one.part} on {one.host} (pid {one.pid}) was last heard of on {one.heartbeat_at:%Y-%m-%d %H:%M} UTC."
        for one in hosts
        if not one.is_alive
    ]
    if stuck:
        found.append(
            "A training waits for a host: start a scheduler, or a console without --no-train-here, where it can run."
        )
    return found
