"""Certificates in the ledger: stored for the exact judge, rubric and prompt, because any change voids them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import asyncpg
import msgspec

from data_bridge.database import Database
from trainer.types import JudgeIdentity


@dataclass(frozen=True, slots=True)
class Line:
    """One property of the judge. ``value`` is None if this material cannot measure it; such a line does not fail."""

    name: str
    value: float | None
    limit: float
    at_most: bool
    meaning: str
    samples: int

    @property
    def passed(self) -> bool:
        if self.value is None:
            return True
        return self.value <= self.limit if self.at_most else self.value >= self.limit


@dataclass(frozen=True, slots=True)
class Certificate:
    """The latest examination of one judge."""

    certificate_id: str
    passed: bool
    lines: tuple[Line, ...]
    material: str
    groups: int
    created_at: datetime


async def keep(
    database: Database,
    identity: JudgeIdentity,
    lines: Sequence[Line],
    *,
    material: str,
    groups: int,
    calls: int,
    cost_usd: float,
) -> str:
    """Store an examination, passed or not; returns its id."""
    certificate_id = uuid.uuid4().hex
    await database.pool.execute(
        "INSERT INTO hindsight.certificates (certificate_id, judge, rubric, rubric_version, prompt_version, material,"
        " passed, lines, groups, calls, cost_usd) VALUES ($1, $2, $3, $4, $5, $6, $7, $8::jsonb, $9, $10, $11)",
        certificate_id,
        *(identity.judge, identity.rubric, identity.rubric_version, identity.prompt_version, material),
        *(all(line.passed for line in lines), msgspec.json.encode(lines).decode(), groups, calls, cost_usd),
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
    return None if row is None else msgspec.convert({**row, "lines": msgspec.json.decode(row["lines"])}, Certificate)
