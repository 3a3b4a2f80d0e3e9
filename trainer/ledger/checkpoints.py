"""Checkpoints in the ledger: found by name, by step or as the newest, listed, and those old enough to be deleted."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from data_bridge.database import Database
from data_bridge.errors import ConfigurationError
from trainer.types import Checkpoint


@dataclass(frozen=True, slots=True)
class Listed:
    """A checkpoint as ``promote.py --list`` shows it."""

    checkpoint: Checkpoint
    state: str
    """The state of its latest promotion; without one ``refused``, ``undecided``, ``evaluated``, ``new``, or ``absent``
    if its files are not on this machine."""
    run_id: str
    batch_id: str
    trained_at: datetime
    windows: int
    """Windows in the batch that made it."""
    mean_score: float | None
    """The judge's mean score of what it was trained on."""
    gain: float | None
    gain_low: float | None
    gain_high: float | None
    reason: str
    parent_step: int
    """The step that it was trained from; 0 is the base model."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """A checkpoint that is another lineage's adapter (``--init-from``): no batch made it."""

    checkpoint: Checkpoint
    from_model: str
    from_step: int
    created_at: datetime

    @property
    def source(self) -> str:
        return f"{self.from_model}@step{self.from_step}"


async def keep_beginning(source: Any, point: Checkpoint, name: str) -> None:
    """``point`` is the checkpoint ``name`` of another lineage; stored once."""
    await source.execute(
        "INSERT INTO hindsight.beginnings (model, step, from_model, from_step, base_model, backend, location)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (model, step) DO NOTHING",
        *(point.model, point.step, *parse_checkpoint_name(name, point.model)),
        *(point.base_model, point.backend, point.location),
    )


async def beginning_at(source: Any, model: str, step: int) -> Beginning | None:
    """Where this checkpoint was taken over from; None if it was not, or if the ledger is from before that was kept."""
    if not await source.fetchval("SELECT to_regclass('hindsight.beginnings') IS NOT NULL"):
        return None
    row = await source.fetchrow("SELECT * FROM hindsight.beginnings WHERE model = $1 AND step = $2", model, step)
    return None if row is None else msgspec.convert({**row, "checkpoint": dict(row)}, Beginning)


def parse_checkpoint_name(name: str, default_model: str) -> tuple[str, int]:
    """``hindsight@step3``, ``step3`` or ``3`` → model and step. ConfigurationError says how to write it."""
    model, at, step = name.strip().rpartition("@")
    digits = step.removeprefix("step")
    if not digits.isdecimal() or (at and not model):
        raise ConfigurationError(f"{name!r} is not a checkpoint: write it as {default_model}@step3, or just 3.")
    return model or default_model, int(digits)


async def find_checkpoint(database: Database, model: str, step: int) -> Checkpoint:
    """A checkpoint of the ledger; step 0 is the base model. ConfigurationError if there is none."""
    return await checkpoint_at(database.pool, model, step)


async def checkpoint_at(source: Any, model: str, step: int) -> Checkpoint:
    """``find_checkpoint`` on a pool, or on a connection that is in a transaction."""
    row = await source.fetchrow(
        "SELECT model, step, base_model, backend, location FROM hindsight.checkpoints WHERE model = $1 AND step = $2",
        *(model, step),
    )
    if row is not None:
        return Checkpoint(**row)
    if (begun := await beginning_at(source, model, step)) is not None:
        return begun.checkpoint
    if step == 0:
        first = await source.fetchrow(
            "SELECT base_model, backend FROM hindsight.runs WHERE model = $1 ORDER BY started_at LIMIT 1", model
        )
        if first is not None:
            trained = "SELECT location FROM hindsight.checkpoints WHERE model = $1 ORDER BY step LIMIT 1"
            location = _at_step_0(await source.fetchval(trained, model), first["base_model"])
            return Checkpoint(model, 0, first["base_model"], first["backend"], location)
    known = await source.fetchval("SELECT max(step) FROM hindsight.checkpoints WHERE model = $1", model)
    available = "it has no checkpoint yet; train it first" if known is None else f"the newest is step {known}"
    raise ConfigurationError(f"Model {model!r} has no checkpoint of step {step}: {available}.")


