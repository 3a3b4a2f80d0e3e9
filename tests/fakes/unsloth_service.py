"""Stands in for ``art.unsloth.service`` and for megatron, the parts of ART's local backend that need a GPU.

It is called by the unmodified ``art.LocalBackend`` with what that has tokenised and packed, and leaves on disk
what unsloth would: an adapter in ``checkpoints/NNNN``. Its training is a made-up number; nothing learns here.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy
from safetensors.numpy import save_file


def write_adapter(directory: Path, value: float = 0.0) -> None:
    directory.mkdir(parents=True)
    save_file({"lora_A": numpy.full((4, 4), value, numpy.float32)}, directory / "adapter_model.safetensors")
    (directory / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 16}))


class UnslothService:
    """ART's ``ModelService``. ``fault`` is where the next training breaks: before_saving, saving or after_saving."""

    fault: str | None = None
    trained: ClassVar[list[dict[str, Any]]] = []  # one list for the process, as there is one GPU
    configs: ClassVar[list[dict[str, Any]]] = []

    def __init__(self, model_name: str, base_model: str, config: dict[str, Any], output_dir: str) -> None:
        self._checkpoints = Path(output_dir) / "checkpoints"
        type(self).configs.append(config)

    async def start_openai_server(self, config: Any) -> tuple[str, int]:
        if not self._checkpoints.exists():
            write_adapter(self._checkpoints / "0000")
        return "127.0.0.1", 8000

    async def train(
        self, disk_packed_tensors: dict[str, Any], config: Any, _config: dict[str, Any], verbose: bool = False
    ) -> AsyncIterator[dict[str, float]]:
        type(self).trained.append({"tensors": disk_packed_tensors, "learning_rate": config.learning_rate, **_config})
        yield {"loss/train": 0.25, "loss/grad_norm": 0.5}
        if self.fault == "before_saving":
            raise RuntimeError("CUDA out of memory")
        step = max(int(entry.name) for entry in self._checkpoints.iterdir() if entry.name.isdigit()) + 1
        directory = self._checkpoints / f"{step:04d}"
        write_adapter(directory, value=step)
        if self.fault == "saving":
            os.truncate(directory / "adapter_model.safetensors", 40)
            raise OSError(28, "No space left on device")
        if self.fault == "after_saving":
            raise RuntimeError("vLLM did not wake up")

    async def register_lora_for_step(self, step: int, checkpoint_dir: str) -> None: ...

    def close(self) -> None: ...


def modules() -> dict[str, ModuleType]:
    """What to put into ``sys.modules``: the service, and the one function that ART takes from its megatron part."""
    service = ModuleType("art.unsloth.service")
    vars(service).update(UnslothService=UnslothService)
    support = ModuleType("art.megatron.model_support")
    vars(support).update(default_target_modules_for_model=lambda *args, **options: ["q_proj", "v_proj"])
    return {service.__name__: service, support.__name__: support}
