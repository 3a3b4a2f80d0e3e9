"""Attention over a packed sequence: who sees whom, and what comes before a prompt without being in the sequence.

Attention computes only the pairs that may see each other: the prompt of a cluster, then its replies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

from trainer.inference.shared_prefix import Layer

if TYPE_CHECKING:
    from torch import Tensor


class Block(NamedTuple):
    """Rows of queries, and a range that contains all keys they may see."""

    rows: slice
    keys: slice


class Layout:
    """Who sees whom in one packed sequence, from ART's group and parent ids ([1, tokens] each).

    ``beginnings`` has what comes before a prompt, by the prompt's id, as it was read: seen by that prompt and its
    replies, and without gradient.
    """

    def __init__(
        self, group_ids: Tensor, parent_ids: Tensor, beginnings: Mapping[int, Sequence[Layer]] | None = None
    ) -> None:
        self.visible = visibility(group_ids, parent_ids)
        self.blocks = _blocks(group_ids[0], parent_ids[0])
        self._parents = parent_ids[0]
        self._beginnings = beginnings or {}
        self._before = [self._prompts_with_beginning(block) for block in self.blocks]
        self._masks: dict[int, list[Tensor]] = {}

    def masks(self, heads_per_key: int) -> list[Tensor]:
        """Additive masks of the blocks, repeated for the query heads that share a key head."""
        if heads_per_key not in self._masks:
            parts = [
                torch.cat([*self._sees(block, before), self.visible[block.rows, block.keys]], dim=1)
                for block, before in zip(self.blocks, self._before, strict=True)
            ]
            self._masks[heads_per_key] = [
                torch.zeros(part.shape).masked_fill_(~part, float("-inf")).repeat(heads_per_key, 1)[None, None]
                for part in parts
            ]
        return self._masks[heads_per_key]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Query heads that share a key head are stacked on it, so that keys and values are not copied."""
        rows, heads, _, size = query.shape
        key_heads = key.shape[1]
        parts = []
        for block, before, mask in zip(self.blocks, self._before, self.masks(heads // key_heads), strict=True):
            grouped = query[:, :, block.rows].reshape(rows, key_heads, -1, size)
            read = [self._beginnings[prompt][layer] for prompt in before]
            keys = torch.cat([*(one for one, _ in read), key[:, :, block.keys]], dim=2)
            values = torch.cat([*(one for _, one in read), value[:, :, block.keys]], dim=2)
            attended = scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=scaling)
            parts.append(attended.reshape(rows, heads, -1, size).transpose(1, 2))
        return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]

    def _prompts_with_beginning(self, block: Block) -> list[int]:
        """The prompts of the block's rows that have a beginning; one, but for a cluster that is not contiguous."""
        return [prompt for prompt in torch.unique(self._parents[block.rows]).tolist() if prompt in self._beginnings]

    def _sees(self, block: Block, before: Sequence[int]) -> list[Tensor]:
        """Which rows of the block see each beginning: those of its prompt, all of it."""
        parents = self._parents[block.rows]
        return [(parents == prompt)[:, None].expand(-1, self._beginnings[prompt][0][0].shape[2]) for prompt in before]


def visibility(group_ids: Tensor, parent_ids: Tensor) -> Tensor:
    """ART's rule [tokens, tokens]: a token sees, up to itself, its own group and its parent's."""
    groups, parents = group_ids[0], parent_ids[0]
    seen = (groups[:, None] == groups[None, :]) | (parents[:, None] == groups[None, :])
    return seen.tril()


def _blocks(groups: Tensor, parents: Tensor) -> list[Block]:
    """Prompt and replies of each cluster; one block of everything if a cluster is not contiguous."""
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
