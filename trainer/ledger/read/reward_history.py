"""Which reward each trained trajectory got, by agent: as it was trained, from the batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from statistics import fmean, pvariance

from data_bridge.database import Database


@dataclass(frozen=True, slots=True)
class RewardRow:
    """The judge's score of one trajectory in one batch."""

    trajectory_id: str
    agent_id: str
    window_id: str
    model: str
    run_id: str
    step: int
    batch_id: str
    score: float
    at: datetime
    validity: float | None
    """The part of the credit for a valid decision; this and the following are null where no history was kept."""
    decision: float | None
    """The part for the decision itself."""
    weight: float | None
    advantage: float | None


_HISTORY = """
SELECT t.trajectory_id, t.agent_id, t.window_id, t.model, b.run_id, b.step, b.batch_id, t.score, b.finished_at AS at,
       r.validity, r.decision, r.weight, r.advantage
  FROM hindsight.batch_trajectories t JOIN hindsight.batches b USING (batch_id)
  LEFT JOIN hindsight.rewards r ON r.batch_id = t.batch_id AND r.trajectory_id = t.trajectory_id
 WHERE b.state = 'trained' AND NOT t.released AND b.finished_at IS NOT NULL
   AND ($1::text IS NULL OR t.agent_id = $1) AND ($2::text IS NULL OR t.model = $2)
   AND ($3::timestamptz IS NULL OR (b.finished_at, b.batch_id, t.trajectory_id) < ($3, $4, $5))
 ORDER BY b.finished_at DESC, b.batch_id DESC, t.trajectory_id DESC LIMIT $6
"""


async def reward_history(
    database: Database,
    *,
    agent_id: str | None = None,
    model: str | None = None,
    before: tuple[datetime, str, str] | None = None,
    limit: int = 50,
) -> list[RewardRow]:
    """Rewards, the latest first; ``before``: time, batch and trajectory of the last one on the page before."""
    rows = await database.pool.fetch(_HISTORY, agent_id, model, *(before or (None, None, None)), limit)
    return [RewardRow(**row) for row in rows]


@dataclass(frozen=True, slots=True)
class AgentRewards:
    agent_id: str
    rewards: int
    mean: float
    spread: float
    first: datetime
    last: datetime


@dataclass(frozen=True, slots=True)
class RewardWeek:
    """Drift: the mean of all rewards in the windows of a week."""

    week: date
    rewards: int
    mean: float
    spread: float


@dataclass(frozen=True, slots=True)
class RewardBoard:
    agents: tuple[AgentRewards, ...]
    weeks: tuple[RewardWeek, ...]
    luck_share: float | None
    """Share of the variance of scores that does not stay with the agent; None with too few rewards to say."""


_AGENTS = """
SELECT t.agent_id, count(*) AS rewards, avg(t.score) AS mean, coalesce(stddev_pop(t.score), 0) AS spread,
       min(b.finished_at) AS first, max(b.finished_at) AS last
  FROM hindsight.batch_trajectories t JOIN hindsight.batches b USING (batch_id)
 WHERE b.state = 'trained' AND NOT t.released AND b.finished_at IS NOT NULL AND t.model = $1
 GROUP BY 1 ORDER BY 3 DESC, 1 LIMIT 200
"""
_WEEKS = """
SELECT date_trunc('week', to_date(left(t.window_id, 10), 'YYYY-MM-DD'))::date AS week, count(*) AS rewards,
       avg(t.score) AS mean, coalesce(stddev_pop(t.score), 0) AS spread
  FROM hindsight.batch_trajectories t JOIN hindsight.batches b USING (batch_id)
 WHERE b.state = 'trained' AND NOT t.released AND t.model = $1 AND t.window_id ~ '^\\d{4}-\\d{2}-\\d{2}T'
 GROUP BY 1 ORDER BY 1 DESC LIMIT 26
"""
_SCORES = """
SELECT t.agent_id, array_agg(t.score) AS scores FROM hindsight.batch_trajectories t
  JOIN hindsight.batches b USING (batch_id)
 WHERE b.state = 'trained' AND NOT t.released AND t.model = $1 GROUP BY 1
"""


async def reward_board(database: Database, model: str) -> RewardBoard:
    pool = database.pool
    agents = await pool.fetch(_AGENTS, model)
    weeks = await pool.fetch(_WEEKS, model)
    scores = {row["agent_id"]: row["scores"] for row in await pool.fetch(_SCORES, model)}
    return RewardBoard(
        tuple(AgentRewards(**row) for row in agents),
        tuple(RewardWeek(**row) for row in reversed(weeks)),
        luck_share(scores),
    )


def luck_share(scores: Mapping[str, Sequence[float]]) -> float | None:
    """One minus the intraclass correlation of agents' scores, between 0 and 1. Pure.

    Scores of an agent that differ from its own mean are not its skill. Agents with one score say nothing about it.
    """
    several = [own for own in scores.values() if len(own) > 1]
    if len(several) < 2:
        return None
    within = fmean(pvariance(own) * len(own) / (len(own) - 1) for own in several)
    between = pvariance([fmean(own) for own in several]) * len(several) / (len(several) - 1)
    skill = max(0.0, between - within / fmean(len(own) for own in several))
    total = skill + within
    return within / total if total > 0 else None
