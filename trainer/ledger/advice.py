"""Every proposal, whether it was shown and taken, what came of it, and what confidence is calibrated on.

A row is written once, before its answer leaves the process; the same question is the same row. What came of it is
written once too: what the game's log and facts say is not overwritten by what anybody claims later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec

from data_bridge.database import Database
from data_bridge.models import ChatMessage
from trainer.ledger.batches import as_json
from trainer.statistics.confidence import Calibration, Label

AdviceState = Literal["shown", "abstained", "control"]


@dataclass(frozen=True, slots=True)
class NewAdvice:
    """A question and what was made of it, as it is stored."""

    advice_id: str
    digest: str
    model: str
    release: str
    agent_id: str
    window_id: str
    asked_by: str
    is_vouched: bool
    messages: Sequence[ChatMessage]
    state: AdviceState
    reason: str = ""
    proposal: str | None = None
    answer: str | None = None
    explanation: str = ""
    agreement: float | None = None
    likelihood: float | None = None
    score: float | None = None
    confidence: float | None = None
    threshold: float | None = None
    calibration_id: int | None = None
    samples: int = 0
    latency_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class AdviceRow:
    """A stored proposal and what is known of it."""

    advice_id: str
    at: datetime
    model: str
    release: str
    agent_id: str
    window_id: str
    asked_by: str
    is_vouched: bool
    state: str
    reason: str
    proposal: str | None
    answer: str | None
    explanation: str
    score: float | None
    confidence: float | None
    threshold: float | None
    taken: bool | None
    taken_by: str | None
    trajectory_id: str | None
    right: bool | None
    right_by: str | None
    decision_right: bool | None
    settled_at: datetime | None
    returned: str
    messages: list[ChatMessage]


_COLUMNS = """
advice_id, at, model, release, agent_id, window_id, asked_by, is_vouched, state, reason, proposal, answer, explanation,
score, confidence, threshold, taken, taken_by, trajectory_id, "right", right_by, decision_right, settled_at, returned,
messages::text AS messages
"""
_UNANSWERED = ("model_unavailable", "busy")
"""Reasons with which a question counts as not asked yet."""


def row_of(row: Any) -> AdviceRow:
    return AdviceRow(**{**row, "messages": msgspec.json.decode(row["messages"], type=list[ChatMessage])})


async def known_advice(database: Database, digest: str) -> AdviceRow | None:
    """The answer that this question got before; None if it got none."""
    row = await database.pool.fetchrow(
        f"SELECT {_COLUMNS} FROM hindsight.advice WHERE digest = $1 AND reason <> ALL($2)", digest, list(_UNANSWERED)
    )
    return None if row is None else row_of(row)


_VALUES = (
    *("digest", "model", "release", "agent_id", "window_id", "asked_by", "is_vouched", "messages", "state", "reason"),
    *("proposal", "answer", "explanation", "agreement", "likelihood", "score", "confidence", "threshold"),
    *("calibration_id", "samples", "latency_ms"),
)
_INSERT = f"""
INSERT INTO hindsight.advice AS a (advice_id, {", ".join(_VALUES)})
VALUES ($1, {", ".join(f"${n}{'::jsonb' if name == 'messages' else ''}" for n, name in enumerate(_VALUES, 2))})
ON CONFLICT (digest) DO UPDATE
    SET ({", ".join(_VALUES)}, at) = ROW ({", ".join(f"EXCLUDED.{n}" for n in _VALUES)}, now())
    WHERE a.reason = ANY(${len(_VALUES) + 2})
