"""Which token comes next: pure functions of the logits and of numbers drawn per request.

Each row brings its own uniform number, so a request with a seed gives the same reply whoever shares its
batch, up to the rounding of a differently shaped matrix product.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def random_source(seed: int | None, sample: int) -> random.Random:
    """The stream of numbers of one reply: its own for every sample of a request."""
    return random.Random() if seed is None else random.Random(f"{seed}:{sample}")


def choose(logits: Tensor, temperatures: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """One token per row by inverse transform, and its log-probability at temperature 1.

    Temperature 0 takes the likeliest token.
    """
    greedy = temperatures <= 0
    scaled = logits / torch.where(greedy, torch.ones_like(temperatures), temperatures)[:, None]
    cumulative = torch.softmax(scaled, dim=-1).double().cumsum(dim=-1)
    targets = (uniforms.double() * cumulative[:, -1])[:, None]
    sampled = torch.searchsorted(cumulative, targets, right=True)[:, 0].clamp_max(logits.shape[-1] - 1)
    tokens = torch.where(greedy, logits.argmax(dim=-1), sampled)
    logprobs = logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(dim=-1)
    return tokens, logprobs


def cut_at_stop(text: str, stops: Sequence[str]) -> str | None:
    """``text`` up to the first of ``stops``, or None if it holds none."""
    places = [place for stop in stops if stop and (place := text.find(stop)) >= 0]
    return text[: min(places)] if places else None


def shared_beginning(sequences: Sequence[tuple[int, ...]]) -> int:
    """How many leading tokens all ``sequences`` have in common."""
    shortest, longest = min(sequences), max(sequences)  # between the extremes of the order, all others share it too
    for index, (one, other) in enumerate(zip(shortest, longest, strict=False)):
        if one != other:
            return index
    return min(len(shortest), len(longest))
