"""Trains one model on the CPU, step by step from the newest sound checkpoint. For one thread; no asyncio here.

A step is a function of the checkpoint before it, the groups and the settings: the order of everything random
is seeded by the run's seed and the step, so a killed run goes on to the same numbers.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from data_bridge.art_converter import Scored, ScoreRequest
from data_bridge.errors import BackendError, HindsightError
from trainer.inference.base_model import model_directory
from trainer.inference.checkpoints import CheckpointStore, StoredStep
from trainer.train.backends.cpu_packing import pack
from trainer.train.backends.cpu_policy import Policy
from trainer.train.backends.cpu_step import StepSettings, gradient_step

if TYPE_CHECKING:
    import art

logger = logging.getLogger(__name__)


class CpuTrainer:
    """The policy in memory, the checkpoints on disk, and the step that both are at."""

    def __init__(
        self, store: CheckpointStore, base_model: str, home: Path, *, rank: int, seed: int, threads: int = 0
    ) -> None:
        self.store = store
        self.base_model = base_model
        self._home = home
        self._rank = rank
        self._seed = seed
        self._threads = threads
        self._policy: Policy | None = None
        self._loaded_step: int | None = None

    def base_directory(self) -> Path:
        return model_directory(self.base_model, self._home)

    def open(self) -> int:
        """Load the model at its newest sound step and return that step."""
        if self._threads:
            torch.set_num_threads(self._threads)
        if self._policy is None:
            base = self.base_directory()
            self._policy = Policy(base, rank=self._rank, learning_rate=1e-4, seed=self._seed)
        newest = self.store.newest()
        if newest is not None and newest.base_model != self.base_model:
            raise BackendError(
                f"The checkpoints in {self.store.directory} were trained on {newest.base_model}, not on "
                f"{self.base_model}: give the new model another --model name."
            )
        return self._at(newest)

    def step(self) -> int:
        """The newest sound step on disk."""
        newest = self.store.newest()
        return 0 if newest is None else newest.step

    def score(self, requests: Sequence[ScoreRequest]) -> list[Scored | None]:
        self._synchronise()
        return self.policy.score(requests)

    def train(
        self,
        groups: Sequence[art.TrajectoryGroup],
        settings: StepSettings,
        *,
        scale_rewards: bool,
        batch_id: str,
        config: Mapping[str, Any],
        known_metrics: Mapping[str, float],
        only_good: bool = False,
    ) -> StoredStep:
        """One gradient step on ``groups``, durable when this returns. BackendError if nothing was trainable."""
        step = self._synchronise() + 1
        sequences = pack(
            groups,
            self.policy.tokenizer,
            scale_rewards=scale_rewards,
            seed=f"{self._seed}:{step}",
            only_good=only_good,
        )
        trained = sum(sequence.trainable_tokens for sequence in sequences)
        if trained == 0:
            raise BackendError(
                "The batch has no trainable token, so nothing was trained: check that the log has token ids and "
                "log-probabilities, or that the replies can be scored, and that the scores of a group differ."
            )
        self._loaded_step = None  # from here on the weights are no checkpoint's until they are saved
        metrics = {**known_metrics, **gradient_step(self.policy, sequences, settings)}
        broken = [name for name in ("loss", "grad_norm") if not _is_finite(metrics[name])]
        if broken:
            raise BackendError(f"Step {step} gave a {broken[0]} that is not a number: lower --learning-rate.")
        stored = StoredStep(step, batch_id, trained, self.base_model, dict(config), metrics)
        self.store.save(stored, self.policy.save)
        self._loaded_step = step
        return stored

    @property
    def policy(self) -> Policy:
        if self._policy is None:
            self.open()
        assert self._policy is not None
        return self._policy

    def _synchronise(self) -> int:
        """Make the weights in memory those of the newest checkpoint, also after a step that failed half-way."""
        newest = self.store.newest()
        if self._policy is None or self._loaded_step != (0 if newest is None else newest.step):
            return self.open() if self._policy is None else self._at(newest)
        return self._loaded_step or 0

    def _at(self, newest: StoredStep | None) -> int:
        assert self._policy is not None
        if newest is None:
            self._policy.reset()
        else:
            try:
                self._policy.load(self.store.path(newest.step))
            except HindsightError:
                self._loaded_step = None
                raise
        self._loaded_step = 0 if newest is None else newest.step
        return self._loaded_step


def _is_finite(value: float) -> bool:
    return value == value and abs(value) != float("inf")
