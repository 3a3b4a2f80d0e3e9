"""Several checkpoints on one base model: LoRA adapters merged into copies of the weights, swapped by reference.

A merged weight costs one product per checkpoint instead of two small ones per layer and token. The last few
checkpoints stay merged; the embedding table and everything else is shared.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING

from data_bridge.errors import BackendError

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

_PREFIX = "base_model.model."


class Adapters:
    """The weights of ``model`` under any adapter directory. For one thread."""

    def __init__(self, model: PreTrainedModel, *, keep: int = 2) -> None:
        self._modules = dict(model.named_modules())
        self._keep = keep
        self._merged: OrderedDict[Path, dict[str, Tensor]] = OrderedDict()
        self._base: dict[str, Tensor] = {}
        self._active: Path | None = None

    def use(self, directory: Path | None) -> None:
        """Make the model answer as the checkpoint in ``directory``, or as the base model."""
        if directory == self._active:
            return
        wanted = {} if directory is None else self._weights_of(directory)
        for name, weight in {**self._base, **wanted}.items():
            self._modules[name].weight.data = weight
        self._active = directory

    def _weights_of(self, directory: Path) -> dict[str, Tensor]:
        if directory in self._merged:
            self._merged.move_to_end(directory)
            return self._merged[directory]
        deltas = read_adapter(directory)
        unknown = [name for name in deltas if name not in self._modules]
        if unknown:
            raise BackendError(f"The checkpoint {directory} belongs to another base model: it has {unknown[0]}.")
        for name in deltas:
            self._base.setdefault(name, self._modules[name].weight.data)
        while len(self._merged) >= self._keep:
            self._merged.popitem(last=False)
        merged = {name: self._base[name] + scale * (up @ down) for name, (down, up, scale) in deltas.items()}
        self._merged[directory] = merged
        return merged


def read_adapter(directory: Path) -> dict[str, tuple[Tensor, Tensor, float]]:
    """Per module of the base model: the LoRA factors (down, up) and their scale."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        config = json.loads((directory / "adapter_config.json").read_text())
        factors = load_file(directory / "adapter_model.safetensors")
        scale = config["lora_alpha"] / config["r"]
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise BackendError(
            f"The checkpoint {directory} cannot be read ({type(error).__name__}): serve or train from an earlier one."
        ) from error
    downs = {key: value for key, value in factors.items() if key.endswith(".lora_A.weight")}
    return {
        key.removeprefix(_PREFIX).removesuffix(".lora_A.weight"): (
            down,
            factors[key.replace(".lora_A.", ".lora_B.")],
            scale,
        )
        for key, down in downs.items()
    }
