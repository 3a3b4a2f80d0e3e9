"""Advice as the page shows it: how many were shown, taken and right, and what it was worth against getting none."""

from __future__ import annotations

from dataclasses import dataclass

from data_bridge.database import Database
from trainer.evidence import Interval
from trainer.ledger.advice import AdviceRow, StoredCalibration, list_advice, newest_calibration
from trainer.ledger.releases import serving
from trainer.statistics.shares import share_difference, share_interval


@dataclass(frozen=True, slots=True)
class AdviceReason:
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class ConfidenceBin:
    """Proposals with a confidence in one tenth, and how many of them were right."""

    low: float
    claimed: float
    right: float
    count: int


@dataclass(frozen=True, slots=True)
class AdviceBoard:
    """Of one model, all its releases together; the calibration is of the one that is promoted."""

    release: str | None
    asked: int
    shown: int
    taken: int
    taken_known: int
    """Of those shown, so many are known to have been taken or not."""
    right: Interval | None
    """The share of those shown that was right, where that is known."""
    control: int
    lift: Interval | None
    """How much oftener decisions were right with advice than without, between questions that could have had it."""
    p95_ms: float | None
    abstained: tuple[AdviceReason, ...]
    bins: tuple[ConfidenceBin, ...]
    calibration: StoredCalibration | None
    rows: tuple[AdviceRow, ...]


_COUNTS = """
SELECT count(*) AS asked, count(*) FILTER (WHERE state = 'shown') AS shown,
       count(*) FILTER (WHERE state = 'shown' AND taken) AS taken,
       count(*) FILTER (WHERE state = 'shown' AND taken IS NOT NULL) AS taken_known,
       count(*) FILTER (WHERE state = 'control') AS control,
       percentile_cont(0.95) WITHIN GROUP (ORDER BY latency_ms) FILTER (WHERE samples > 0) AS p95_ms
FROM hindsight.advice WHERE model = $1
"""
# Windows are the unit: decisions of one hour share what happened.
_BY_WINDOW = """
SELECT state, count(*) FILTER (WHERE "right") AS hits, count("right") AS known,
       count(*) FILTER (WHERE decision_right) AS decided_hits, count(decision_right) AS decided
FROM hindsight.advice WHERE model = $1 AND state IN ('shown', 'control') GROUP BY state, window_id
"""
_REASONS = """
SELECT reason, count(*) AS count FROM hindsight.advice WHERE model = $1 AND state = 'abstained'
GROUP BY reason ORDER BY count DESC, reason
"""
_BINS = """
SELECT least(floor(confidence * 10), 9)::int AS tenth, avg(confidence)::float8 AS claimed,
       avg("right"::int)::float8 AS share, count(*) AS count
FROM hindsight.advice WHERE model = $1 AND confidence IS NOT NULL AND "right" IS NOT NULL GROUP BY 1 ORDER BY 1
"""


async def advice_board(database: Database, model: str, target: float) -> AdviceBoard:
    pool = database.pool
    counts = await pool.fetchrow(_COUNTS, model)
    assert counts is not None
    windows = await pool.fetch(_BY_WINDOW, model)
    shown, control = ([row for row in windows if row["state"] == state] for state in ("shown", "control"))
    promotion = await serving(database, model)
    release = None if promotion is None else promotion.release.name
    return AdviceBoard(
        release=release,
        **counts,
        right=share_interval([row["hits"] for row in shown], [row["known"] for row in shown]),
        lift=share_difference(
            [(row["decided_hits"], row["decided"]) for row in shown if row["decided"]],
            [(row["decided_hits"], row["decided"]) for row in control if row["decided"]],
        ),
        abstained=tuple(AdviceReason(**row) for row in await pool.fetch(_REASONS, model)),
        bins=tuple(
            ConfidenceBin(row["tenth"] / 10, row["claimed"], row["share"], row["count"])
            for row in await pool.fetch(_BINS, model)
        ),
        calibration=None if release is None else await newest_calibration(database, model, release, target),
        rows=tuple(await list_advice(database, model, limit=50)),
    )