RETURNING {_COLUMNS}
"""


async def store_advice(database: Database, new: NewAdvice) -> AdviceRow:
    """Store ``new``; if another request had the same question answered meanwhile, that answer counts."""
    values = [getattr(new, name) for name in _VALUES]
    values[_VALUES.index("messages")] = as_json(list(new.messages))
    row = await database.pool.fetchrow(_INSERT, new.advice_id, *values, list(_UNANSWERED))
    if row is not None:
        return row_of(row)
    stored = await known_advice(database, new.digest)
    assert stored is not None, "a conflict is with a row that stays"
    return stored


async def find_advice(database: Database, advice_id: str) -> AdviceRow | None:
    row = await database.pool.fetchrow(f"SELECT {_COLUMNS} FROM hindsight.advice WHERE advice_id = $1", advice_id)
    return None if row is None else row_of(row)


async def list_advice(
    database: Database, model: str, *, before: tuple[datetime, str] | None = None, limit: int = 50
) -> list[AdviceRow]:
    """The latest first."""
    rows = await database.pool.fetch(
        f"SELECT {_COLUMNS} FROM hindsight.advice WHERE model = $1"
        " AND ($2::timestamptz IS NULL OR (at, advice_id) < ($2, $3)) ORDER BY at DESC, advice_id DESC LIMIT $4",
        *(model, *(before or (None, None)), limit),
    )
    return [row_of(row) for row in rows]


# What came of it


async def note_taken(
    database: Database, advice_id: str, taken: bool, by: Literal["agent", "game"], trajectory_id: str | None
) -> None:
    """What somebody says of it. The game's word replaces an agent's, the log's is replaced by nobody's."""
    await database.pool.execute(
        "UPDATE hindsight.advice SET taken = $2, taken_by = $3, trajectory_id = coalesce(trajectory_id, $4)"
        " WHERE advice_id = $1 AND (taken_by IS NULL OR taken_by = 'agent' OR (taken_by = 'game' AND $3 = 'game'))",
        *(advice_id, taken, by, trajectory_id),
    )


async def note_returned(database: Database, advice_id: str, trajectory_id: str | None, state: str) -> None:
    """What became of the proposal as a trajectory of the log."""
    await database.pool.execute(
        "UPDATE hindsight.advice SET returned = $3, trajectory_id = coalesce(trajectory_id, $2) WHERE advice_id = $1",
        *(advice_id, trajectory_id, state),
    )


@dataclass(frozen=True, slots=True)
class Finding:
    """What the game, or its facts and log, say of one proposal. None: not known."""

    advice_id: str
    right: bool | None
    decision_right: bool | None
    taken: bool | None = None
    trajectory_id: str | None = None
    is_logged: bool = False
    """Whether the log has the very same messages, so that the game vouches for the question."""
    is_final: bool = True


_SETTLE = """
UPDATE hindsight.advice SET
    "right" = CASE WHEN right_by = 'game' THEN "right" ELSE coalesce($2, "right") END,
    right_by = CASE WHEN right_by = 'game' OR $2 IS NULL THEN right_by ELSE $8 END,
    decision_right = CASE WHEN decision_by = 'game' THEN decision_right ELSE coalesce($3, decision_right) END,
    decision_by = CASE WHEN decision_by = 'game' OR $3 IS NULL THEN decision_by ELSE $8 END,
    taken = coalesce($4, taken), taken_by = CASE WHEN $4 IS NULL THEN taken_by ELSE 'log' END,
    trajectory_id = coalesce(trajectory_id, $5), is_vouched = is_vouched OR $6,
    settled_at = CASE WHEN $7 THEN coalesce(settled_at, now()) ELSE settled_at END
WHERE advice_id = $1
"""
_LABEL = """
INSERT INTO hindsight.advice_labels (model, release, source, key, window_id, score, is_right)
SELECT model, release, 'advice', advice_id, window_id, score, "right" FROM hindsight.advice
WHERE advice_id = $1 AND "right" IS NOT NULL AND score IS NOT NULL AND is_vouched
ON CONFLICT (model, release, key) DO UPDATE SET is_right = EXCLUDED.is_right
    WHERE advice_labels.is_right <> EXCLUDED.is_right
