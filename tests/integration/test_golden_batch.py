"""A fixed batch against a table computed by hand, and packed log-probabilities against plain ones."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from data_bridge.scoring import Scored, ScoreRequest
from tests.builders_training import judged, make_batch, make_trainee, replying
from tests.tiny_model import shared_tiny_model
from trainer.inference.layout import Layout
from trainer.inference.policy import CpuPolicy as Policy
from trainer.train.backends.packing import PackedSequence, best_clusters, pack
from trainer.train.backends.prepare import prepare


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    policy = Policy(shared_tiny_model(tmp_path_factory), rank=4, learning_rate=1e-3, seed=0)
    with torch.no_grad():  # an adapter that does something
        for parameter in policy.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return policy


class OfPolicy:
    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Scored | None]:
        return self._policy.score(requests)


REPLIES = {"a": ("BUY ACME 10", "SELL"), "b": ("HOLD", "BUY"), "c": ("SELL ACME 5", "HOLD"), "d": ("BUY", "BUY")}


async def packed(policy: Policy, scores: list[float], **options: bool) -> list[PackedSequence]:
    """One group of four agents with two decisions each; the agents share the prompt of each decision."""
    group = judged([replying(agent, *replies) for agent, replies in REPLIES.items()], scores)
    prepared = await prepare(make_batch(group), make_trainee(min_spread=0.0), scorer=OfPolicy(policy))
    return pack(prepared.groups, policy.tokenizer, scale_rewards=options.get("scale_rewards", False), seed="golden")


def by_reply(policy: Policy, sequences: list[PackedSequence], name: str) -> dict[str, set[float]]:
    """The values of ``name`` at the tokens of each trained reply, keyed by the reply's text."""
    found: dict[str, set[float]] = {}
    for sequence in sequences:
        inputs = sequence.inputs
        for group in torch.unique(inputs["group_ids"]):
            chosen = (inputs["group_ids"] == group) & inputs["assistant_mask"]
            if chosen.any():
                text = policy.tokenizer.decode(inputs["tokens"][chosen], skip_special_tokens=True)
                found.setdefault(text, set()).update(round(value, 4) for value in inputs[name][chosen].tolist())
    return found


async def test_advantages_are_those_of_the_table(policy: Policy) -> None:
    """Scores 0.9, 0.7, 0.2, 0.2: mean 0.5; advantages 0.4, 0.2, -0.3, -0.3.

    ART then divides by the mean of |advantage| x weight over the tokens. A trajectory's tokens share the
    weight of one trajectory, so that mean is the mean of |advantage| over trajectories: 1.2 / 4 = 0.3.
    """
    sequences = await packed(policy, [0.9, 0.7, 0.2, 0.2])
    table = {
        "BUY ACME 10": 4 / 3,
        "SELL": 4 / 3,
        "SELL ACME 5": -1.0,
    }
    found = by_reply(policy, sequences, "advantages")
    for text, expected in table.items():
        assert list(found[text]) == pytest.approx([expected], abs=1e-3), text
    assert sorted(found["HOLD"]) == pytest.approx([-1.0, 2 / 3], abs=1e-3)  # agent c's and agent b's


async def test_scaled_advantages_are_divided_by_the_groups_spread(policy: Policy) -> None:
    """Within one group scaling changes nothing after ART's normalising; the sign and the ratios stay."""
    plain = by_reply(policy, await packed(policy, [0.9, 0.7, 0.2, 0.2]), "advantages")
    scaled = by_reply(policy, await packed(policy, [0.9, 0.7, 0.2, 0.2], scale_rewards=True), "advantages")
    for text, values in plain.items():
        assert sorted(scaled[text]) == pytest.approx(sorted(values), abs=1e-3)


async def test_packed_and_plain_log_probabilities_agree(policy: Policy) -> None:
    sequences = await packed(policy, [0.9, 0.7, 0.2, 0.1])
    together, apart = 0.0, 0.0
    for sequence in sequences:
        inputs = sequence.inputs
        layout = Layout(inputs["group_ids"], inputs["parent_ids"])
        targets = inputs["assistant_mask"][0].nonzero()[:, 0]
        with torch.no_grad():
            values = policy.likelihoods(sequence.tokens, inputs["input_pos"], layout, targets).logprobs
        together += float(values.sum())
        for tokens, places in plain_sequences(inputs):
            length = tokens.shape[1]
            causal = Layout(torch.ones(1, length, dtype=torch.long), torch.ones(1, length, dtype=torch.long))
            with torch.no_grad():
                plain = policy.likelihoods(tokens, torch.arange(length)[None], causal, places).logprobs
            apart += float(plain.sum())
    assert together == pytest.approx(apart, abs=1e-3)
    behaviour = sum(float(sequence.inputs["logprobs"].nansum()) for sequence in sequences)
    assert together == pytest.approx(behaviour, abs=1e-3)  # scoring gave the same values before


def plain_sequences(inputs: dict[str, torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Each reply unpacked: its prompt and its own tokens, and where its trained tokens stand."""
    unpacked = []
    groups, parents = inputs["group_ids"][0], inputs["parent_ids"][0]
    for group in torch.unique(groups):
        own = groups == group
        if not (own & inputs["assistant_mask"][0]).any():
            continue
        chosen = own | (groups == parents[own][0])
        unpacked.append((inputs["tokens"][:, chosen], inputs["assistant_mask"][0, chosen].nonzero()[:, 0]))
    return unpacked


async def test_each_decisions_prompt_is_computed_once_for_all_agents(policy: Policy) -> None:
    sequences = await packed(policy, [0.9, 0.7, 0.2, 0.1])
    computed = sum(sequence.tokens.shape[1] for sequence in sequences)
    plain = sum(tokens.shape[1] for sequence in sequences for tokens, _ in plain_sequences(sequence.inputs))
    assert plain > 2.5 * computed


def test_clusters_leave_the_fewest_tokens() -> None:
    """Two prompts of five tokens with two replies each, sorted: shared apart, not as the one token all have."""
    sequences = [[1, 2, 3, 4, 5, 90], [1, 2, 3, 4, 5, 91], [1, 6, 7, 8, 9, 90], [1, 6, 7, 8, 9, 91]]
    clusters = best_clusters(sequences, [5, 5, 5, 5])
    assert [(cluster.start, cluster.stop, cluster.shared) for cluster in clusters] == [(0, 2, 4), (2, 4, 4)]


def test_the_token_before_the_reply_is_never_shared() -> None:
    assert best_clusters([[1, 2, 9], [1, 2, 9]], [2, 2])[0].shared == 1


async def test_nothing_trainable_packs_to_nothing(policy: Policy) -> None:
    assert pack([], policy.tokenizer, scale_rewards=False, seed="none") == []
