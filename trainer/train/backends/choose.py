"""Chooses the backend by whether there is a key and a GPU, gives the reason, and opens it.

Nothing heavy is imported before a backend is opened; torch only if there seems to be a GPU.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal

from pydantic import SecretStr

from data_bridge.database import GONE_AFTER
from data_bridge.errors import ConfigurationError
from trainer.abilities import abilities_of
from trainer.config.settings import Section
from trainer.config.training import AddressSettings, BackendSettings, BaseModelSettings, CpuTrainee
from trainer.train.backends.art_interface import base_model_of, prepare_environment
from trainer.types import TrainingBackend

BackendName = Literal["cpu", "local", "serverless"]

_DRIVER = Path("/proc/driver/nvidia/gpus")
_NEEDED = ("torch", "unsloth", "trl", "megatron")  # ART imports the last one even if it is not used


@dataclass(frozen=True, slots=True)
class Choice:
    """A backend, and the reason for it, which can be printed after its name."""

    name: BackendName
    reason: str
    base_model: str

    def __str__(self) -> str:
        return f"{self.name} ({self.reason}), training {self.base_model}"


def choose_backend(backend: BackendSettings, model: BaseModelSettings, key: SecretStr | None) -> Choice:
    """The backend of ``--backend``; ``auto`` is serverless with a W&B key, else local with a GPU, else the CPU."""
    name, reason = _chosen(backend, has_key=key is not None and bool(key.get_secret_value()))
    return Choice(name, reason, base_model_of(name, model))


def _chosen(settings: BackendSettings, *, has_key: bool) -> tuple[BackendName, str]:
    if settings.backend != "auto":
        return settings.backend, f"--backend {settings.backend}"
    if has_key:
        return "serverless", "WANDB_API_KEY is set"
    reason = why_no_gpu()
    if reason is None:
        return "local", "no WANDB_API_KEY, and there is a GPU"
    return "cpu", f"no WANDB_API_KEY, and {reason}"


@asynccontextmanager
async def open_backend(
    trainee: CpuTrainee,
    backend: BackendSettings,
    addresses: AddressSettings,
    key: SecretStr | None,
    gone_after: timedelta = GONE_AFTER,
) -> AsyncIterator[TrainingBackend]:
    """The chosen backend, opened; ``current_step`` is its newest step. Closed at the end, even after an error."""
    prepare_environment()
    opened = _backend(choose_backend(backend, trainee.model, key).name, trainee, backend, addresses, key, gone_after)
    try:
        await opened.open()
        yield opened
    finally:
        await opened.close()


def refuse_ignored(name: str, settings: Section) -> None:
    """ConfigurationError if a setting was changed that has no effect on this backend."""
    ignored = abilities_of(name).update.ignored & settings.model_fields_set
    changed = [one for one in sorted(ignored) if getattr(settings, one) != type(settings).model_fields[one].default]
    if changed:
        flags = ", ".join("--" + one.replace("_", "-") for one in changed)
        raise ConfigurationError(f"{flags} has no effect with --backend {name}: leave it out, or train on another.")


def _backend(
    name: BackendName,
    trainee: CpuTrainee,
    backend: BackendSettings,
    addresses: AddressSettings,
    key: SecretStr | None,
    gone_after: timedelta,
) -> TrainingBackend:
    refuse_ignored(name, trainee.training)
    match name:
        case "serverless":
            from trainer.train.backends.remote_job import Pace
            from trainer.train.backends.serverless import ServerlessBackend

            pace = Pace(gone_after=gone_after.total_seconds())
            return ServerlessBackend(
                trainee, backend.wandb_entity, backend.remote_deadline, addresses.wandb_base_url, key, pace
            )
        case "local":
            if reason := why_no_gpu():
                raise ConfigurationError(f"--backend local cannot be used: {reason}; use --backend cpu or serverless.")
            from trainer.train.backends.local import LocalBackend

            return LocalBackend(trainee)
        case "cpu":
            from trainer.train.backends.cpu import CpuBackend

            return CpuBackend(trainee, addresses.serve_url)


def why_no_gpu() -> str | None:
    """None if the GPU can be used; otherwise why not, as the middle of a sentence."""
    if not _has_nvidia_gpu():
        return "there is no NVIDIA GPU on this machine"
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return f"there is a GPU, but {', '.join(missing)} is not installed (`pip install .[gpu]`)"
    return None if _torch_sees_it() else "there is a GPU, but the installed torch cannot use it (a CPU build?)"


def _has_nvidia_gpu() -> bool:
    if os.environ.get("CUDA_VISIBLE_DEVICES", "unset").strip() in ("", "-1"):
        return False
    try:
        if any(_DRIVER.iterdir()):
            return True
    except OSError:
        pass  # no driver, or a system that lists it elsewhere
    command = shutil.which("nvidia-smi")
    if command is None:
        return False
    try:
        listed = subprocess.run([command, "-L"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return listed.returncode == 0 and "GPU" in listed.stdout


def _torch_sees_it() -> bool:
    import torch

    return bool(torch.cuda.is_available())
