"""The CPU backend as the pipeline sees it: ART's protocol underneath, batches, verdicts and reasons on top."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from data_bridge.errors import BackendError
from trainer.config.sections import TrainSettings
from trainer.config.sources import public_values
from trainer.inference.checkpoints import StoredStep
from trainer.train.backends.base import PreparedBatch, Submitted
from trainer.train.backends.cpu_art import ArtCpuBackend
from trainer.train.backends.prepare import prepare
from trainer.types import Batch, Checkpoint, StepResult

if TYPE_CHECKING:
    import art

_RECORDED = (
    "learning_rate", "groups_per_step", "loss", "epsilon", "epsilon_high", "importance_level", "kl", "scale_rewards",
    "max_grad_norm", "lora_rank", "updates", "warm_start", "entropy_bonus", "purposes", "foreign", "seed",
)  # fmt: skip


class CpuBackend:
    """Trains ``settings.model`` on this machine. A receipt is not needed: the checkpoint itself names its batch."""

    name = "cpu"

    def __init__(self, settings: TrainSettings) -> None:
        self._settings = settings
        self._backend = ArtCpuBackend(
            settings.home,
            rank=settings.lora_rank,
            seed=settings.seed,
            threads=settings.threads,
            serve_url=settings.serve_url,
        )
        self._store = self._backend.store_of(settings.model)
        self._model: art.TrainableModel | None = None

    async def open(self) -> int:
        # Otherwise importing art makes litellm ask the network for a price list.
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        import art

        settings = self._settings
        self._model = art.TrainableModel(
            name=settings.model,
            project=settings.wandb_project,
            base_model=settings.base_model,
            base_path=str(settings.home / "art"),
        )
        await self._model.register(self._backend)
        return await self.current_step()

    async def current_step(self) -> int:
        newest = self._store.newest()
        return 0 if newest is None else newest.step

    def checkpoint(self, step: int) -> Checkpoint:
        location = self._store.path(step) if step else self._backend.trainer.base_directory()
        return Checkpoint(self._settings.model, step, self._settings.base_model, self.name, str(location.resolve()))

    async def prepare(self, batch: Batch) -> PreparedBatch:
        return await prepare(batch, self._settings, scorer=self._backend, min_spread=self._settings.min_spread)

    async def train(self, prepared: PreparedBatch, *, on_submitted: Submitted) -> StepResult:
        settings, batch_id = self._settings, prepared.batch.batch_id
        if prepared.trainable_tokens == 0:
            raise BackendError(_why_nothing(prepared))
        await on_submitted(f"cpu:{batch_id}")
        is_warm_start = await self.current_step() < settings.warm_start
        result = await self._backend.train(
            self._registered(),
            prepared.groups,
            learning_rate=settings.learning_rate,
            loss=settings.loss,
            epsilon=settings.epsilon if settings.loss == "ppo" else None,
            epsilon_high=settings.epsilon_high,
            importance_sampling_level=settings.importance_level,
            kl_penalty_coef=settings.kl,
            scale_rewards=settings.scale_rewards,
            max_grad_norm=settings.max_grad_norm,
            entropy_bonus=settings.entropy_bonus,
            updates=settings.updates,
            only_good=is_warm_start,
            batch_id=batch_id,
            config={key: value for key, value in public_values(settings).items() if key in _RECORDED},
            known_metrics=prepared.metrics,
        )
        return self._result(self._store.read(result.step))

    async def settle(self, batch_id: str, job_id: str | None, policy_step: int) -> StepResult | None:
        stored = self._store.of_batch(batch_id)
        return None if stored is None else self._result(stored)

    async def remove(self, steps: Sequence[int]) -> list[int]:
        return self._store.remove(steps)

    async def close(self) -> None:
        await self._backend.close()

    def _result(self, stored: StoredStep) -> StepResult:
        return StepResult(self.checkpoint(stored.step), stored.trainable_tokens, dict(stored.metrics))

    def _registered(self) -> art.TrainableModel:
        if self._model is None:
            raise BackendError("The CPU backend was not opened: call open() first.")
        return self._model


def _why_nothing(prepared: PreparedBatch) -> str:
    reasons = Counter(exclusion.reason.value for exclusion in prepared.exclusions)
    counted = ", ".join(f"{number} {reason}" for reason, number in reasons.most_common()) or "the batch is empty"
    return (
        f"Batch {prepared.batch.batch_id} has no trainable token, so nothing was trained ({counted}): "
        "check --purposes, --foreign and the judge's scores."
    )