def _at_step_0(trained: str | None, base_model: str) -> str:
    """W&B serves the untrained model as step 0 of the trained one; elsewhere it is the base model itself."""
    if trained is not None and trained.startswith("wandb-artifact:"):
        return re.sub(r":step\d+$", ":step0", trained)
    return base_model


async def named_checkpoint(database: Database, name: str | None, model: str) -> Checkpoint:
    """The checkpoint called ``name``, or the newest of ``model``. ConfigurationError if there is none."""
    if name is not None:
        return await find_checkpoint(database, *parse_checkpoint_name(name, model))
    step = await database.pool.fetchval("SELECT max(step) FROM hindsight.checkpoints WHERE model = $1", model)
    if step is None and (begun := await beginning_at(database.pool, model, 1)) is not None:
        return begun.checkpoint
    if step is None:
        raise ConfigurationError(
            f"Model {model!r} has no checkpoint yet in {database.label}: train it with `train_mmo.py`, "
            "or check --model."
        )
    return await find_checkpoint(database, model, step)


_LIST = """
SELECT c.model, c.step, c.base_model, c.backend, c.location, c.run_id, c.batch_id, c.created_at AS trained_at,
       b.windows, b.mean_score, e.gain, e.gain_low, e.gain_high, e.ruling, e.reasons,
       p.state, coalesce(p.outcome, p.reason) AS reason,
       coalesce((to_jsonb(c) ->> 'parent_step')::int, (SELECT max(o.step) FROM hindsight.checkpoints o
                                                        WHERE o.model = c.model AND o.step < c.step), 0) AS parent_step
FROM hindsight.checkpoints c
LEFT JOIN LATERAL (SELECT count(DISTINCT window_id) AS windows, avg(score) AS mean_score
                   FROM hindsight.batch_trajectories WHERE batch_id = c.batch_id) b ON true
LEFT JOIN LATERAL (SELECT gain, gain_low, gain_high, ruling, reasons FROM hindsight.evaluations
                   WHERE model = c.model AND candidate_step = c.step ORDER BY created_at DESC LIMIT 1) e ON true
LEFT JOIN LATERAL (SELECT state, outcome, reason FROM hindsight.promotions
                   WHERE model = c.model AND step = c.step ORDER BY promotion_id DESC LIMIT 1) p ON true
WHERE c.model = $1 ORDER BY c.step DESC
"""


_UNPROMOTED = {"refuse": "refused", "undecided": "undecided", "promote": "evaluated"}


def _state_of_unpromoted(location: str, ruling: str | None) -> str:
    if "://" not in location and not Path(location).is_dir():
        return "absent"
    return _UNPROMOTED.get(ruling or "", "new")


async def list_checkpoints(database: Database, model: str) -> list[Listed]:
    """Every checkpoint of a model, the newest first, with its origin and its latest state."""
    listed = []
    for row in await database.pool.fetch(_LIST, model):
        state = row["state"] or _state_of_unpromoted(row["location"], row["ruling"])
        reason = row["reason"] or "; ".join(row["reasons"] or ())
        fields = {**row, "checkpoint": dict(row), "state": state, "reason": reason}
        listed.append(msgspec.convert(fields, Listed))
    return listed


_OLD = """
SELECT model, step, base_model, backend, location FROM hindsight.checkpoints c
WHERE model = $1
  AND step <= (SELECT step FROM hindsight.checkpoints WHERE model = $1 ORDER BY step DESC OFFSET $2 LIMIT 1)
  AND NOT EXISTS (SELECT 1 FROM hindsight.promotions p WHERE p.model = c.model AND p.step = c.step
                  AND (p.serving_since IS NOT NULL OR p.state = 'canary'))
ORDER BY step
"""


async def old_checkpoints(connection: Any, model: str, *, keep: int) -> list[Checkpoint]:
    """All but the ``keep`` newest and those ever given to all agents or now a canary's, oldest first."""
    return [Checkpoint(**row) for row in await connection.fetch(_OLD, model, keep)]
