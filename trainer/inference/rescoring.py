"""Log-probabilities of logged replies: of the current policy, and of the one that sampled them where that can be had.

The log usually has what the sampling policy said of its tokens, at temperature 1. A reply that was sampled at another
temperature, or from the likeliest part only, came from another distribution; where the checkpoint that sampled it is
still on this machine, that distribution is computed (the base model always is). The same for a reply of a known step
that was logged without log-probabilities. What cannot be computed is left as it is and counted by the converter.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from data_bridge.authorship import Sampling
from data_bridge.errors import BackendError
from data_bridge.scoring import Scored, ScoreRequest

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.inference.policy import CpuPolicy


@dataclass(frozen=True, slots=True)
class Position:
    """The policy at the checkpoint where the next step starts, and the others that it can be compared with."""

    policy: CpuPolicy
    step: int
    checkpoint: Callable[[int], Path | None]
    """The directory of a trained step; None if it is gone."""


@dataclass(frozen=True, slots=True)
class PolicyScorer:
    """Scores replies for callers outside the thread that owns the policy."""

    in_thread: Callable[[Callable[[], list[Scored | None]]], Awaitable[list[Scored | None]]]
    position: Callable[[], Position]
    """Called in that thread."""

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Scored | None]:
        """Tokens of logged replies, with the log-probabilities of the current policy and of the one that sampled."""
        return await self.in_thread(lambda: scored(self.position(), requests))


def scored(position: Position, requests: Sequence[ScoreRequest]) -> list[Scored | None]:
    """What ``PolicyScorer`` answers; in the policy's thread."""
    found = position.policy.score(requests)
    wanted: dict[int, list[int]] = {}
    for place, (request, one) in enumerate(zip(requests, found, strict=True)):
        if one is None or not one.token_ids:
            continue
        if one.source != "log":  # who sampled it said nothing of it: it enters no ratio, unless that can be computed
            found[place] = replace(one, behaviour=(math.nan,) * len(one.token_ids))
        if _needs_computing(request, one, position.step) and request.sampling.step is not None:
            wanted.setdefault(request.sampling.step, []).append(place)
    for step, places in wanted.items():
        for place, values in zip(places, _behaviour(position, step, requests, found, places), strict=True):
            one = found[place]
            if one is not None and values is not None:
                found[place] = replace(one, behaviour=values, is_corrected=True)
    return found


def _needs_computing(request: ScoreRequest, one: Scored, step: int) -> bool:
    if one.source == "log":
        return request.is_off
    return one.source == "policy" and (request.is_off or request.sampling.step != step)


def _behaviour(
    position: Position, step: int, requests: Sequence[ScoreRequest], found: Sequence[Scored | None], places: list[int]
) -> list[tuple[float, ...] | None]:
    """What the policy of ``step`` said of these replies as they were sampled; None where that is not known."""
    directory = position.checkpoint(step) if step > 0 else None
    if step > 0 and directory is None:
        return [None] * len(places)
    try:
        with position.policy.as_checkpoint(directory):
            return [_drawn(position.policy, requests[place], found[place]) for place in places]
    except BackendError:  # the checkpoint has another shape: it cannot be compared
        return [None] * len(places)


def _drawn(policy: CpuPolicy, request: ScoreRequest, one: Scored | None) -> tuple[float, ...] | None:
    assert one is not None
    if request.sampling.is_greedy:
        return (0.0,) * len(one.token_ids)  # the likeliest token is drawn for certain
    prompt = policy.prompt_of(request, len(one.token_ids))
    if prompt is None:
        return None
    hidden = policy.read_replies(prompt, [one.token_ids]).hidden
    values = drawn_logprobs(policy.logits(hidden), torch.tensor(one.token_ids), request.sampling)
    return tuple(values.tolist()) if bool(values.isfinite().all()) else None


def drawn_logprobs(logits: Tensor, wanted: Tensor, sampling: Sampling) -> Tensor:
    """Log-probabilities of ``wanted`` [tokens] in the distribution that ``sampling`` makes of ``logits``.

    Top-p keeps the likeliest tokens until their share reaches it. A token outside, which rounding or a false row may
    claim, keeps what the whole distribution says of it.
    """
    whole = torch.log_softmax(logits / sampling.temperature, dim=-1)
    own = whole.gather(1, wanted[:, None])[:, 0]
    if sampling.top_p >= 1:
        return own
    ordered = whole.sort(dim=-1, descending=True).values
    shares = ordered.exp()
    is_kept = shares.cumsum(dim=-1) - shares < sampling.top_p
    kept = (shares * is_kept).sum(dim=-1)
    least = ordered.masked_fill(~is_kept, math.inf).min(dim=-1).values
    return torch.where(own >= least, own - kept.log(), own)
