"""Attention that stores what many replies share only once.

Prompts of one hour share their rules and examples; the agents of one decision share the whole prompt. So a
batch has three levels: a shared beginning, the distinct prompts, and the replies, each in its own small tensor.
transformers calls ``attend`` of the given memory instead of its own attention; keys and values are never repeated for
grouped heads, for rows, or for a step.

A ``PromptReader`` reads each distinct prompt into such memory once, and remembers beginnings from call to call.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.nn.functional import pad, scaled_dot_product_attention

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

IMPLEMENTATION = "hindsight_memory"

Layer = tuple["Tensor", "Tensor"]
"""Keys and values of one layer: [rows, key heads, tokens, head size]."""
Tokens = tuple[int, ...]

_BLOCK = 64
"""Reply tokens allocated at a time: little is unused, and old ones are seldom copied."""
_WORTH_SHARING = 16
"""With fewer common tokens than this, reading them again is cheaper than reading them separately."""
_ALIKE = 0.6
"""Prompts that share less than this share of their tokens are read apart: they have little to gain from each other."""
_PROMPTS_WORTH_KEEPING = 0.75
"""Prompts that no row continues are kept until only this share of them is in use: copying the others costs more."""
_TOKENS_AT_ONCE = 4096
_REMEMBERED = 4


class Memory(Protocol):
    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Attention output [rows, tokens, heads, head size] over what ``query`` may see; may store keys and values."""
        ...


def register() -> str:
    """Register the attention with transformers; returns its name for loading a model."""
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
    return memory.attend(module.layer_idx, query, key, value, scaling), None


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
        return attended.reshape(rows, heads, tokens, size).transpose(1, 2)


@dataclass(slots=True)
class Prompts:
    """Distinct prompts after reading: keys and values per layer, padded to the longest."""

    tokens: list[Tokens]
    layers: list[Layer]

    @property
    def lengths(self) -> Tensor:
        return torch.tensor([len(prompt) for prompt in self.tokens])

    def keep(self, rows: list[int]) -> None:
        """Drop all other prompts."""
        self.tokens = [self.tokens[row] for row in rows]
        longest = max(map(len, self.tokens))
        for layer, (key, value) in enumerate(self.layers):
            self.layers[layer] = key[rows, :, :longest], value[rows, :, :longest]

    def add(self, other: Prompts) -> Tensor:
        """Add the prompts of ``other``, each once; returns their rows here."""
        new = [row for row, prompt in enumerate(other.tokens) if prompt not in self.tokens]
        if new:
            self.tokens = [*self.tokens, *(other.tokens[row] for row in new)]
            for layer, (key, value) in enumerate(self.layers):
                other_key, other_value = other.layers[layer]
                self.layers[layer] = _stacked([key, other_key[new]]), _stacked([value, other_value[new]])
        return torch.tensor([self.tokens.index(prompt) for prompt in other.tokens])


