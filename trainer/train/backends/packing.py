"""Groups as packed sequences: what one forward pass of a step reads.

Tokenising and packing are ART's, with three changes. ART shares one prefix per group; a trajectory with several
decisions has several prompts, each shared by all agents of the group, so the replies are regrouped by prompt first. ART
pads every sequence to one length; here each is cut back to its own tokens.

And what precedes the last message of a prompt, its *beginning*, is cut off: it is read once for all sequences of a
step, and no gradient goes through it. Instructions and worked examples are the same in every hour, so what can be
learnt through them is what to say in every hour. Measured on the embedded model: that is where a preference for one
answer comes from, and without it the model learns to read from the same hours (docs/learning.md).
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import torch

from trainer.inference.shared_prefix import Tokens, beginning_of, common_length
from trainer.train.backends.correction import Region, correct, has_other_behaviour, with_behaviour

if TYPE_CHECKING:
    import art
    from art.preprocessing.tokenize import TokenizedResult
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

_WORTHWHILE = 512
"""Matrix products reach full speed at about this many tokens; shorter sequences are packed together."""
_MOST_TOGETHER = 64
"""Replies after one prefix: a row of many steps must not take the square of them to be packed."""
_LONG = 2048
"""Attention over a packed sequence is dense: beyond this length it costs more than reading a prefix twice."""


TokenWeights = Literal["reply", "token"]


@dataclass(frozen=True, slots=True)
class PackedSequence:
    """One sequence of several replies after shared prefixes, as ART's loss expects; every tensor is [1, tokens]."""

    inputs: dict[str, Any]
    beginnings: dict[int, Tokens] = field(default_factory=dict)
    """What comes before the tokens of each prompt, by its id."""

    @property
    def tokens(self) -> Tensor:
        tokens: Tensor = self.inputs["tokens"]
        return tokens

    @property
    def trainable_tokens(self) -> int:
        return int(self.inputs["assistant_mask"].sum())


def pack(
    groups: Sequence[art.TrajectoryGroup],
    tokenizer: PreTrainedTokenizerBase,
    *,
    scale_rewards: bool,
    seed: str,
    only_good: bool = False,
    region: Region | None = None,
    token_weights: TokenWeights = "reply",
) -> list[PackedSequence]:
    """``groups`` as packed sequences; the same seed gives the same order. Empty if nothing is trainable.

    ``only_good`` leaves out replies below their group's mean and drops the log-probabilities, which turns the policy
    gradient into a supervised loss weighted by advantage. ``region`` bounds what tokens of another policy count.
    ``token_weights`` says whether replies count the same, as in ART, or tokens.
    """
    from art.preprocessing.tokenize import tokenize_trajectory_groups

    with _seeded(seed):
        results = [
            result
            for group in groups
            for result in _shared(
                list(
                    tokenize_trajectory_groups(
                        tokenizer, [group], allow_training_without_logprobs=False, scale_rewards=scale_rewards
                    )
                )
            )
            if not only_good or result.advantage > 0
        ]
        if not results:
            return []
        if token_weights == "token":
            results = [replace(one, weight=1.0) for one in results]
        beginnings = _beginnings(results, tokenizer)
        results = [_after(one, len(beginnings[one.prompt_id])) for one in results]
        state = random.getstate()
        packed = _packed(results, tokenizer)
        if region is not None and not only_good and has_other_behaviour(results):
            random.setstate(state)  # the same order and the same names again
            behaviour = _packed([with_behaviour(one) for one in results], tokenizer)["logprobs"]
            correct(packed, behaviour, region)
    if only_good:
        packed["logprobs"].fill_(float("nan"))
    return [_trimmed(packed, row, beginnings) for row in range(packed["tokens"].shape[0])]


