"""Training on this machine's CPU: an implementation of ART's ``Backend`` protocol, and our backend on top of it.

A step is a function of the previous checkpoint, the groups and the settings: everything random is seeded by the run's
seed and the step, so a killed run continues with the same numbers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch

from data_bridge.errors import BackendError
from trainer.config.training import CpuTrainee, CpuTrainingSettings
from trainer.faults import may_be_a_rows
from trainer.inference.base_model import model_directory
from trainer.inference.checkpoints import StoredStep, store_of
from trainer.inference.policy import CpuPolicy
from trainer.inference.rescoring import PolicyScorer, Position
from trainer.rewards import RewardHistory
from trainer.train.backends.art_interface import import_art, largest_ratio_of
from trainer.train.backends.balance import ONE_SIDED, Aim, aim_of, alternatives_of, balance, pace
from trainer.train.backends.correction import Region
from trainer.train.backends.cpu_faults import control_fault, fault_of_step
from trainer.train.backends.cpu_step import NotFinite, StepSettings, gradient_step
from trainer.train.backends.loaded import Loaded
from trainer.train.backends.packing import TokenWeights
from trainer.train.backends.prepare import prepare, rows_at_fault, why_nothing
from trainer.train.backends.ranks import RankLost, Ranks
from trainer.train.backends.transfer import begin_from
from trainer.types import Batch, Checkpoint, PreparedBatch, StepResult, Submitted

if TYPE_CHECKING:
    import art
    from art.types import LocalTrainResult

T = TypeVar("T")


class CpuBackend:
    """Trains one model on this machine. A receipt is not needed: the checkpoint itself names its batch."""

    name = "cpu"

    def __init__(self, trainee: CpuTrainee, serve_url: str) -> None:
        self._trainee = trainee
        self._backend = ArtCpuBackend(
            trainee.home,
            rank=trainee.training.lora_rank,
            seed=trainee.seed,
            threads=trainee.threads,
            serve_url=serve_url,
            init_from=trainee.training.init_from,
            workers=trainee.training.train_workers,
        )
        self._store = store_of(trainee.home, trainee.model.model)
        self._model: art.TrainableModel | None = None
        self._pace = 1.0

    async def open(self) -> int:
        trainee = self._trainee
        self._model = import_art().TrainableModel(
            name=trainee.model.model,
            project=trainee.project,
            base_model=trainee.model.base_model,
            base_path=str(trainee.home / "art"),
        )
        await self._model.register(self._backend)
        return await self.current_step()

    async def current_step(self) -> int:
        newest = self._store.newest()
        return 0 if newest is None else newest.step

    async def start_step(self) -> int:
        return await self._backend.start_step()

    async def start_from(self, step: int) -> None:
        await self._backend.start_from(step)

    def slow_down(self, share: float) -> None:
        self._pace = share

    def checkpoint(self, step: int) -> Checkpoint:
        model = self._trainee.model
        location = self._store.path(step) if step else model_directory(model.base_model, self._trainee.home)
        return Checkpoint(model.model, step, model.base_model, self.name, str(location.resolve()))

    async def prepare(self, batch: Batch) -> PreparedBatch:
        return await prepare(batch, self._trainee, self._backend.scorer)

    async def train(self, prepared: PreparedBatch, *, on_submitted: Submitted) -> StepResult:
        settings, batch_id = self._trainee.training, prepared.batch.batch_id
        if prepared.trainable_tokens == 0:
            raise BackendError(why_nothing(prepared))
        await on_submitted(f"cpu:{batch_id}")
        is_warm_start = self._depth(await self.start_step(), settings.warm_start) < settings.warm_start
        result = await self._backend.train(
            self._model,
            prepared.groups,
            learning_rate=settings.learning_rate * self._pace * prepared.pace,
            loss=settings.loss,
            epsilon=settings.epsilon if settings.loss == "ppo" else None,
            epsilon_high=settings.epsilon_high,
            importance_sampling_level=settings.importance_level,
            max_negative_advantage_importance_sampling_weight=largest_ratio_of(settings),
            kl_penalty_coef=settings.kl,
            scale_rewards=settings.scale_rewards,
            max_grad_norm=settings.max_grad_norm,
            entropy_bonus=settings.entropy_bonus,
            updates=settings.updates,
            only_good=is_warm_start,
            max_importance=settings.max_importance,
            weight_decay=settings.weight_decay,
            token_weights=settings.token_weights,
            batch_id=batch_id,
            config=self._recorded(),
            known_metrics=prepared.metrics,
            history=prepared.history if settings.balance_answers else None,
        )
        return self._result(self._store.read(result.step))

    async def settle(self, batch_id: str, job_id: str | None, policy_step: int) -> StepResult | None:
        stored = self._store.of_batch(batch_id)
        return None if stored is None else self._result(stored)

    async def remove(self, steps: Sequence[int]) -> list[int]:
        return self._store.remove(steps)

    async def close(self) -> None:
        await self._backend.close()

    def _recorded(self) -> dict[str, Any]:
        """How a checkpoint was trained, as stored with it."""
        known = self._trainee.training.model_dump(mode="json", include=set(CpuTrainingSettings.model_fields))
        return known | {"purposes": list(self._trainee.purposes), "seed": self._trainee.seed}

    def _depth(self, step: int, enough: int) -> int:
        """How many steps led to ``step``, up to ``enough``; one whose past is deleted has had enough."""
        depth = 0
        while step > 0 and depth < enough:
            if not self._store.is_sound(step):
                return enough
            parent = self._store.read(step).parent_step
            depth, step = depth + 1, step - 1 if parent is None else parent
        return depth

    def _result(self, stored: StoredStep) -> StepResult:
        return StepResult(
            self.checkpoint(stored.step), stored.trainable_tokens, dict(stored.metrics), parent_step=stored.parent_step
        )


class ArtCpuBackend:
    """ART's ``Backend``: ``model.register(backend)``, then ``backend.train(model, groups)``. For one model.

    All work on the model happens in one dedicated thread.
    """

    def __init__(
        self,
        home: Path,
        *,
        rank: int = 16,
        seed: int = 0,
        threads: int = 0,
        serve_url: str = "http://127.0.0.1:8808/v1",
        init_from: str | None = None,
        workers: int = 1,
    ) -> None:
        self._home = home
        self._workers = workers
        self._ranks: Ranks | None = None
        self._init_from = init_from
        self._rank = rank
        self._seed = seed
        self._threads = threads
        self._serve_url = serve_url
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hindsight-cpu")
        self._registered: Loaded | None = None
        self.scorer = PolicyScorer(self._in_thread, self._position)

    async def register(self, model: art.TrainableModel) -> None:
        """Load ``model`` at its newest intact checkpoint."""
        if self._registered is not None:
            raise BackendError("The CPU backend trains one model at a time: close it before registering another.")
        self._registered = await self._in_thread(self._load, model.name, model.base_model)

    def _load(self, name: str, base_model: str) -> Loaded:
        if self._threads:
            torch.set_num_threads(self._threads)
        base, store = model_directory(base_model, self._home), store_of(self._home, name)
        policy = CpuPolicy(base, rank=self._rank, learning_rate=1e-4, seed=self._seed)
        if self._init_from is not None:
            begin_from(self._init_from, self._home, store, base_model, policy)
        newest = store.newest()
        if newest is not None and newest.base_model != base_model:
            raise BackendError(
                f"The checkpoints in {store.directory} were trained on {newest.base_model}, not on "
                f"{base_model}: use another --model name for the new model."
            )
        loaded = Loaded(store, base_model, policy)
        loaded.synchronise()
        if self._workers > 1:
            self._ranks = Ranks.start(self._workers, base, lora_rank=self._rank, seed=self._seed, threads=self._threads)
        return loaded

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
        max_negative_advantage_importance_sampling_weight: float | None = None,
        kl_penalty_coef: float = 0.0,
        scale_rewards: bool = False,
        max_grad_norm: float = 1.0,
        entropy_bonus: float = 0.0,
        updates: int = 1,
        only_good: bool = False,
        max_importance: float = 1.3,
        weight_decay: float = 0.0,
        token_weights: TokenWeights = "reply",
        batch_id: str = "",
        config: Mapping[str, Any] | None = None,
        known_metrics: Mapping[str, float] | None = None,
        history: RewardHistory | None = None,
    ) -> LocalTrainResult:
        """Make one gradient step on the groups; durable when this returns. BackendError if nothing was trainable.

        With their ``history`` the answers are balanced afterwards; see ``balance``.
        """
        from art._backend_training import build_rl_train_configs
        from art.types import LocalTrainResult

        _, objective = build_rl_train_configs(
            learning_rate=learning_rate,
            scale_rewards=scale_rewards,
            importance_sampling_level=importance_sampling_level,
            max_negative_advantage_importance_sampling_weight=max_negative_advantage_importance_sampling_weight,
            ppo=loss == "ppo",
            epsilon=epsilon,
            epsilon_high=epsilon_high,
            kl_penalty_coef=kl_penalty_coef,
        )
        settings = StepSettings(
            objective,
            learning_rate,
            max_grad_norm,
            kl=kl_penalty_coef,
            entropy_bonus=entropy_bonus,
            updates=updates,
            weight_decay=weight_decay,
            token_weights=token_weights,
            scale_rewards=scale_rewards,
            only_good=only_good,
            region=Region(max_importance),
        )
        groups = list(trajectory_groups)
        recorded = (batch_id, config or {}, known_metrics or {})
        stored, path = await self._in_thread(self._step, groups, settings, history, *recorded)
        return LocalTrainResult(step=stored.step, metrics=stored.metrics, checkpoint_path=str(path))

    def _step(
        self,
        groups: Sequence[art.TrajectoryGroup],
        settings: StepSettings,
        history: RewardHistory | None,
        batch_id: str,
        config: Mapping[str, Any],
        known_metrics: Mapping[str, float],
    ) -> tuple[StoredStep, Path]:
        loaded = self._loaded
        parent, step = loaded.synchronise(), loaded.newest + 1
        loaded.step = None  # from here on the weights belong to no checkpoint until they are saved
        try:
            aim = None if history is None else self._aim(groups, history, parent)
            share = 1.0 if aim is None else pace(loaded.policy, aim)
            settings = replace(settings, learning_rate=settings.learning_rate * share)
            measured = self._gradient_step(groups, settings, parent, step)
            if aim is not None:
                measured |= {"left_to_learn": share} | balance(loaded.policy, aim)
        except Exception as error:
            if not may_be_a_rows(error):
                raise
            loaded.synchronise()
            raise self._blamed(error, groups, settings, step) from error
        trained, metrics = int(measured["trainable_tokens"]), {**known_metrics, **measured}
        stored = StoredStep(step, batch_id, trained, loaded.base_model, dict(config), metrics, parent)
        path = loaded.store.save(stored, loaded.policy.save)
        loaded.step = step
        return stored, path

    def _gradient_step(
        self, groups: Sequence[art.TrajectoryGroup], settings: StepSettings, parent: int, step: int
    ) -> dict[str, float]:
        """The step alone, or by all ranks; by those left, from the checkpoint again, if ranks are lost in it."""
        loaded, ranks, seed = self._loaded, self._ranks, f"{self._seed}:{step}"
        while ranks is not None and ranks.size > 1:
            try:
                with ranks.step(loaded.policy, loaded.store.path(parent) if parent else None):
                    measured = gradient_step(loaded.policy, groups, settings, seed=seed, ranks=ranks)
                return measured | {"ranks": float(ranks.size), "summing_seconds": ranks.seconds_summing}
            except RankLost:
                ranks.drop_lost()
                loaded.synchronise()
                loaded.step = None
        return gradient_step(loaded.policy, groups, settings, seed=seed)

    def _aim(self, groups: Sequence[art.TrajectoryGroup], history: RewardHistory, parent: int) -> Aim:
        """How often each answer is to be given after the step that follows ``parent``."""
        loaded = self._loaded
        before = loaded.store.read(parent).metrics.get(ONE_SIDED) if parent and loaded.store.is_sound(parent) else None
        hours = alternatives_of(groups, history, loaded.policy.tokenizer)
        return aim_of(loaded.policy, hours, None if before is None else int(before))

    def _blamed(
        self, error: Exception, groups: Sequence[art.TrajectoryGroup], settings: StepSettings, step: int
    ) -> BackendError:
        """The rows that made the step fail, or the sentence about a step that fails whatever it is made on."""
        policy = self._loaded.policy
        found = None
        if control_fault(policy, settings) is None:
            found = rows_at_fault(groups, lambda some: fault_of_step(policy, some, settings, seed=str(step)))
        if found is not None:
            return found
        if isinstance(error, NotFinite):
            return BackendError(f"Step {step} gave a loss or gradient that is not a number: lower --learning-rate.")
        return BackendError(f"Step {step} failed ({type(error).__name__}), and not because of a row: see --debug.")

    def _position(self) -> Position:
        loaded = self._loaded
        return Position(loaded.policy, loaded.synchronise(), loaded.sound)

    async def close(self) -> None:
        """Waits for the current step, which becomes durable."""
        await asyncio.to_thread(self._thread.shutdown)
        self._registered = None
        if self._ranks is not None:
            await asyncio.to_thread(self._ranks.close)
            self._ranks = None

    async def start_step(self) -> int:
        return await self._in_thread(lambda: self._loaded.start)

    async def start_from(self, step: int) -> None:
        """Go back to ``step`` until the next one is trained. BackendError if its checkpoint is not intact."""
        await self._in_thread(self._go_back, step)

    def _go_back(self, step: int) -> None:
        loaded = self._loaded
        if step > 0 and not loaded.store.is_sound(step):
            raise BackendError(
                f"Training should go back to step {step}, but {loaded.store.path(step)} is missing or damaged: "
                "restore it, or use another --model."
            )
        loaded.fork = (loaded.newest, step)

    async def _get_step(self, model: art.TrainableModel) -> int:
        newest = await self._in_thread(self._loaded.store.newest)
        return 0 if newest is None else newest.step

    async def _delete_checkpoint_files(self, model: art.TrainableModel, steps_to_keep: list[int]) -> None:
        await self._in_thread(self._loaded.store.keep_only, steps_to_keep)

    async def _prepare_backend_for_training(self, model: art.TrainableModel, config: Any) -> tuple[str, str]:
        """The URL where ``scripts/serve.py`` serves this model; this backend itself opens no port."""
        return self._serve_url, "none"

    def _model_inference_name(self, model: art.TrainableModel, step: int | None = None) -> str:
        return str(model.name) if step is None else f"{model.name}@step{step}"

    def _train_sft(self, *_: Any, **__: Any) -> AsyncIterator[dict[str, float]]:
        raise BackendError("The CPU backend has no separate supervised training: use --warm-start.")

    @property
    def _loaded(self) -> Loaded:
        if self._registered is None:
            raise BackendError("The CPU backend has no model yet: register one first.")
        return self._registered

    async def _in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: work(*arguments))