"""


async def settle_advice(database: Database, findings: Sequence[Finding], by: Literal["game", "facts"]) -> None:
    """Store what came of proposals, and what confidence learns from it, together."""
    async with database.pool.acquire() as connection, connection.transaction():
        for one in findings:
            await connection.execute(
                _SETTLE,
                *(one.advice_id, one.right, one.decision_right, one.taken, one.trajectory_id, one.is_logged),
                *(one.is_final, by),
            )
            await connection.execute(_LABEL, one.advice_id)


async def unsettled(database: Database, model: str, *, closed_before: str, windows: int) -> dict[str, list[AdviceRow]]:
    """Proposals that nothing is known of yet, by window: of some windows that have ended, the oldest first."""
    rows = await database.pool.fetch(
        f"SELECT {_COLUMNS} FROM hindsight.advice WHERE model = $1 AND settled_at IS NULL AND window_id = ANY("
        "   SELECT DISTINCT window_id FROM hindsight.advice WHERE model = $1 AND settled_at IS NULL"
        "     AND window_id < $2 ORDER BY window_id LIMIT $3) ORDER BY window_id, advice_id",
        *(model, closed_before, windows),
    )
    found: dict[str, list[AdviceRow]] = {}
    for row in rows:
        found.setdefault(row["window_id"], []).append(row_of(row))
    return found


async def forget_advice(database: Database, older_than: timedelta) -> int:
    """Delete proposals older than that; returns how many. What they taught is a score and a bit, and stays."""
    status: str = await database.pool.execute(
        "DELETE FROM hindsight.advice WHERE at < now() - $1::interval", older_than
    )
    return int(status.rpartition(" ")[2])


# What confidence is calibrated on


async def add_labels(database: Database, model: str, release: str, labels: Mapping[str, Label]) -> int:
    """Store what the release got right at decision points of windows after its training; returns how many are new."""
    rows = await database.pool.fetch(
        "INSERT INTO hindsight.advice_labels (model, release, source, key, window_id, score, is_right)"
        " SELECT $1, $2, 'held_out', * FROM unnest($3::text[], $4::text[], $5::float8[], $6::bool[])"
        " ON CONFLICT (model, release, key) DO NOTHING RETURNING label_id",
        *(model, release, list(labels), [one.window_id for one in labels.values()]),
        *([one.score for one in labels.values()], [one.is_right for one in labels.values()]),
    )
    return len(rows)


async def labels_of(database: Database, model: str, release: str, memory: timedelta, most: int) -> list[Label]:
    """One label of each window within ``memory`` of the newest, the oldest first; which one, a hash decides."""
    rows = await database.pool.fetch(
        "SELECT * FROM (SELECT DISTINCT ON (window_id) window_id, score, is_right FROM hindsight.advice_labels"
        "   WHERE model = $1 AND release = $2 ORDER BY window_id DESC, md5(key || label_id) LIMIT $3) newest"
        " ORDER BY window_id",
        *(model, release, most),
    )
    labels = [Label(**row) for row in rows]
    if not labels:
        return []
    from data_bridge.window_ids import start_of

    first = start_of(labels[-1].window_id) - memory
    return [one for one in labels if start_of(one.window_id) > first]


@dataclass(frozen=True, slots=True)
class StoredCalibration:
    """A calibration of one release for one wanted precision."""

    calibration_id: int
    release: str
    target: float
    calibration: Calibration
    error: float | None
    last_label: int
    created_at: datetime


async def newest_calibration(
    database: Database, model: str, release: str, target: float | None = None
) -> StoredCalibration | None:
    row = await database.pool.fetchrow(
        "SELECT calibration_id, release, target, labels, last_label, since, curve::text, threshold, precision_low,"
        " coverage, error, created_at FROM hindsight.advice_calibrations WHERE model = $1 AND release = $2"
        " AND ($3::float8 IS NULL OR target = $3) ORDER BY calibration_id DESC LIMIT 1",
        *(model, release, target),
    )
    if row is None:
        return None
    scores, shares = msgspec.json.decode(row["curve"], type=tuple[tuple[float, ...], tuple[float, ...]])
    found = Calibration(
        scores, shares, row["threshold"], row["precision_low"], row["coverage"], row["labels"], row["since"]
    )
    names = ("calibration_id", "release", "target", "error", "last_label", "created_at")
    return StoredCalibration(**{name: row[name] for name in names}, calibration=found)


async def last_change(database: Database, model: str, release: str) -> tuple[int, int]:
    """How many labels there are, and a number that grows with each one that is added or corrected."""
    row = await database.pool.fetchrow(
        "SELECT count(*) AS number, coalesce(sum(label_id * (1 + is_right::int)), 0)::bigint AS mark"
        " FROM hindsight.advice_labels WHERE model = $1 AND release = $2",
        *(model, release),
    )
    assert row is not None
    return row["number"], row["mark"]


async def store_calibration(
    database: Database, model: str, release: str, target: float, found: Calibration, error: float | None, mark: int
) -> None:
    await database.pool.execute(
        "INSERT INTO hindsight.advice_calibrations (model, release, target, labels, last_label, since, curve,"
        " threshold, precision_low, coverage, error) VALUES ($1, $2, $3, $4, $5, $6, $7::jsonb, $8, $9, $10, $11)",
        *(model, release, target, found.labels, mark, found.since, as_json([found.scores, found.shares])),
        *(found.threshold, found.precision_low, found.coverage, error),
    )
