"""Our settings as arguments of ART's trainers, and what differs between a laptop's default model and a real one."""

from __future__ import annotations

import json
import math
from typing import Any

from data_bridge.errors import BackendError, ConfigurationError
from trainer.config.sections import ModelSettings, TrainingSettings
from trainer.train.backends.base import PreparedBatch

ART_LEARNING_RATE = 5e-6
"""ART's own default, for models of billions of parameters; ours is made for the embedded one of 135 million."""

DEFAULT_BASE_MODELS = {"serverless": "OpenPipe/Qwen3-14B-Instruct", "local": "Qwen/Qwen2.5-7B-Instruct"}
"""Trained when --base-model is not set: the embedded model is for CPUs, and W&B does not offer it."""


def base_model_of(backend: str, settings: ModelSettings) -> str:
    """The model that ``backend`` trains: as set, else the default that makes sense there."""
    if "base_model" in settings.model_fields_set:
        return settings.base_model
    return DEFAULT_BASE_MODELS.get(backend, settings.base_model)


def learning_rate_of(settings: TrainingSettings) -> float:
    return settings.learning_rate if "learning_rate" in settings.model_fields_set else ART_LEARNING_RATE


def clip_range_of(settings: TrainingSettings) -> tuple[float | None, float | None]:
    """Lower and upper clip range. CISPO has wide ranges of its own in ART: ours is only used when it was set."""
    if settings.loss == "cispo" and "epsilon" not in settings.model_fields_set:
        return None, settings.epsilon_high
    return settings.epsilon, settings.epsilon_high


def serverless_arguments(settings: TrainingSettings) -> dict[str, Any]:
    """Keyword arguments of ``art._backend_training.build_rl_train_configs`` for a serverless job."""
    if settings.kl > 0:
        raise ConfigurationError(
            "--kl has no effect on W&B Serverless RL: leave it at 0, or train with --backend local or cpu."
        )
    epsilon, epsilon_high = clip_range_of(settings)
    return {
        "learning_rate": learning_rate_of(settings),
        "ppo": settings.loss == "ppo",
        "epsilon": epsilon,
        "epsilon_high": epsilon_high,
        "scale_rewards": settings.scale_rewards,
        "importance_sampling_level": settings.importance_level,
    }


def local_arguments(settings: TrainingSettings) -> dict[str, Any]:
    """Keyword arguments of ``art.LocalBackend.train``."""
    epsilon, epsilon_high = clip_range_of(settings)
    return {
        "learning_rate": learning_rate_of(settings),
        "loss_fn": settings.loss,
        "epsilon": epsilon,
        "epsilon_high": epsilon_high,
        "scale_rewards": settings.scale_rewards,
        "importance_sampling_level": settings.importance_level,
        "kl_penalty_coef": settings.kl,
    }


def check_trainable(prepared: PreparedBatch) -> None:
    """BackendError, before anything is sent or paid for, if the batch would train nothing or poison the model."""
    batch = prepared.batch
    if prepared.trainable_tokens <= 0 or not prepared.groups:
        raise BackendError(
            f"Batch {batch.batch_id} has no trainable tokens: its exclusions say why; "
            "log token ids and log-probabilities with the recorder, or look at --purposes and --foreign."
        )
    for group in prepared.groups:
        for trajectory in group.trajectories:
            if not math.isfinite(trajectory.reward):
                raise BackendError(
                    f"Batch {batch.batch_id} has a reward that is not a number ({trajectory.reward}): "
                    "nothing was sent; judge its groups again."
                )


def check_sendable(prepared: PreparedBatch) -> None:
    """BackendError if the batch cannot be written as JSON: found out now, a failed sending is a failed sending."""
    try:
        for group in prepared.groups:
            json.dumps(group.model_dump(mode="json"), allow_nan=False)
    except (ValueError, TypeError) as error:
        raise BackendError(
            f"Batch {prepared.batch.batch_id} cannot be sent ({error}): one of its trajectories holds a value "
            "that JSON has no form for; nothing was sent."
        ) from error