class ReplyMemory:
    """Replies in progress, one token a step for every row; row ``i`` continues prompt ``prompt_of[i]``.

    The first columns of a row that joined later are empty: all rows write into the same column.
    """

    def __init__(self, prompts: Prompts, prompt_of: Tensor) -> None:
        self._prompts = prompts
        keys = prompts.layers[0][0]
        nothing = keys.new_empty(len(prompt_of), keys.shape[1], 0, keys.shape[3])
        self._replies: list[Layer] = [(nothing, nothing) for _ in prompts.layers]
        self._prompt_of = prompt_of
        self._empty = torch.zeros_like(prompt_of)
        """How many of a row's first columns are empty."""
        self.tokens = 0
        """How many reply tokens are stored, including the current one."""
        self._lay_out()

    def _lay_out(self) -> None:
        """Give each row a slot next to the other rows of its prompt, so that one matrix product serves them all."""
        lengths = self._prompts.lengths
        counts = torch.bincount(self._prompt_of, minlength=len(lengths))
        self._width = int(counts.max())
        order = torch.argsort(self._prompt_of, stable=True)
        first = torch.cumsum(counts, 0) - counts
        self._slots = torch.empty_like(order)
        sorted_prompts = self._prompt_of[order]
        self._slots[order] = sorted_prompts * self._width + torch.arange(len(order)) - first[sorted_prompts]
        self._prompt_mask = _hidden(torch.arange(int(lengths.max()))[None] >= lengths[:, None])
        self._reply_mask = _hidden(torch.arange(int(self._empty.max()))[None] < self._empty[:, None])

    def keep(self, rows: Tensor) -> None:
        """Drop all other rows, the columns that no row uses, and the prompts that no row continues, if they are many.

        A row that is named several times is several rows from then on.
        """
        self._empty = self._empty[rows]
        unused = int(self._empty.min())
        for layer, (key, value) in enumerate(self._replies):  # one at a time: the old layer is freed before the next
            self._replies[layer] = key[rows, :, unused : self.tokens], value[rows, :, unused : self.tokens]
        self.tokens -= unused
        self._empty = self._empty - unused
        self._prompt_of = self._prompt_of[rows]
        used, among_used = torch.unique(self._prompt_of, return_inverse=True)
        if len(used) < _PROMPTS_WORTH_KEEPING * len(self._prompts.tokens):
            self._prompts.keep(used.tolist())
            self._prompt_of = among_used
        self._lay_out()

    def join(self, other: ReplyMemory) -> None:
        """Append the rows of ``other``."""
        place = self._prompts.add(other._prompts)
        self._prompt_of = torch.cat([self._prompt_of, place[other._prompt_of]])
        tokens = max(self.tokens, other.tokens)
        for layer in range(len(self._replies)):
            (key, value), (other_key, other_value) = self._replies[layer], other._replies[layer]
            self._replies[layer] = (
                torch.cat([_ending(key, self.tokens, tokens), _ending(other_key, other.tokens, tokens)]),
                torch.cat([_ending(value, self.tokens, tokens), _ending(other_value, other.tokens, tokens)]),
            )
        self._empty = torch.cat([self._empty + tokens - self.tokens, other._empty + tokens - other.tokens])
        self.tokens = tokens
        self._lay_out()

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        reply_key, reply_value = self._remembered(layer, key, value)
        prompt_key, prompt_value = self._prompts.layers[layer]
        rows, heads, _, size = query.shape
        key_heads = key.shape[1]
        grouped = query.reshape(rows, key_heads, heads // key_heads, size) * scaling

        to_prompt = self._by_row(self._by_prompt(grouped) @ prompt_key.transpose(2, 3) + self._prompt_mask)
        to_reply = grouped @ reply_key.transpose(2, 3)
        to_reply[..., : self._reply_mask.shape[-1]] += self._reply_mask
        weights = torch.cat([to_prompt, to_reply], dim=-1).softmax(dim=-1)
        on_prompt, on_reply = weights[..., : -self.tokens], weights[..., -self.tokens :]
        attended = self._by_row(self._by_prompt(on_prompt) @ prompt_value) + on_reply @ reply_value
        return attended.reshape(rows, heads, 1, size).transpose(1, 2)

    def _remembered(self, layer: int, key: Tensor, value: Tensor) -> Layer:
        """Keys and values of every reply token of ``layer``, including this newest one."""
        keys, values = self._replies[layer]
        if keys.shape[2] < self.tokens:
            keys, values = pad(keys, (0, 0, 0, _BLOCK)), pad(values, (0, 0, 0, _BLOCK))
            self._replies[layer] = keys, values
        keys[:, :, self.tokens - 1], values[:, :, self.tokens - 1] = key[:, :, 0], value[:, :, 0]
        return keys[:, :, : self.tokens], values[:, :, : self.tokens]

    def _by_prompt(self, of_rows: Tensor) -> Tensor:
        """[rows, heads, group, x] → [prompts, heads, slots x group, x]"""
        _, heads, group, last = of_rows.shape
        prompts = len(self._prompts.tokens)
        slotted = of_rows.new_zeros(prompts * self._width, heads, group, last)
        slotted[self._slots] = of_rows
        slotted = slotted.view(prompts, self._width, heads, group, last).transpose(1, 2)
        return slotted.reshape(prompts, heads, self._width * group, last)

    def _by_row(self, of_prompts: Tensor) -> Tensor:
        """The inverse of ``_by_prompt``."""
        prompts, heads, _, last = of_prompts.shape
        slotted = of_prompts.view(prompts, heads, self._width, -1, last).transpose(1, 2)
        return slotted.reshape(prompts * self._width, heads, -1, last)[self._slots]


def padded(layers_by_prompt: list[list[Layer]], prompts: Sequence[Tokens]) -> Prompts:
    """Prompts that were read separately, each [1, heads, its length, size] per layer, as one."""
    layers = [
        (_stacked([key for key, _ in layer]), _stacked([value for _, value in layer]))
        for layer in zip(*layers_by_prompt, strict=True)
    ]
    return Prompts(list(prompts), layers)


def _stacked(parts: list[Tensor]) -> Tensor:
    """Rows of different lengths as one tensor, the shorter ones padded at the end."""
    longest = max(part.shape[2] for part in parts)
    return torch.cat([pad(part, (0, 0, 0, longest - part.shape[2])) for part in parts])


def _ending(part: Tensor, tokens: int, width: int) -> Tensor:
    """The first ``tokens`` columns of ``part``, moved to the end of ``width``."""
    return pad(part[:, :, :tokens], (0, 0, width - tokens, 0))


def _hidden(columns: Tensor) -> Tensor:
    """The mask to add to attention scores [rows, heads, group, columns] so that these ``columns`` get no attention."""
    return torch.zeros(columns.shape).masked_fill_(columns, float("-inf"))[:, None, None]


class PromptReader:
    """Turns token sequences into ``Prompts`` and the hidden state that each one's reply starts from."""

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder
        self._remembered: OrderedDict[tuple[Path | None, Tokens], list[Layer]] = OrderedDict()

    def read(self, prompts: Sequence[Tokens], adapter: Path | None) -> tuple[Prompts, Tensor]:
        """Read distinct ``prompts``, all with one adapter. The hidden states are those of each last token."""
        read: dict[int, tuple[list[Layer], Tensor]] = {}
        for alike in that_begin_alike(prompts):
            found = self._read_alike([prompts[index] for index in alike], adapter)
            read |= dict(zip(alike, found, strict=True))
        by_prompt = [read[index][0] for index in range(len(prompts))]
        self._remember((adapter, prompts[-1]), by_prompt[-1])
        return padded(by_prompt, prompts), torch.stack([read[index][1] for index in range(len(prompts))])

    def _read_alike(self, prompts: Sequence[Tokens], adapter: Path | None) -> list[tuple[list[Layer], Tensor]]:
        """The layers and the last hidden state of each of ``prompts``, whose common beginning is read once."""
        common = min(shared_beginning(prompts), min(len(prompt) for prompt in prompts) - 1)
        beginning = self._beginning(prompts[0][:common], adapter, alone=len(prompts) == 1)
        known = beginning[0][0].shape[2] if beginning else 0
        found: dict[int, tuple[list[Layer], Tensor]] = {}
        for chosen in _in_chunks([len(prompt) - known for prompt in prompts]):
            layers, hidden = self._forward([prompts[index][known:] for index in chosen], beginning, known)
            for row, index in enumerate(chosen):
                length = len(prompts[index]) - known
                own = [
                    (_joined(beginning, at, 0, key, row, length), _joined(beginning, at, 1, value, row, length))
                    for at, (key, value) in enumerate(layers)
                ]
                found[index] = own, hidden[row, length - 1]
        return [found[index] for index in range(len(prompts))]

    def bytes_per_token(self) -> int:
        """Memory for one token of one row; measured, since architectures name their sizes differently."""
        layers, _ = self._forward([(0,)], [], 0)
        return sum(key.nbytes + value.nbytes for key, value in layers)

    def _beginning(self, common: Tokens, adapter: Path | None, *, alone: bool) -> list[Layer]:
        """Keys and values of the longest useful part of ``common``; empty if none is worth storing."""
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


def that_begin_alike(prompts: Sequence[Tokens]) -> list[list[int]]:
    """Indices of ``prompts`` that share most of their tokens: hours of one day do, those of the next have others."""
    ordered = sorted(range(len(prompts)), key=prompts.__getitem__)
    clusters = [ordered[:1]]
    for before, index in pairwise(ordered):
        shared = shared_beginning([prompts[before], prompts[index]])
        if shared >= _ALIKE * min(len(prompts[before]), len(prompts[index])):
            clusters[-1].append(index)
        else:
            clusters.append([index])
    return clusters


def shared_beginning(sequences: Sequence[tuple[int, ...]]) -> int:
    """How many leading tokens all ``sequences`` have in common."""
    return common_length(min(sequences), max(sequences))  # all others sort between these two, so they share it too


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """How many first tokens the two share."""
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return index
    return min(len(one), len(other))


def beginning_of(
    messages: Sequence[Any], tokens: Sequence[int], tokenizer: PreTrainedTokenizerBase, known: dict[str, int]
) -> int:
    """How many of the ``tokens`` of a prompt precede its last message; 0 if that cannot be told."""
    before = list(messages[:-1])
    key = repr(before)
    if key not in known:
        try:
            encoded = tokenizer.apply_chat_template(before, return_dict=True)["input_ids"] if before else []
        except Exception:  # a chat template is a program of its own and raises what it likes
            encoded = []
        known[key] = common_length(encoded, tokens)
    return known[key]
