"""Rows of the ledger as a training run leaves them: checkpoints with their batches, windows and verdicts."""

from __future__ import annotations

import json
from pathlib import Path

from data_bridge.database import Database
from tests.builders import NOW, hours_before
from trainer.types import Checkpoint

RUN = "run-1"


async def insert_run(
    database: Database, *, run_id: str = RUN, model: str = "hindsight", backend: str = "serverless"
) -> None:
    await database.pool.execute(
        "INSERT INTO hindsight.runs (run_id, model, base_model, backend, state, fingerprint, settings, host, pid)"
        " VALUES ($1, $2, 'base', $3, 'done', 'fingerprint', $4::jsonb, 'host', 1) ON CONFLICT DO NOTHING",
        *(run_id, model, backend, json.dumps({"judge_model": "gpt-test", "learning_rate": 0.0007})),
    )


async def insert_checkpoint(
    database: Database,
    step: int,
    *,
    run_id: str = RUN,
    model: str = "hindsight",
    backend: str = "serverless",
    location: Path | str | None = None,
    windows: list[str] | None = None,
) -> Checkpoint:
    """Checkpoint ``step`` of ``model``, trained by one batch over ``windows`` with two agents each."""
    await insert_run(database, run_id=run_id, model=model, backend=backend)
    batch_id = f"{model}-batch-{step}"
    point = Checkpoint(model, step, "base", backend, str(location or f"wandb-artifact:///team/game/{model}:step{step}"))
    await database.pool.execute(
        "INSERT INTO hindsight.batches (batch_id, run_id, model, number, policy_step, state, groups, trainable_tokens,"
        " step, metrics) VALUES ($1, $2, $3, $4, $5, 'trained', '[]', 100, $4, '{\"reward\": 0.5}')",
        *(batch_id, run_id, model, step, step - 1),
    )
    for window_id in windows if windows is not None else hours_before(NOW, number=2):
        for agent, score in (("agent-1", 0.25), ("agent-2", 0.75)):
            await database.pool.execute(
                "INSERT INTO hindsight.batch_trajectories (batch_id, trajectory_id, model, agent_id, window_id,"
                " group_id, verdict_key, score) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
                *(batch_id, f"{window_id}/{agent}/{step}", model, agent, window_id, f"{window_id}/g{step}"),
                *(f"key-{window_id}-{step}", score),
            )
    await database.pool.execute(
        "INSERT INTO hindsight.checkpoints (model, step, run_id, batch_id, base_model, backend, location)"
        " VALUES ($1, $2, $3, $4, 'base', $5, $6)",
        *(model, step, run_id, batch_id, backend, point.location),
    )
    return point
