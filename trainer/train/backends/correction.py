"""What a token counts that was sampled by a policy other than the one being trained.

The objective is decoupled: the update is clipped around the *proximal* policy, where it starts, and each token is
weighted by how likely that policy says it compared with the *behaviour* policy, which sampled it. The weight is
truncated (ART's ``truncated_importance_sampling``), so that no token outweighs the others, whatever its row claims.

Without more, nothing would keep a policy near a log that it is trained on step after step: around the proximal policy
the ratio is always near 1. So a token that has already become so much likelier (or less likely) than when it was
sampled, in the direction that it is pushed, is masked: the log has nothing more to say about it. So is one whose ratio
is hopeless in either direction. Both are counted.

A token without a behaviour policy (another model's, or one whose log-probability nobody knows) enters no ratio at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from data_bridge.art_converter import BEHAVIOUR

if TYPE_CHECKING:
    from art.preprocessing.tokenize import TokenizedResult
    from torch import Tensor

HOPELESS = 10.0
"""A token so many times more or less likely than when it was sampled is not trained at all."""
BEHAVIOUR_INPUT = "original_logprobs"
"""The name that ART's loss reads the behaviour's log-probabilities under."""
MASKS = ("hopeless", "pushed")
"""Why a token is masked: its ratio is hopeless, or it has moved far enough in the direction that it is pushed."""


@dataclass(frozen=True, slots=True)
class Region:
    """How far the policy may move from the one that sampled a token, as a ratio of the two."""

    most: float = 1.3
    """The largest weight; and beyond it, or below its inverse, a token is pushed no further."""


DEFAULT_REGION = Region()


def has_other_behaviour(results: Sequence[TokenizedResult]) -> bool:
    """Whether some token was not sampled by the proximal policy."""
    return any(BEHAVIOUR in result.extra_logprobs for result in results)


def with_behaviour(result: TokenizedResult) -> TokenizedResult:
    """``result`` with the behaviour's log-probabilities in place of the proximal's; infinite if they are the same."""
    return replace(result, logprobs=result.extra_logprobs.get(BEHAVIOUR, [math.inf] * len(result.logprobs)))


def correct(inputs: dict[str, Any], behaviour: Tensor, region: Region) -> None:
    """Give packed ``inputs`` the behaviour's log-probabilities, and mask what has moved too far.

    Tensors are [sequences, tokens]. ``behaviour`` is as ``with_behaviour`` makes it, and not a number where a token
    enters no ratio.
    """
    trained, proximal = inputs["assistant_mask"], inputs["logprobs"]
    behaviour = torch.where(behaviour.isinf(), proximal, behaviour)
    proximal = torch.where(behaviour.isnan(), behaviour, proximal)
    moved = (proximal - behaviour).nan_to_num(0.0)
    hopeless = trained & (moved.abs() > math.log(HOPELESS))
    pushed = trained & (moved * inputs["advantages"].sign() > math.log(region.most)) & ~hopeless
    inputs |= {
        "logprobs": proximal,
        BEHAVIOUR_INPUT: behaviour,
        "weights": inputs["weights"].masked_fill(hopeless | pushed, 0.0),
        "hopeless": hopeless,
        "pushed": pushed,
    }
