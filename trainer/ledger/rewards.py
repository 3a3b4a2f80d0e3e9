"""The reward history in Postgres: stored with the batch before it is sent, so a resume neither loses nor changes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import msgspec

from data_bridge.database import Database
from trainer.rewards import CreditRule, Graded, MemberReward, RewardHistory

_READ = (
    "trajectory_id",
    "score",
    "uncertainty",
    "answer",
    "valid_share",
    "whose",
    "baseline",
    "step",
    "potential",
    "ahead",
    "emphasis",
)
_MADE = ("validity", "decision", "weight", "shaped", "pattern_weight", "credit", "advantage")
_COLUMNS = ("place", "group_id", *_READ, *_MADE)


@dataclass(frozen=True, slots=True)
class StoredHistory:
    """The reward history of one step, beside what the batch itself says of its verdicts."""

    step: int
    batch_id: str
    history: RewardHistory | None
    """None for a batch from before there was one, and of a backend with rewards of its own."""
    scores: dict[str, float]
    """The verdicts of the groups that were trained, by trajectory."""
    trained: frozenset[str]
    """The trajectories whose own tokens were trained."""


async def store_history(connection: Any, batch_id: str, members: Sequence[MemberReward]) -> None:
    """Store what a batch's members are credited with, in the transaction that stores the batch."""
    rows = [
        (
            *(batch_id, number, one.place, one.group_id),
            *(getattr(one.graded, name) for name in _READ),
            *(getattr(one, name) for name in _MADE),
        )
        for number, one in enumerate(members)
    ]
    places = ", ".join(f"${number}" for number in range(1, len(_COLUMNS) + 3))
    await connection.executemany(
        f"INSERT INTO hindsight.rewards (batch_id, number, {', '.join(_COLUMNS)}) VALUES ({places})", rows
    )


_REMEMBERED = 4_096
"""Members that a running mean is taken over: the newest."""
_CAUTION = 16
"""As many members at the mean of all are added to each agent or role: two good hours make no baseline."""


async def running_means(source: Any, model: str) -> tuple[dict[str, float], float]:
    """The mean score of each agent or role that has a baseline, and that of all, over what was trained last."""
    rows = await source.fetch(
        "SELECT r.whose, r.score FROM hindsight.rewards r JOIN hindsight.batches b USING (batch_id)"
        " WHERE b.model = $1 AND b.state = 'trained' AND r.whose <> '' ORDER BY b.step DESC, r.number LIMIT $2",
        *(model, _REMEMBERED),
    )
    return means_of([(row["whose"], row["score"]) for row in rows])


def means_of(scored: Sequence[tuple[str, float]]) -> tuple[dict[str, float], float]:
    """The mean score of each agent or role, drawn towards that of all, and that of all. Pure."""
    if not scored:
        return {}, 0.0
    usual = fmean(score for _, score in scored)
    scores: dict[str, list[float]] = {}
    for whose, score in scored:
        scores.setdefault(whose, []).append(score)
    return {whose: fmean([*own, *[usual] * _CAUTION]) for whose, own in scores.items()}, usual


async def history_of_step(database: Database, model: str, step: int) -> StoredHistory | None:
    """The reward history of a step; None if the ledger has no such step."""
    batch = await database.pool.fetchrow(
        "SELECT b.batch_id, to_jsonb(b) ->> 'credit_rule' AS rule, b.groups::text FROM hindsight.checkpoints c"
        " JOIN hindsight.batches b USING (batch_id) WHERE c.model = $1 AND c.step = $2",
        *(model, step),
    )
    if batch is None:
        return None
    members = await database.pool.fetch(
        "SELECT trajectory_id, score, has_tokens FROM hindsight.batch_trajectories WHERE batch_id = $1",
        batch["batch_id"],
    )
    history = None
    if batch["rule"] is not None:
        rows = await database.pool.fetch(
            f"SELECT {', '.join(_COLUMNS)} FROM hindsight.rewards WHERE batch_id = $1 ORDER BY number",
            batch["batch_id"],
        )
        rule = msgspec.json.decode(batch["rule"], type=CreditRule)
        history = RewardHistory(rule, tuple(map(_member, rows)))
    return StoredHistory(
        step,
        batch["batch_id"],
        history,
        {row["trajectory_id"]: row["score"] for row in members},
        frozenset(row["trajectory_id"] for row in members if row["has_tokens"]),
    )


def _member(row: Any) -> MemberReward:
    graded = Graded(**{name: row[name] for name in _READ})
    return MemberReward(row["place"], row["group_id"], graded, **{name: row[name] for name in _MADE})
