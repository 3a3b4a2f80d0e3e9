"""How far a checkpoint is from the base model: the input of the gate's KL guard.

Measured on the candidate itself, at its own replies to the held-out decision points: the KL of a training step is that
of the policy before its update, so it would always describe the previous checkpoint. Possible only if both models run
on this machine.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from collections.abc import Awaitable, Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from data_bridge.models import ChatMessage
from trainer.inference.base_model import model_directory
from trainer.inference.chat_models import adapter_of
from trainer.types import Checkpoint

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

_LOGITS_AT_ONCE = 128
"""Tokens at a time: the logits of a whole vocabulary are large."""
_MOST_POINTS = 20
"""Decision points that are read, evenly spaced: each costs two passes over its prompt, and a limit needs no more."""

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SampledReplies:
    """A checkpoint's replies at one decision point, as sampled."""

    messages: Sequence[ChatMessage]
    replies: tuple[Tokens, ...]


def divergences(own: Tensor, base: Tensor) -> Tensor:
    """KL(own || base) in nats for each row of logits. Exact, so one unlikely token cannot inflate it."""
    ours, theirs = own.log_softmax(dim=-1), base.log_softmax(dim=-1)
    return (ours.exp() * (ours - theirs)).sum(dim=-1)


def mean_divergence(per_token: Sequence[float]) -> float:
    """One number for the guard. NaN becomes the largest float, beyond any limit: JSON has no NaN, and a NaN that came
    back from the ledger as null would look like a guard that was not measured."""
    mean = math.fsum(per_token) / len(per_token)
    return mean if math.isfinite(mean) else sys.float_info.max


def divergence_from_base(base: Path, adapter: Path | None, answered: Sequence[SampledReplies]) -> float | None:
    """Mean KL per sampled token of the checkpoint in ``adapter`` from the model in ``base``; None without a token.

    Of many decision points some are read.
    """
    import torch

    from trainer.inference.base_model import Adapters, load_base, load_tokenizer, prompt_tokens
    from trainer.inference.shared_prefix import that_begin_alike

    started = monotonic()
    tokenizer, model = load_tokenizer(base), load_base(base, attention="sdpa")
    adapters = Adapters(model)
    known = [replace(point, replies=tuple(filter(None, point.replies))) for point in answered]
    known = evenly_spaced([point for point in known if point.replies], _MOST_POINTS)
    if not known:
        return None
    spoken = [(prompt_tokens(tokenizer, point.messages), point.replies) for point in known]
    with torch.no_grad():
        alike = [[spoken[index] for index in own] for own in that_begin_alike([prompt for prompt, _ in spoken])]
        adapters.use(adapter)
        own = torch.cat([_hidden(model, some) for some in alike])
        adapters.use(None)
        other = torch.cat([_hidden(model, some) for some in alike])
        head = model.get_output_embeddings()  # LoRA does not change it: it is the same for both
        per_token: list[float] = []
        for start in range(0, len(own), _LOGITS_AT_ONCE):
            tokens = slice(start, start + _LOGITS_AT_ONCE)
            per_token += divergences(head(own[tokens]), head(other[tokens])).tolist()
    logger.info("KL from the base model measured at %d tokens in %.1f s", len(per_token), monotonic() - started)
    return mean_divergence(per_token)


def evenly_spaced(points: Sequence[SampledReplies], most: int) -> list[SampledReplies]:
    """At most so many of the points, from the first on."""
    number = min(len(points), most)
    return [points[place * len(points) // number] for place in range(number)]


def _hidden(model: Any, spoken: Sequence[tuple[Tokens, tuple[Tokens, ...]]]) -> Tensor:
    """The output layer's input for predicting each token of each reply, one row per token.

    The common beginning of all prompts (instructions, worked examples) is read once, and each prompt once for its
    replies.
    """
    import torch

    from trainer.inference.shared_prefix import shared_beginning

    prompts = [prompt for prompt, _ in spoken]
    shared = min(shared_beginning(prompts), min(map(len, prompts)) - 1)
    instructions = _read(model, [prompts[0][:shared]]).past_key_values if shared else None
    parts = []
    for prompt, replies in spoken:
        memory: Any = deepcopy(instructions)
        if question := prompt[shared:-1]:
            memory = _read(model, [question], memory).past_key_values
        memory.batch_repeat_interleave(len(replies))
        longest = max(map(len, replies))
        # A token is predicted from the one before it; the padding after a reply is ignored.
        rows = [(prompt[-1], *reply[:-1], *(0,) * (longest - len(reply))) for reply in replies]
        is_reply = torch.arange(longest)[None, :] < torch.tensor([[len(reply)] for reply in replies])
        parts.append(_read(model, rows, memory).last_hidden_state[is_reply])
    return torch.cat(parts)


def _read(model: Any, rows: Sequence[Tokens], memory: Any = None) -> Any:
    import torch

    return model.base_model(torch.tensor(rows), past_key_values=memory, use_cache=True)


MeasureKL = Callable[[Sequence[SampledReplies]], Awaitable[float | None]]


def kl_meter(checkpoint: Checkpoint, base_model: str, home: Path) -> MeasureKL | None:
    """Measures how far ``checkpoint`` is from its base model at its own replies; None if it cannot run here."""
    if not checkpoint.abilities.runs_in_engine:
        return None
    base, adapter = model_directory(base_model, home), adapter_of(checkpoint)

    async def measure(answered: Sequence[SampledReplies]) -> float | None:
        return await asyncio.to_thread(divergence_from_base, base, adapter, answered)

    return measure
