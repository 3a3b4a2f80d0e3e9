"""ART's ``Backend`` protocol on the CPU trainer: ``model.register(backend)``, then ``backend.train(model, groups)``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from data_bridge.art_converter import Scored, ScoreRequest
from data_bridge.errors import BackendError
from trainer.inference.checkpoints import CheckpointStore, store_of

if TYPE_CHECKING:
    import art
    from art.types import LocalTrainResult

    from trainer.train.backends.cpu_trainer import CpuTrainer

T = TypeVar("T")


class ArtCpuBackend:
    """Trains one ART model on this machine's CPU. All model work happens in one thread of its own."""

    def __init__(
        self,
        home: Path,
        *,
        rank: int = 16,
        seed: int = 0,
        threads: int = 0,
        serve_url: str = "http://127.0.0.1:8808/v1",
    ) -> None:
        self._home = home
        self._rank = rank
        self._seed = seed
        self._threads = threads
        self._serve_url = serve_url
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hindsight-cpu")
        self._trainer: CpuTrainer | None = None

    def store_of(self, model_name: str) -> CheckpointStore:
        return store_of(self._home, model_name)

    async def register(self, model: art.TrainableModel) -> None:
        """Load ``model`` at its newest checkpoint."""
        if self._trainer is not None:
            raise BackendError("The CPU backend trains one model at a time: close it before registering another.")
        await self._in_thread(self._open, model.name, model.base_model)

    def _open(self, name: str, base_model: str) -> None:
        from trainer.train.backends.cpu_trainer import CpuTrainer

        trainer = CpuTrainer(
            self.store_of(name), base_model, self._home, rank=self._rank, seed=self._seed, threads=self._threads
        )
        trainer.open()
        self._trainer = trainer

    async def train(
        self,
        model: art.TrainableModel,
        trajectory_groups: Iterable[art.TrajectoryGroup],
        *,
        learning_rate: float = 7e-4,
        loss: Literal["ppo", "cispo"] = "ppo",
        epsilon: float | None = None,
        epsilon_high: float | None = None,
        importance_sampling_level: Literal["token", "sequence", "average", "geometric_average"] = "token",
        kl_penalty_coef: float = 0.0,
        scale_rewards: bool = False,
        max_grad_norm: float = 1.0,
        entropy_bonus: float = 0.0,
        updates: int = 1,
        only_good: bool = False,
        batch_id: str = "",
        config: Mapping[str, Any] | None = None,
        known_metrics: Mapping[str, float] | None = None,
    ) -> LocalTrainResult:
        """One gradient step on the groups, durable when this returns."""
        from art._backend_training import build_rl_train_configs
        from art.types import LocalTrainResult

        from trainer.train.backends.cpu_step import StepSettings

        _, objective = build_rl_train_configs(
            learning_rate=learning_rate,
            scale_rewards=scale_rewards,
            importance_sampling_level=importance_sampling_level,
            ppo=loss == "ppo",
            epsilon=epsilon,
            epsilon_high=epsilon_high,
            kl_penalty_coef=kl_penalty_coef,
        )
        settings = StepSettings(objective, learning_rate, max_grad_norm, kl_penalty_coef, entropy_bonus, updates)
        trainer, groups = self.trainer, list(trajectory_groups)
        stored = await self._in_thread(
            lambda: trainer.train(
                groups,
                settings,
                scale_rewards=scale_rewards,
                batch_id=batch_id,
                config=config or {},
                known_metrics=known_metrics or {},
                only_good=only_good,
            )
        )
        path = trainer.store.path(stored.step)
        return LocalTrainResult(step=stored.step, metrics=stored.metrics, checkpoint_path=str(path))

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Scored | None]:
        """Tokens and log-probabilities of logged replies under the newest checkpoint."""
        return await self._in_thread(self.trainer.score, requests)

    async def close(self) -> None:
        """Waits for the step in hand, which becomes durable."""
        await asyncio.to_thread(self._thread.shutdown)
        self._trainer = None

    async def _get_step(self, model: art.TrainableModel) -> int:
        return await self._in_thread(self.trainer.step)

    async def _delete_checkpoint_files(self, model: art.TrainableModel, steps_to_keep: list[int]) -> None:
        await self._in_thread(self.trainer.store.keep_only, steps_to_keep)

    async def _prepare_backend_for_training(self, model: art.TrainableModel, config: Any) -> tuple[str, str]:
        """Where ``scripts/serve.py`` answers for this model; this backend itself opens no port."""
        return self._serve_url, "none"

    def _model_inference_name(self, model: art.TrainableModel, step: int | None = None) -> str:
        return str(model.name) if step is None else f"{model.name}@step{step}"

    def _train_sft(self, *_: Any, **__: Any) -> AsyncIterator[dict[str, float]]:
        raise BackendError("The CPU backend has no separate supervised training: use --warm-start.")

    @property
    def trainer(self) -> CpuTrainer:
        if self._trainer is None:
            raise BackendError("The CPU backend has no model yet: register one first.")
        return self._trainer

    async def _in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: work(*arguments))