def _packed(results: Sequence[TokenizedResult], tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    from art.preprocessing.pack import packed_tensors_from_tokenized_results

    return dict(
        packed_tensors_from_tokenized_results(
            list(results),
            seq_len=_sequence_length(results),
            pad_token_id=int(tokenizer.pad_token_id or 0),
            truncate_long_results=False,
            verbosity=0,
        )
    )


def _beginnings(results: Sequence[TokenizedResult], tokenizer: PreTrainedTokenizerBase) -> dict[int, Tokens]:
    """The beginning of each prompt, by its id."""
    known: dict[str, int] = {}
    found: dict[int, Tokens] = {}
    for one in results:
        length = 0
        if not one.trajectory.additional_histories:  # else ART does not say which of its prompts this is
            messages = [turn for turn in one.trajectory.messages_and_choices if isinstance(turn, dict)]
            length = min(beginning_of(messages, one.token_ids, tokenizer, known), one.prompt_length)
        tokens = tuple(one.token_ids[:length])
        found[one.prompt_id] = min(tokens, found.get(one.prompt_id, tokens), key=len)
    return found


def _after(result: TokenizedResult, beginning: int) -> TokenizedResult:
    """``result`` without its first tokens, which are part of its prompt."""
    return replace(
        result,
        token_ids=result.token_ids[beginning:],
        input_pos=result.input_pos[beginning:],
        assistant_mask=result.assistant_mask[beginning:],
        logprobs=result.logprobs[beginning:],
        extra_logprobs={key: values[beginning:] for key, values in result.extra_logprobs.items()},
        prompt_length=result.prompt_length - beginning,
    )


def _trimmed(packed: Any, row: int, beginnings: Mapping[int, Tokens]) -> PackedSequence:
    length = int((packed["group_ids"][row] != -1).sum())
    tensors = {key: value[row : row + 1, :length] for key, value in packed.items() if isinstance(value, torch.Tensor)}
    prompts = torch.unique(tensors["parent_ids"]).tolist()
    return PackedSequence(tensors, {prompt: beginnings[prompt] for prompt in prompts if beginnings[prompt]})


def _shared(results: list[TokenizedResult]) -> list[TokenizedResult]:
    """The replies of one group, in clusters that share as many prompt tokens as possible."""
    ordered = sorted(results, key=lambda result: result.token_ids)
    for cluster in best_clusters([result.token_ids for result in ordered], [_first_trained(one) for one in ordered]):
        prompt_id = random.randint(-(2**63), 2**63 - 1)
        for index in range(cluster.start, cluster.stop):
            ordered[index].prompt_id = prompt_id
            ordered[index].prompt_length = cluster.shared
    return ordered


def _first_trained(result: TokenizedResult) -> int:
    return next((index for index, value in enumerate(result.logprobs) if not math.isnan(value)), len(result.logprobs))


@dataclass(frozen=True, slots=True)
class Cluster:
    """The sorted replies from ``start`` to ``stop`` (exclusive), and the number of tokens they share."""

    start: int
    stop: int
    shared: int


def best_clusters(sequences: Sequence[Sequence[int]], first_trained: Sequence[int]) -> list[Cluster]:
    """The split of sorted ``sequences`` into neighbours that minimises the tokens to compute.

    The last prompt token is never shared: each reply's first token is predicted from its own copy.
    """
    lengths = [len(sequence) for sequence in sequences]
    neighbours = [common_length(one, other) for one, other in pairwise(sequences)]
    best: list[tuple[int, Cluster | None]] = [(0, None)]
    for stop in range(1, len(sequences) + 1):
        shared, bound, total = lengths[stop - 1], first_trained[stop - 1], 0
        options = []
        for start in range(stop - 1, max(stop - 1 - _MOST_TOGETHER, -1), -1):
            if start < stop - 1:
                shared = min(shared, neighbours[start])
            bound = min(bound, first_trained[start])
            total += lengths[start]
            prefix = max(min(shared, bound) - 1, 0)
            cost = best[start][0] + total - prefix * (stop - start - 1)
            options.append((cost, Cluster(start, stop, prefix)))
        best.append(min(options, key=lambda option: option[0]))
    clusters: list[Cluster] = []
    stop = len(sequences)
    while stop and (cluster := best[stop][1]) is not None:
        clusters.append(cluster)
        stop = cluster.start
    return clusters[::-1]


def _sequence_length(results: Sequence[TokenizedResult]) -> int:
    """A length that fits the largest cluster in one piece, unless that is too long."""
    sizes: dict[int, int] = {}
    for result in results:
        sizes.setdefault(result.prompt_id, result.prompt_length)
        sizes[result.prompt_id] += len(result.token_ids) - result.prompt_length
    longest = max(len(result.token_ids) for result in results)
    return max(longest, _WORTHWHILE, min(max(sizes.values()), _LONG))


@contextmanager
def _seeded(seed: str) -> Iterator[None]:
    """ART shuffles with the global generator: seed it for the block and restore its state afterwards."""
    state = random.getstate()
    random.seed(hashlib.blake2b(seed.encode(), digest_size=8).digest())
    try:
        yield
    finally:
        random.setstate(state)
