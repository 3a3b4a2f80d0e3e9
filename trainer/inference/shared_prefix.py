"""Attention that keeps what many replies share only once.

Prompts of one hour share their rules and examples; the agents of one decision share the whole prompt. So a
batch is kept as three levels: a shared beginning, the distinct prompts, and the replies, each a small tensor
of its own. transformers calls ``attend`` of the memory it is handed instead of its own attention; keys and
values are never repeated for grouped heads, for rows, or for a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.nn.functional import pad, scaled_dot_product_attention

if TYPE_CHECKING:
    from torch import Tensor

IMPLEMENTATION = "hindsight_memory"

Layer = tuple["Tensor", "Tensor"]
"""Keys and values of one layer: [rows, key heads, tokens, head size]."""


class Memory(Protocol):
    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Attention output [rows, heads, tokens, head size]; remembers ``key`` and ``value``."""
        ...


def register() -> str:
    """Make the attention known to transformers; returns the name to load a model with."""
    from transformers import AttentionInterface

    AttentionInterface.register(IMPLEMENTATION, _attention)
    return IMPLEMENTATION


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    memory: Memory,
    **_: Any,
) -> tuple[Tensor, None]:
    attended = memory.attend(module.layer_idx, query, key, value, scaling)
    return attended.transpose(1, 2), None


class PromptMemory:
    """Reads prompts: rows padded on the right, all after the same ``beginning`` (one row per layer, or none)."""

    def __init__(self, beginning: list[Layer], width: int) -> None:
        self._beginning = beginning
        self.layers: list[Layer] = []
        known = beginning[0][0].shape[2] if beginning else 0
        visible = torch.ones(width, known + width, dtype=torch.bool).tril(diagonal=known)
        self._mask = torch.zeros(width, known + width).masked_fill_(~visible, float("-inf"))

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        self.layers.append((key, value))
        if self._beginning:
            first_key, first_value = (part.expand(key.shape[0], -1, -1, -1) for part in self._beginning[layer])
            key, value = torch.cat([first_key, key], dim=2), torch.cat([first_value, value], dim=2)
        rows, heads, tokens, size = query.shape
        grouped = query.reshape(rows, key.shape[1], -1, size)
        mask = self._mask.repeat(heads // key.shape[1], 1)[None, None]
        attended = scaled_dot_product_attention(grouped, key, value, attn_mask=mask, scale=scaling)
        return attended.reshape(rows, heads, tokens, size)


@dataclass(slots=True)
class Prompts:
    """Distinct prompts after reading: keys and values per layer, padded to the longest."""

    layers: list[Layer]
    lengths: Tensor


class ReplyMemory:
    """Replies in progress, one token a step for every row; row ``i`` continues prompt ``prompt_of[i]``."""

    def __init__(self, prompts: Prompts, prompt_of: Tensor, most_tokens: int) -> None:
        self._prompts = prompts
        keys = prompts.layers[0][0]
        shape = (len(prompt_of), keys.shape[1], most_tokens, keys.shape[3])
        self._replies = [(keys.new_empty(shape), keys.new_empty(shape)) for _ in prompts.layers]
        self._beyond = torch.arange(keys.shape[2])[None] >= prompts.lengths[:, None]
        self.prompt_of = prompt_of
        self.tokens = 0
        """How many reply tokens are remembered, the one being read included."""
        self._lay_out()

    def _lay_out(self) -> None:
        """Give each row a slot beside the other rows of its prompt, so that one product serves them all."""
        counts = torch.bincount(self.prompt_of, minlength=len(self._prompts.lengths))
        self._width = int(counts.max())
        order = torch.argsort(self.prompt_of, stable=True)
        first = torch.cumsum(counts, 0) - counts
        self._slots = torch.empty_like(order)
        sorted_prompts = self.prompt_of[order]
        self._slots[order] = sorted_prompts * self._width + torch.arange(len(order)) - first[sorted_prompts]
        self._mask = torch.zeros(self._beyond.shape).masked_fill_(self._beyond, float("-inf"))[:, None, None]

    def keep(self, rows: Tensor) -> None:
        """Forget every other row, and the prompts that no row continues."""
        self._replies = [(key[rows], value[rows]) for key, value in self._replies]
        used, self.prompt_of = torch.unique(self.prompt_of[rows], return_inverse=True)
        if len(used) < len(self._prompts.lengths):
            layers = [(key[used], value[used]) for key, value in self._prompts.layers]
            self._prompts = Prompts(layers, self._prompts.lengths[used])
            self._beyond = self._beyond[used]
        self._lay_out()

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        reply_key, reply_value = self._replies[layer]
        reply_key[:, :, self.tokens - 1], reply_value[:, :, self.tokens - 1] = key[:, :, 0], value[:, :, 0]
        reply_key, reply_value = reply_key[:, :, : self.tokens], reply_value[:, :, : self.tokens]
        prompt_key, prompt_value = self._prompts.layers[layer]
        rows, heads, _, size = query.shape
        key_heads = key.shape[1]
        grouped = query.reshape(rows, key_heads, heads // key_heads, size) * scaling

        to_prompt = self._by_row(self._by_prompt(grouped) @ prompt_key.transpose(2, 3) + self._mask)
        to_reply = grouped @ reply_key.transpose(2, 3)
        weights = torch.cat([to_prompt, to_reply], dim=-1).softmax(dim=-1)
        on_prompt, on_reply = weights[..., : -self.tokens], weights[..., -self.tokens :]
        attended = self._by_row(self._by_prompt(on_prompt) @ prompt_value) + on_reply @ reply_value
        return attended.reshape(rows, heads, 1, size)

    def _by_prompt(self, of_rows: Tensor) -> Tensor:
        """[rows, heads, group, x] → [prompts, heads, slots x group, x]"""
        _, heads, group, last = of_rows.shape
        prompts = len(self._prompts.lengths)
        slotted = of_rows.new_zeros(prompts * self._width, heads, group, last)
        slotted[self._slots] = of_rows
        slotted = slotted.view(prompts, self._width, heads, group, last).transpose(1, 2)
        return slotted.reshape(prompts, heads, self._width * group, last)

    def _by_row(self, of_prompts: Tensor) -> Tensor:
        """The inverse of ``_by_prompt``."""
        prompts, heads, _, last = of_prompts.shape
        slotted = of_prompts.view(prompts, heads, self._width, -1, last).transpose(1, 2)
        return slotted.reshape(prompts * self._width, heads, -1, last)[self._slots]


def padded(layers_by_prompt: list[list[Layer]], lengths: list[int]) -> Prompts:
    """Prompts that were read apart, each [1, heads, its length, size] per layer, as one."""
    longest = max(lengths)
    layers = []
    for layer in zip(*layers_by_prompt, strict=True):
        keys = torch.cat([pad(key, (0, 0, 0, longest - key.shape[2])) for key, _ in layer])
        values = torch.cat([pad(value, (0, 0, 0, longest - value.shape[2])) for _, value in layer])
        layers.append((keys, values))
    return Prompts(layers, torch.tensor(lengths))
