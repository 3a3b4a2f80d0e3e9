"""What is happening now to one model: the run in hand, its latest steps, what was asked for, what agents use."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from data_bridge.database import Database
from trainer.ledger.commands import StartCommand, newest_start
from trainer.ledger.model_lock import holder_of

CURVE = 200
"""Steps that a curve shows."""


@dataclass(frozen=True, slots=True)
class ProgressFacts:
    """How far a run is, as its process last said; all unknown for a run of an earlier version."""

    stage: str = ""
    unit: str = ""
    step: int = 0
    steps: int = 0
    windows: int = 0
    windows_read: int = 0
    groups: int = 0
    groups_judged: int = 0
    groups_cached: int = 0
    groups_failed: int = 0
    cost_usd: float = 0.0
    max_cost: float | None = None
    share: float = 0.0
    seconds_left: float | None = None
    tokens_per_second: float = 0.0


@dataclass(frozen=True, slots=True)
class StepPoint:
    """One gradient step, as a point of the curves."""

    step: int
    run_id: str
    at: datetime
    reward: float | None
    reward_std: float | None
    kl: float | None
    entropy: float | None
    tokens_per_second: float | None
    trainable_tokens: float | None


@dataclass(frozen=True, slots=True)
class RunInHand:
    """The model's newest run."""

    run_id: str
    state: str
    backend: str
    base_model: str
    host: str
    pid: int
    attempts: int
    error: str | None
    started_at: datetime
    finished_at: datetime | None
    progress: ProgressFacts
    progress_at: datetime | None
    judge_calls: int
    cost_usd: float


@dataclass(frozen=True, slots=True)
class NowFacts:
    model: str
    at: datetime
    state: str
    """``idle``, ``waiting`` (asked for, no host yet), ``starting`` (a host took it) or ``training``."""
    holder: str | None
    run: RunInHand | None
    command: StartCommand | None
    steps: tuple[StepPoint, ...]
    serving: str | None
    canary: str | None
    models: tuple[str, ...] = field(default=())

    @property
    def is_busy(self) -> bool:
        return self.state != "idle"

    @property
    def latest(self) -> StepPoint | None:
        return self.steps[-1] if self.steps else None


_RUN = """
SELECT r.run_id, r.state, r.backend, r.base_model, r.host, r.pid, r.attempts, r.error, r.started_at, r.finished_at,
       r.progress::text, r.progress_at, c.judge_calls, c.cost_usd
  FROM hindsight.runs r, LATERAL (SELECT count(*) AS judge_calls, coalesce(sum(cost_usd), 0)::float8 AS cost_usd
       FROM hindsight.judge_calls j WHERE j.run_id = r.run_id) c
 WHERE r.model = $1 ORDER BY r.started_at DESC, r.run_id DESC LIMIT 1
"""
_POINT = """b.step, b.run_id, b.finished_at AS at, (b.metrics ->> 'reward')::float8 AS reward,
       (b.metrics ->> 'reward_std')::float8 AS reward_std, (b.metrics ->> 'kl')::float8 AS kl,
       (b.metrics ->> 'entropy')::float8 AS entropy,
       (b.metrics ->> 'tokens_per_second')::float8 AS tokens_per_second,
       coalesce((b.metrics ->> 'trainable_tokens')::float8, b.trainable_tokens) AS trainable_tokens"""
_STEPS = f"""
SELECT * FROM (SELECT {_POINT} FROM hindsight.batches b
               WHERE b.model = $1 AND b.state = 'trained' ORDER BY b.step DESC LIMIT $2) newest ORDER BY step
"""
_RUN_STEPS = f"""
SELECT {_POINT} FROM hindsight.batches b WHERE b.run_id = $1 AND b.state = 'trained' AND b.step > $2
 ORDER BY b.step LIMIT $3
"""
_USED = "SELECT state, model || '@step' || step AS name FROM hindsight.promotions WHERE model = $1 AND state = ANY($2)"


async def now_of(database: Database, model: str) -> NowFacts:
    """Everything from one snapshot. Events up to a position that a cursor had passed before are all in it."""
    async with (
        database.pool.acquire() as connection,
        connection.transaction(isolation="repeatable_read", readonly=True),
    ):
        at = await connection.fetchval("SELECT now()")
        holder = await holder_of(connection, model)
        command = await newest_start(connection, model)
        run = await connection.fetchrow(_RUN, model)
        steps = await connection.fetch(_STEPS, model, CURVE)
        used = {row["state"]: row["name"] for row in await connection.fetch(_USED, model, ["serving", "canary"])}
        models = await connection.fetch("SELECT DISTINCT model FROM hindsight.runs ORDER BY 1")
    return NowFacts(
        model=model,
        at=at,
        state=_state(holder, command),
        holder=holder,
        run=None if run is None else run_in_hand(run),
        command=command,
        steps=tuple(StepPoint(**row) for row in steps),
        serving=used.get("serving"),
        canary=used.get("canary"),
        models=tuple(row["model"] for row in models),
    )


def _state(holder: str | None, command: StartCommand | None) -> str:
    if holder is not None:
        return "training"
    return {"waiting": "waiting", "taken": "starting"}.get(command.state if command else "", "idle")


def run_in_hand(row: Any) -> RunInHand:
    said = msgspec.json.decode(row["progress"])
    return RunInHand(**{**row, "progress": msgspec.convert(said, ProgressFacts)})


async def steps_of(database: Database, run_id: str, *, after: int = 0, limit: int = CURVE) -> list[StepPoint]:
    """The steps of a run above ``after``, in order."""
    return [StepPoint(**row) for row in await database.pool.fetch(_RUN_STEPS, run_id, after, limit)]
