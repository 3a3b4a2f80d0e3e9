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
    role: str | None
    """As its row said when it was trained; null if it named none."""
    window_id: str
    model: str
    run_id: str
    step: int
    batch_id: str
    score: float
    at: datetime
    validity: float | None
    """The part of the credit for a valid decision; this and the following are null where no history was kept, and
    means over its decisions where each had credit of its own."""
    decision: float | None
    """The part for the decision itself."""
    weight: float | None
    pattern_weight: float | None
    """More than 1 where its group shows an error pattern, less where another of its step does."""
    advantage: float | None


_HISTORY = """
SELECT t.trajectory_id, t.agent_id, t.role, t.window_id, t.model, b.run_id, b.step, b.batch_id, t.score,
       b.finished_at AS at, r.validity, r.decision, r.weight, r.pattern_weight,
       r.advantage
  FROM hindsight.batch_trajectories t JOIN hindsight.batches b USING (batch_id)
  LEFT JOIN LATERAL (
    SELECT avg(r.validity) AS validity, avg(r.decision) AS decision, avg(r.weight) AS weight,
           avg(r.pattern_weight) AS pattern_weight, avg(r.advantage) AS advantage
      FROM hindsight.rewards r WHERE r.batch_id = t.batch_id AND r.trajectory_id = t.trajectory_id) AS r ON true
 WHERE b.state = 'trained' AND NOT t.released AND b.finished_at IS NOT NULL
   AND ($1::text IS NULL OR t.agent_id = $1) AND ($2::text IS NULL OR t.role = $2)
   AND ($3::text IS NULL OR t.model = $3)
   AND ($4::timestamptz IS NULL OR (b.finished_at, b.batch_id, t.trajectory_id) < ($4, $5, $6))
 ORDER BY b.finished_at DESC, b.batch_id DESC, t.trajectory_id DESC LIMIT $7
"""


async def reward_history(
    database: Database,
    *,
    agent_id: str | None = None,
    role: str | None = None,
    model: str | None = None,
    before: tuple[datetime, str, str] | None = None,
    limit: int = 50,
) -> list[RewardRow]:
    """Rewards, the latest first; ``before``: time, batch and trajectory of the last one on the page before."""
    rows = await database.pool.fetch(_HISTORY, agent_id, role, model, *(before or (None, None, None)), limit)
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
class RoleRewards:
    role: str
    agents: int
    rewards: int
    mean: float
    spread: float


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
    roles: tuple[RoleRewards, ...]
    weeks: tuple[RewardWeek, ...]
    luck_share: float | None
    """How much of the differences between scores with hindsight is luck; None without verdicts in two passes."""
    two_pass_scores: int
    """Scores that the share of luck was measured on."""
    agent_share: float | None
    """Share of the variance of scores that stays with the agent; None with too few rewards to say."""


_AGENTS = """
SELECT t.agent_id, count(*) AS rewards, avg(t.score) AS mean, coalesce(stddev_pop(t.score), 0) AS spread,
       min(b.finished_at) AS first, max(b.finished_at) AS last
  FROM hindsight.batch_trajectories t JOIN hindsight.batches b USING (batch_id)
 WHERE b.state = 'trained' AND NOT t.released AND b.finished_at IS NOT NULL AND t.model = $1
 GROUP BY 1 ORDER BY 3 DESC, 1 LIMIT 200
"""
_ROLES = """
SELECT t.role, count(DISTINCT t.agent_id) AS agents, count(*) AS rewards, avg(t.score) AS mean,
       coalesce(stddev_pop(t.score), 0) AS spread
  FROM hindsight.batch_trajectories t JOIN hindsight.batches b USING (batch_id)
 WHERE b.state = 'trained' AND NOT t.released AND b.finished_at IS NOT NULL AND t.model = $1 AND t.role IS NOT NULL
 GROUP BY 1 ORDER BY 4 DESC, 1 LIMIT 50
"""
_LUCK = """
WITH keys AS (SELECT DISTINCT t.verdict_key FROM hindsight.batch_trajectories t
                JOIN hindsight.batches b USING (batch_id)
               WHERE b.state = 'trained' AND NOT t.released AND t.model = $1),
     judged AS (SELECT v.verdict_key, v.order_number, one.blind, one.hindsight - one.blind AS luck
                  FROM hindsight.verdicts v JOIN keys USING (verdict_key),
                       jsonb_to_recordset(v.scores) AS one (blind float8, hindsight float8)
                 WHERE one.blind IS NOT NULL AND one.hindsight IS NOT NULL),
     centred AS (SELECT blind - avg(blind) OVER question AS decision, luck - avg(luck) OVER question AS luck
                   FROM judged WINDOW question AS (PARTITION BY verdict_key, order_number))
SELECT count(*) AS scores, sum(luck ^ 2) / nullif(sum(luck ^ 2) + sum(decision ^ 2), 0) AS share FROM centred
"""
"""Within a group the score with hindsight is what the decision was worth before it, plus luck: how the sum of squares
divides between the two."""
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
    roles = await pool.fetch(_ROLES, model)
    weeks = await pool.fetch(_WEEKS, model)
    luck = await pool.fetchrow(_LUCK, model)
    assert luck is not None
    scores = {row["agent_id"]: row["scores"] for row in await pool.fetch(_SCORES, model)}
    return RewardBoard(
        tuple(AgentRewards(**row) for row in agents),
        tuple(RoleRewards(**row) for row in roles),
        tuple(RewardWeek(**row) for row in reversed(weeks)),
        luck["share"],
        luck["scores"],
        agent_share(scores),
    )


def agent_share(scores: Mapping[str, Sequence[float]]) -> float | None:
    """The intraclass correlation of agents' scores, between 0 and 1. Pure.

    Scores of an agent that differ from its own mean are not its skill. Agents with one score say nothing about it.
    """
    several = [own for own in scores.values() if len(own) > 1]
    if len(several) < 2:
        return None
    within = fmean(pvariance(own) * len(own) / (len(own) - 1) for own in several)
    between = pvariance([fmean(own) for own in several]) * len(several) / (len(several) - 1)
    skill = max(0.0, between - within / fmean(len(own) for own in several))
    total = skill + within
    return skill / total if total > 0 else None
