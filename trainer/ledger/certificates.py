"""Certificates in the ledger: stored for the exact judge, rubric and prompt, because any change voids them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import asyncpg
import msgspec

from data_bridge.database import Database
from trainer.types import JudgeIdentity

EDITION = 2
"""Of the examination. The first had no intervals, and passed judges that look at wealth, profit or BUY: it proves
nothing, and whoever passed it must be examined again."""


@dataclass(frozen=True, slots=True)
class Line:
    """One property of the judge, with its 95 % interval. What could not be measured has none, and does not pass."""

    name: str
    value: float | None
    limit: float
    at_most: bool
    meaning: str
    samples: int
    low: float | None = None
    high: float | None = None

    @property
    def bound(self) -> float | None:
        """The end of the interval that must be within the limit."""
        return self.high if self.at_most else self.low

    @property
    def passed(self) -> bool:
        return self.room is not None and self.room >= 0

    @property
    def room(self) -> float | None:
        """How far the bound is within the limit: 1 is perfect, 0 on the limit, below 0 a failure."""
        if self.bound is None:
            return None
        return (self.bound - self.limit) / ((0.0 if self.at_most else 1.0) - self.limit)


def binding(lines: Sequence[Line]) -> tuple[Line, ...]:
    """The lines that decide: all that failed; if none did, the one that is closest to it."""
    failed = tuple(line for line in lines if not line.passed)
    return failed or tuple(sorted(lines, key=lambda line: line.room or 0.0)[:1])


@dataclass(frozen=True, slots=True)
class Certificate:
    """The latest examination of one judge."""

    certificate_id: str
    passed: bool
    lines: tuple[Line, ...]
    material: str
    groups: int
    created_at: datetime
    edition: int = 1
    unmeasured: dict[str, str] = field(default_factory=dict)
    """What its material could not show, by property, and why: it says nothing about these."""

    @property
    def fault(self) -> str | None:
        """Why this is no reason to trust the judge, as the end of a sentence about it; None if it is one."""
        if self.edition != EDITION:
            return (
                f"was examined on {self.created_at:%Y-%m-%d} by edition {self.edition} of the certificate, "
                f"which does not count any more (edition {EDITION} does)"
            )
        if self.passed:
            return None
        return "failed its certification on " + ", ".join(line.name for line in self.lines if not line.passed)

    @property
    def gaps(self) -> str:
        """What it could not measure, as a sentence; empty if it measured everything."""
        return gaps_in(self.unmeasured)


def gaps_in(unmeasured: Mapping[str, str]) -> str:
    told = ", ".join(f"{name} ({why})" for name, why in unmeasured.items())
    return f"Not measured on your own windows: {told}." if told else ""


async def keep(
    database: Database,
    identity: JudgeIdentity,
    lines: Sequence[Line],
    *,
    material: str,
    groups: int,
    calls: int,
    cost_usd: float,
    unmeasured: Mapping[str, str] | None = None,
) -> str:
    """Store an examination, passed or not; returns its id."""
    certificate_id = uuid.uuid4().hex
    await database.pool.execute(
        "INSERT INTO hindsight.certificates (certificate_id, judge, rubric, rubric_version, prompt_version, material,"
        " passed, lines, groups, calls, cost_usd, edition, unmeasured)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7, $8::jsonb, $9, $10, $11, $12, $13::jsonb)",
        certificate_id,
        *(identity.judge, identity.rubric, identity.rubric_version, identity.prompt_version, material),
        *(all(line.passed for line in lines), msgspec.json.encode(lines).decode(), groups, calls, cost_usd, EDITION),
        msgspec.json.encode(unmeasured or {}).decode(),
    )
    return certificate_id


async def find(database: Database, identity: JudgeIdentity) -> Certificate | None:
    """The latest certificate of exactly this judge, rubric and prompt; None if it was never examined."""
    try:
        row = await database.pool.fetchrow(
            "SELECT * FROM hindsight.certificates WHERE judge = $1 AND rubric = $2 AND rubric_version = $3"
            " AND prompt_version = $4 ORDER BY created_at DESC LIMIT 1",
            *(identity.judge, identity.rubric, identity.rubric_version, identity.prompt_version),
        )
    except asyncpg.UndefinedTableError:  # a dry run makes no table
        return None
    if row is None:
        return None
    decoded = {name: msgspec.json.decode(row[name]) for name in ("lines", "unmeasured") if name in row}
    return msgspec.convert({**row, **decoded}, Certificate)
