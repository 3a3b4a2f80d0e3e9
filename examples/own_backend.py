"""A training backend of your own, run through the real pipeline.

    python scripts/spawn_test_agents.py --home .hindsight-example
    python examples/own_backend.py --home .hindsight-example --model exported

A backend is the protocol `TrainingBackend` of `trainer/types.py`. This one trains no weights: its "checkpoint" is a
file with one line a decision (what the agent saw and said, and its advantage) for a trainer that lives elsewhere. It
keeps what the ledger relies on: a checkpoint is whole or absent, durable when `train` returns, and after a crash
`settle` knows whether a batch was taken. What it exports counts as trained, also in the game's own columns.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_bridge.errors import ConfigurationError
from trainer.cli.frame import database_of, run_command
from trainer.config.commands import TrainSettings
from trainer.inference.checkpoints import CheckpointStore, StoredStep
from trainer.ledger.model_lock import hold
from trainer.ledger.runs import Ledger
from trainer.progress import Silent
from trainer.run.session import Session
from trainer.run.train import plan_log, train_on_log
from trainer.run.training_run import TrainingRun
from trainer.train.selection import advantages
from trainer.train.settle import mend
from trainer.types import Batch, Checkpoint, PreparedBatch, StepResult, Submitted


class JsonlBackend:
    name = "jsonl"

    def __init__(self, settings: TrainSettings) -> None:
        self.model, self.purposes = settings.model.model, settings.judge.purposes
        self.store = CheckpointStore((settings.common.home / "exported" / self.model).resolve())

    async def open(self) -> int:
        return await self.current_step()

    async def current_step(self) -> int:
        newest = self.store.newest()
        return newest.step if newest else 0

    def checkpoint(self, step: int) -> Checkpoint:
        return Checkpoint(self.model, step, "none", self.name, str(self.store.path(step)))

    def lines(self, batch: Batch) -> list[dict[str, Any]]:
        """Only what the agent saw and said, and how it compared: hindsight stays with the judge."""
        return [
            {"messages": [one.as_dict() for one in call.seen()], "reply": call.response, "advantage": advantage}
            for judged in batch.groups
            for member, advantage in zip(judged.group.trajectories, advantages(judged.scores), strict=True)
            for call in member.llm_calls
            if call.purpose in self.purposes
        ]

    async def prepare(self, batch: Batch) -> PreparedBatch:
        words = sum(len(line["reply"].split()) for line in self.lines(batch))  # a model's backend counts tokens
        return PreparedBatch(batch, [], (), words)

    async def train(self, prepared: PreparedBatch, *, on_submitted: Submitted) -> StepResult:
        # A backend that sends the batch elsewhere calls on_submitted with a receipt before it does.
        stored = StoredStep(await self.current_step() + 1, prepared.batch.batch_id, prepared.trainable_tokens, "none")

        def write(folder: Path) -> None:
            with (folder / "decisions.jsonl").open("w") as file:
                file.writelines(json.dumps(line) + "\n" for line in self.lines(prepared.batch))

        self.store.save(stored, write)
        return StepResult(self.checkpoint(stored.step), stored.trainable_tokens)

    async def settle(self, batch_id: str, job_id: str | None, policy_step: int) -> StepResult | None:
        stored = self.store.of_batch(batch_id)
        return StepResult(self.checkpoint(stored.step), stored.trainable_tokens) if stored else None

    async def remove(self, steps: Sequence[int]) -> list[int]:
        return self.store.remove(steps)

    async def close(self) -> None: ...


async def work(settings: TrainSettings) -> int:
    if settings.run.dry_run:
        raise ConfigurationError("--dry-run is not for this program: `train_mmo.py --dry-run` prints the same plan.")
    backend = JsonlBackend(settings)
    async with database_of(settings, migrate=True) as database, hold(database, backend.model) as lock:
        ledger = Ledger(database, settings.common.home)
        await mend(ledger, lock, backend, settings.training.stop_on)  # settles what a crash left
        plan = await plan_log(settings, database, ledger)
        session = Session(settings, database, ledger, lock, backend, "none", Silent(), asyncio.Event())
        await train_on_log(session, plan, show)
    return 0


async def show(run: TrainingRun) -> None:
    """Where a model would be evaluated: a file answers nobody, so there is nothing to compare or to promote."""
    done, newest = run.progress, run.session.backend.checkpoint(run.progress.step)
    print(f"{done.groups_judged} groups judged, {done.trainable_tokens} words exported in {done.steps} batches.")
    print(f"{newest.name}: {newest.location}")


if __name__ == "__main__":
    sys.exit(run_command(work, TrainSettings, None, prog="own_backend.py", description=__doc__))
