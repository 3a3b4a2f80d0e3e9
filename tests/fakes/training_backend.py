"""A backend that trains nothing but keeps every promise of one: prepared batches, durable files, settling.

A checkpoint is a directory ``checkpoints/MODEL/STEP`` that appears by a rename; its ``batch.json`` says which batch
made it, which is how ``settle`` finds out after a crash.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from data_bridge.errors import BackendError
from data_bridge.quality import Exclusion, Reason
from trainer.rewards import RewardHistory
from trainer.train.credit import RULE, history_of
from trainer.types import Batch, Checkpoint, PreparedBatch, StepResult, Submitted

TOKENS_PER_CALL = 5


class FakeBackend:
    """``without_tokens``: trajectories with nothing to train. ``lose_step``: made, but the caller is never told."""

    def __init__(
        self,
        home: Path,
        *,
        model: str = "hindsight",
        name: str = "fake",
        seconds: float = 0.0,
        without_tokens: frozenset[str] = frozenset(),
        all_without_tokens: bool = False,
        lose_step: int | None = None,
        metrics: dict[str, float] | None = None,
    ) -> None:
        self.name = name
        self.folder = home / "checkpoints" / model
        self.model = model
        self.seconds = seconds
        self.without_tokens = without_tokens
        self.all_without_tokens = all_without_tokens
        self.lose_step = lose_step
        self.metrics = metrics or {"kl": 0.01, "entropy": 1.0, "loss": 0.5}
        self.on_step: Callable[[int], None] | None = None
        """Called when a step is under way."""
        self.prepared: list[Batch] = []
        self.trained: list[Batch] = []
        self.receipts: list[str] = []

    async def open(self) -> int:
        return await self.current_step()

    async def current_step(self) -> int:
        steps = [int(path.name) for path in self.folder.glob("[0-9]*")] if self.folder.is_dir() else []
        return max(steps, default=0)

    def checkpoint(self, step: int) -> Checkpoint:
        return Checkpoint(self.model, step, "tiny", self.name, str(self.folder / f"{step:04d}"))

    async def prepare(self, batch: Batch) -> PreparedBatch:
        self.prepared.append(batch)
        members = [member for judged in batch.groups for member in judged.group.trajectories]
        gone = list(batch.untrained)
        gone += [
            Exclusion(m.trajectory_id, m.agent_id, m.window_id, Reason.NO_TRAINABLE_TOKENS)
            for m in members
            if self.all_without_tokens or m.trajectory_id in self.without_tokens
        ]
        left = len(members) - len(gone)
        rule = replace(RULE, most_emphasis=batch.most_emphasis)
        history = history_of(batch.groups, rule, batch.baselines, emphasis=batch.emphasis)
        members_rewards = tuple(one for rewards in history for one in rewards)
        return PreparedBatch(
            batch, [], tuple(gone), TOKENS_PER_CALL * left, history=RewardHistory(rule, members_rewards)
        )

    async def train(self, prepared: PreparedBatch, *, on_submitted: Submitted) -> StepResult:
        receipt = f"job-{prepared.batch.batch_id}"
        self.receipts.append(receipt)
        await on_submitted(receipt)
        await asyncio.sleep(self.seconds)
        step = await self.current_step() + 1
        if self.on_step is not None:
            self.on_step(step)
        temporary = self.folder / f".{step:04d}.tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        (temporary / "batch.json").write_text(
            json.dumps({"batch": prepared.batch.batch_id, "tokens": prepared.trainable_tokens, "metrics": self.metrics})
        )
        os.rename(temporary, self.folder / f"{step:04d}")
        self.trained.append(prepared.batch)
        if step == self.lose_step:
            raise BackendError("The connection was lost after the step was made; run again.")
        return StepResult(self.checkpoint(step), prepared.trainable_tokens, dict(self.metrics))

    async def settle(self, batch_id: str, job_id: str | None, policy_step: int) -> StepResult | None:
        for path in sorted(self.folder.glob("[0-9]*")):
            made = json.loads((path / "batch.json").read_text())
            if made["batch"] == batch_id:
                return StepResult(self.checkpoint(int(path.name)), made["tokens"], made["metrics"])
        return None

    async def remove(self, steps: Sequence[int]) -> list[int]:
        found = [step for step in steps if (self.folder / f"{step:04d}").is_dir()]
        for step in found:
            shutil.rmtree(self.folder / f"{step:04d}")
        return found

    async def close(self) -> None: ...
