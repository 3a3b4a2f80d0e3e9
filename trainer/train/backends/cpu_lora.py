"""PEFT's LoRA layers with one matrix product instead of three.

During a step the adapter does not change, so base weight and adapter are added once and used for every
sequence; the gradients of the two factors are still those of PEFT's own layer. PEFT keeps the parameters, the
switch to turn the adapter off, and the file format.
"""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import linear

if TYPE_CHECKING:
    from torch import Tensor

_ADAPTER = "default"


def fuse(model: Any) -> None:
    """Let every LoRA layer of a PEFT ``model`` compute with its merged weight."""
    from peft.tuners.lora import Linear

    for module in model.modules():
        if isinstance(module, Linear):
            module._merged_for = None
            module.forward = MethodType(_forward, module)


def _forward(layer: Any, x: Tensor, *_: Any, **__: Any) -> Tensor:
    base = layer.get_base_layer()
    if layer.disable_adapters:
        return linear(x, base.weight, base.bias)
    down, up, scale = layer.lora_A[_ADAPTER].weight, layer.lora_B[_ADAPTER].weight, layer.scaling[_ADAPTER]
    version = (down._version, up._version)
    if layer._merged_for != version:
        layer._merged_weight = _merged(base.weight, down, up, scale, getattr(layer, "_merged_weight", None))
        layer._merged_for = version
    weight = layer._merged_weight
    output: Tensor = _FusedLora.apply(x, weight, down, up, scale)  # type: ignore[no-untyped-call]  # torch's own
    return output if base.bias is None else output + base.bias


@torch.no_grad()
def _merged(weight: Tensor, down: Tensor, up: Tensor, scale: float, room: Tensor | None) -> Tensor:
    return torch.addmm(weight, up, down, alpha=scale, out=room)


class _FusedLora(torch.autograd.Function):
    """y = x (W + s B A)ᵀ with W frozen; ``merged`` is the bracket."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, merged: Tensor, down: Tensor, up: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(x, down, up)
        ctx.merged, ctx.scale = merged, scale  # saving it would pin a version that the next update overwrites
        return linear(x, merged)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, Tensor, Tensor, None]:
        x, down, up = ctx.saved_tensors
        gradient = gradients[0].reshape(-1, gradients[0].shape[-1])
        rows = x.reshape(-1, x.shape[-1])
        for_x = (gradient @ ctx.merged).reshape(x.shape) if ctx.needs_input_grad[0] else None
        for_down = ((gradient @ up) * ctx.scale).t() @ rows
        for_up = (((rows @ down.t()) * ctx.scale).t() @ gradient).t()
        return for_x, None, for_down, for_up, None
