"""Reads prompts into attention memory, each distinct one once, and remembers beginnings from call to call."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from trainer.inference.sampling import shared_beginning
from trainer.inference.shared_prefix import Layer, PromptMemory, Prompts, Tokens, padded

if TYPE_CHECKING:
    from torch import Tensor

_WORTH_SHARING = 16
"""Fewer common tokens than this are cheaper to read again than to read apart."""
_TOKENS_AT_ONCE = 4096
_REMEMBERED = 4


class PromptReader:
    """Turns token sequences into ``Prompts`` and the hidden state that each one's reply starts from."""

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder
        self._remembered: OrderedDict[tuple[Path | None, Tokens], list[Layer]] = OrderedDict()

    def read(self, prompts: Sequence[Tokens], adapter: Path | None) -> tuple[Prompts, Tensor]:
        """Distinct ``prompts``, all under one adapter. The hidden states are those of each last token."""
        common = min(shared_beginning(prompts), min(len(prompt) for prompt in prompts) - 1)
        beginning = self._beginning(prompts[0][:common], adapter, alone=len(prompts) == 1)
        known = beginning[0][0].shape[2] if beginning else 0
        by_prompt: list[list[Layer]] = [[] for _ in prompts]
        last_hidden: list[Tensor] = [torch.empty(0)] * len(prompts)
        for chosen in _in_chunks([len(prompt) - known for prompt in prompts]):
            layers, hidden = self._forward([prompts[index][known:] for index in chosen], beginning, known)
            for row, index in enumerate(chosen):
                length = len(prompts[index]) - known
                last_hidden[index] = hidden[row, length - 1]
                by_prompt[index] = [
                    (_joined(beginning, at, 0, key, row, length), _joined(beginning, at, 1, value, row, length))
                    for at, (key, value) in enumerate(layers)
                ]
        self._remember((adapter, prompts[-1]), by_prompt[-1])
        return padded(by_prompt, prompts), torch.stack(last_hidden)

    def bytes_per_token(self) -> int:
        """What one token of one row takes in memory; measured, since architectures name their sizes differently."""
        layers, _ = self._forward([(0,)], [], 0)
        return sum(key.nbytes + value.nbytes for key, value in layers)

    def _beginning(self, common: Tokens, adapter: Path | None, *, alone: bool) -> list[Layer]:
        """Keys and values of the longest useful part of ``common``; empty if none is worth it."""
        best, source = 0, None
        for (other, tokens), layers in self._remembered.items():
            overlap = shared_beginning([common, tokens]) if other == adapter else 0
            if overlap > best:
                best, source = overlap, layers
        if not alone and len(common) >= best + _WORTH_SHARING:
            layers, _ = self._forward([common], [], 0)
            self._remember((adapter, common), layers)
            return layers
        if source is None or best < _WORTH_SHARING:
            return []
        return [(key[:, :, :best], value[:, :, :best]) for key, value in source]

    def _forward(self, rows: list[Tokens], beginning: list[Layer], known: int) -> tuple[list[Layer], Tensor]:
        width = max(map(len, rows))
        tokens = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
        positions = torch.arange(known, known + width)[None]
        memory = PromptMemory(beginning, width)
        hidden = self._decoder(input_ids=tokens, position_ids=positions, use_cache=False, memory=memory)
        return memory.layers, hidden.last_hidden_state

    def _remember(self, key: tuple[Path | None, Tokens], layers: list[Layer]) -> None:
        self._remembered[key] = layers
        self._remembered.move_to_end(key)
        while len(self._remembered) > _REMEMBERED:
            self._remembered.popitem(last=False)

    def forget(self) -> None:
        self._remembered.clear()


def _joined(beginning: list[Layer], layer: int, part: int, new: Tensor, row: int, length: int) -> Tensor:
    own = new[row : row + 1, :, :length]
    return torch.cat([beginning[layer][part], own], dim=2) if beginning else own.clone()


def _in_chunks(lengths: Sequence[int]) -> list[list[int]]:
    """Indices by length, in chunks whose padded size stays bounded."""
    chunks: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if chunks and (len(chunks[-1]) + 1) * lengths[index] <= _TOKENS_AT_ONCE:
            chunks[-1].append(index)
        else:
            chunks.append([index])
    return chunks
