"""ART as we use it: imported without side effects, with our settings as its arguments and its metrics under our names.

``import art`` loads ``.env``, with any key in it, into ``os.environ``; litellm, which it imports, fetches a price list
from the network; and ``LocalBackend`` starts its own wandb run whenever it finds ``WANDB_API_KEY`` in the environment,
failing *after* the training when W&B cannot be reached.

So the key is only in our settings. It is removed from the environment here and never put back: ART looks for it at
every step, and its child processes (the model service, vLLM) inherit our environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from data_bridge.errors import ConfigurationError
from trainer.config.training import BaseModelSettings, ObjectiveSettings

ART_LEARNING_RATE = 5e-6
"""ART's own default, for models with billions of parameters; ours is meant for the embedded one with 135 million."""

DEFAULT_BASE_MODELS = {"serverless": "OpenPipe/Qwen3-14B-Instruct", "local": "Qwen/Qwen2.5-7B-Instruct"}
"""The base models if --base-model is not set: the embedded model is for CPUs, and W&B does not offer it."""

_OURS = {
    "loss/train": "loss",
    "loss/entropy": "entropy",
    "loss/kl_div": "kl",
    "loss/kl_policy_ref": "kl",
    "loss/grad_norm": "grad_norm",
    "loss/learning_rate": "learning_rate",
    "time/step_trainer_s": "seconds",
}


def prepare_environment() -> None:
    """Change the environment of this process and its children so that ART only does what it is called for."""
    os.environ["PYTHON_DOTENV_DISABLED"] = "1"  # disables load_dotenv(); our own reading of .env is not affected
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    os.environ.pop("WANDB_API_KEY", None)


def import_art() -> ModuleType:
    """The ``art`` package, imported into a prepared environment. Takes seconds the first time."""
    prepare_environment()
    import art

    module: ModuleType = art
    return module


def base_model_of(backend: str, settings: BaseModelSettings) -> str:
    """The model that ``backend`` trains: the one set, else the default for this backend."""
    if "base_model" in settings.model_fields_set:
        return settings.base_model
    return DEFAULT_BASE_MODELS.get(backend, settings.base_model)


def learning_rate_of(settings: ObjectiveSettings) -> float:
    return settings.learning_rate if "learning_rate" in settings.model_fields_set else ART_LEARNING_RATE


def clip_range_of(settings: ObjectiveSettings) -> tuple[float | None, float | None]:
    """Lower and upper clip range. ART has its own wide ranges for CISPO: ours is only used if it was set."""
    if settings.loss == "cispo" and "epsilon" not in settings.model_fields_set:
        return None, settings.epsilon_high
    return settings.epsilon, settings.epsilon_high


_LARGEST_RATIO = 3.0


def largest_ratio_of(settings: ObjectiveSettings) -> float | None:
    """The largest importance ratio of a token; None where the loss itself bounds it.

    PPO's clip does not bound the ratio of a reply below the mean. A row that claims to have said something very
    unlikely could so outweigh all others: e^29 for a claimed log-probability of -29. Beyond this bound a token has no
    gradient (dual-clip PPO, Ye et al. 2020, whose value this is). The clip range itself stays free.
    """
    if settings.loss != "ppo":
        return None
    return max(_LARGEST_RATIO, 1 + (settings.epsilon if settings.epsilon_high is None else settings.epsilon_high))


def at_pace(arguments: Mapping[str, Any], pace: float) -> dict[str, Any]:
    """``arguments`` with this share of their learning rate."""
    return {**arguments, "learning_rate": arguments["learning_rate"] * pace}


def serverless_arguments(settings: ObjectiveSettings) -> dict[str, Any]:
    """Keyword arguments of ``art._backend_training.build_rl_train_configs`` for a serverless job."""
    if settings.kl > 0:
        raise ConfigurationError(
            "--kl has no effect on W&B Serverless RL: leave it at 0, or train with --backend local or cpu."
        )
    return {**_arguments(settings), "ppo": settings.loss == "ppo"}


def local_arguments(settings: ObjectiveSettings) -> dict[str, Any]:
    """Keyword arguments of ``art.LocalBackend.train``."""
    return {**_arguments(settings), "loss_fn": settings.loss, "kl_penalty_coef": settings.kl}


def _arguments(settings: ObjectiveSettings) -> dict[str, Any]:
    epsilon, epsilon_high = clip_range_of(settings)
    return {
        "learning_rate": learning_rate_of(settings),
        "epsilon": epsilon,
        "epsilon_high": epsilon_high,
        "scale_rewards": settings.scale_rewards,
        "importance_sampling_level": settings.importance_level,
        "max_negative_advantage_importance_sampling_weight": largest_ratio_of(settings),
    }


def our_names(metrics: Mapping[str, float]) -> dict[str, float]:
    """``metrics`` under our names where we have one; the others keep ART's name."""
    return {_OURS.get(name, name): float(value) for name, value in metrics.items()}
