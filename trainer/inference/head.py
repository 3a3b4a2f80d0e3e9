"""The output layer: log-probability and entropy of chosen tokens, without keeping a vocabulary for each of them.

A small model has a large vocabulary: the logits of 500 tokens take 100 MB, and softmax and gradient as much again. Here
a few tokens are done at a time in the same memory. And since a log-probability is one number, its gradient is known up
to a factor when it is computed: the target's weights, less the mean of all weights under the distribution. That, as
large as the layer's input, is all that the backward pass needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

_TOKENS_AT_ONCE = 128
"""Matrix products are at full speed, and a block is small enough for malloc to use again."""


def chosen_logprobs(hidden: Tensor, weight: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities of ``wanted`` [tokens], and entropies without a gradient.

    ``weight`` [vocabulary, size] is frozen. Gradients equal those of ``log_softmax``.
    """
    found: tuple[Tensor, Tensor] = _ChosenLogprobs.apply(hidden, weight, wanted)  # type: ignore[no-untyped-call]  # torch's own
    return found


class _ChosenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        logprobs, entropies = hidden.new_empty(len(wanted)), hidden.new_empty(len(wanted))
        slopes = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        room = hidden.new_empty(2, min(_TOKENS_AT_ONCE, len(wanted)), len(weight))
        for start in range(0, len(wanted), _TOKENS_AT_ONCE):
            some = slice(start, min(start + _TOKENS_AT_ONCE, len(wanted)))
            logits, shares = room[:, : some.stop - some.start]
            torch.mm(hidden[some], weight.t(), out=logits)
            logits -= logits.logsumexp(dim=-1, keepdim=True)
            torch.exp(logits, out=shares)
            logprobs[some] = logits.gather(1, wanted[some, None])[:, 0]
            if slopes is not None:
                torch.mm(shares, weight, out=slopes[some])
                torch.sub(weight[wanted[some]], slopes[some], out=slopes[some])
            entropies[some] = -shares.mul_(logits).sum(dim=-1)
        if slopes is not None:
            ctx.save_for_backward(slopes)
        ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        [slopes] = ctx.saved_tensors
        return slopes * gradients[0][:, None], None, None
