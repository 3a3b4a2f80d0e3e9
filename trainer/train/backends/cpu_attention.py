"""Attention over a packed sequence, block by block: only pairs of tokens that may see each other are computed.

A packed sequence is a row of clusters; a cluster is a prompt followed by the replies to it. Prompt tokens see
the prompt so far, reply tokens the prompt and their own reply; nothing sees another cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from torch import Tensor

_NAME = "hindsight_packed"


class Block(NamedTuple):
    """Rows of queries and the range of keys that they may see some of."""

    rows: slice
    keys: slice


class Layout:
    """Who sees whom in one packed sequence, from ART's group and parent ids ([1, tokens] each)."""

    def __init__(self, group_ids: Tensor, parent_ids: Tensor) -> None:
        self.visible = visibility(group_ids, parent_ids)
        self.blocks = _blocks(group_ids[0], parent_ids[0])
        self._masks: dict[int, list[Tensor]] = {}

    def masks(self, heads_per_key: int) -> list[Tensor]:
        """Additive masks of the blocks, repeated for the query heads that share a key head."""
        if heads_per_key not in self._masks:
            parts = [self.visible[block.rows, block.keys] for block in self.blocks]
            self._masks[heads_per_key] = [
                torch.zeros(part.shape).masked_fill_(~part, float("-inf")).repeat(heads_per_key, 1)[None, None]
                for part in parts
            ]
        return self._masks[heads_per_key]


def visibility(group_ids: Tensor, parent_ids: Tensor) -> Tensor:
    """ART's rule [tokens, tokens]: a token sees, up to itself, its own group and its parent's."""
    groups, parents = group_ids[0], parent_ids[0]
    seen = (groups[:, None] == groups[None, :]) | (parents[:, None] == groups[None, :])
    return seen.tril()


def _blocks(groups: Tensor, parents: Tensor) -> list[Block]:
    """Prompt and replies of each cluster; one block of everything if a cluster does not stand together."""
    _, lengths = torch.unique_consecutive(parents, return_counts=True)
    if len(lengths) != len(torch.unique(parents)):
        return [Block(slice(0, len(groups)), slice(0, len(groups)))]
    blocks, start = [], 0
    for length in lengths.tolist():
        stop = start + length
        prompt = start + int((groups[start:stop] == parents[start:stop]).sum())
        blocks += [Block(slice(start, prompt), slice(start, prompt)), Block(slice(prompt, stop), slice(start, stop))]
        start = stop
    return [block for block in blocks if block.rows.start < block.rows.stop]


def register() -> str:
    """Make the attention known to transformers; returns the name to load a model with."""
    from transformers import AttentionInterface

    AttentionInterface.register(_NAME, _attention)
    return _NAME


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    layout: Layout,
    **_: Any,
) -> tuple[Tensor, None]:
    """Query heads that share a key head stand side by side on it, so that keys and values are not copied."""
    rows, heads, _tokens, size = query.shape
    key_heads = key.shape[1]
    parts = []
    for block, mask in zip(layout.blocks, layout.masks(heads // key_heads), strict=True):
        grouped = query[:, :, block.rows].reshape(rows, key_heads, -1, size)
        attended = scaled_dot_product_attention(
            grouped, key[:, :, block.keys], value[:, :, block.keys], attn_mask=mask, scale=scaling
        )
        parts.append(attended.reshape(rows, heads, -1, size).transpose(1, 2))
    return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0], None
