"""The policy: what PPO computes agrees with tables made by hand, a planted bandit is solved, and bytes give it back."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from data_bridge.errors import ConfigurationError
from trainer.config.prompts import PolicySettings
from trainer.prompts.experience import MUTATIONS, Experience, in_order
from trainer.prompts.network import filled_buffer, learning_rate
from trainer.prompts.policy import PromptPolicy

ALL = [True] * len(MUTATIONS)
SMALL = PolicySettings(policy_input=16, policy_hidden=(16, 8), policy_batch=8, policy_buffer=32)


def experience(
    reward: float,
    *,
    value: float = 0.0,
    log_prob: float = -1.0,
    action: int = 0,
    episode: str = "one",
    step: int = 0,
    done: bool = False,
    version: int = 0,
    embedding: Sequence[float] = (1.0,),
) -> Experience:
    return Experience(embedding, ALL, action, log_prob, value, reward, done, episode, step, version)


def practised(seed: int = 0, updates: int = 2) -> PromptPolicy:
    policy = PromptPolicy(SMALL.model_copy(update={"policy_seed": seed}))
    for _ in range(updates):
        policy.update(decisions(policy))
    return policy


def decisions(policy: PromptPolicy, number: int = 32) -> list[Experience]:
    """Single decisions on random prompts, where expansion is right."""
    chance, found = np.random.default_rng(policy.version), []
    for place in range(number):
        seen = chance.normal(size=16).astype(np.float32)
        chosen = policy.select(seen, ALL, seed=place)
        reward = float(chosen.action == 3)
        found.append(
            Experience(
                seen, ALL, chosen.action, chosen.log_prob, chosen.value, reward, True, f"{place}", 0, chosen.version
            )
        )
    return found


def test_advantages_agree_with_a_table_made_by_hand() -> None:
    """gamma 0.99, lambda 0.95. The first episode has three decisions; the second was cut after its first."""
    buffer = filled_buffer(
        PolicySettings(),
        [
            experience(1.0, value=0.5, step=0),
            experience(0.0, value=0.4, step=1),
            experience(2.0, value=0.3, step=2, done=True),
            experience(1.0, value=0.2, episode="two"),
        ],
    )
    # delta: 1 + 0.99*0.4 - 0.5, 0 + 0.99*0.3 - 0.4, 2 - 0.3; then delta + 0.9405 * the next advantage.
    by_hand = [0.896 + 0.9405 * (-0.103 + 0.9405 * 1.7), -0.103 + 0.9405 * 1.7, 1.7, 0.8]
    np.testing.assert_allclose(buffer.advantages[:, 0], by_hand, rtol=1e-6)
    np.testing.assert_allclose(buffer.returns[:, 0], np.add(by_hand, [0.5, 0.4, 0.3, 0.2]), rtol=1e-6)


def test_clipped_loss_and_value_clipping_agree_with_a_table_made_by_hand() -> None:
    """Four decisions in one batch, in one pass: what is reported is the loss before its only step."""
    settings = PolicySettings(
        policy_batch_norm=False, policy_dropout=0, policy_epochs=1, policy_input=16, policy_hidden=(8,)
    )
    policy = PromptPolicy(settings)
    now = policy.select((1.0,), ALL)
    ratios, advantages, moved = (1.5, 1.1, 0.5, 0.9), (1.0, 1.0, -1.0, -1.0), (1.0, -0.1, 0.0, -1.0)
    rows = []
    for place, (ratio, advantage, move) in enumerate(zip(ratios, advantages, moved, strict=True)):
        before = now.value - move  # the value has moved by so much since
        log_prob = math.log(now.probabilities[place]) - math.log(ratio)
        name = str(place)
        rows.append(
            experience(before + advantage, value=before, log_prob=log_prob, action=place, episode=name, done=True)
        )
    report = policy.update(rows)
    # Advantages normalised: 1 / sqrt(4/3). Of 1.5 counts 1.2, of 0.5 counts 0.8, the others as they are.
    assert report.policy_loss == pytest.approx(-(1.2 + 1.1 - 0.8 - 0.9) / 4 * math.sqrt(3 / 4), abs=1e-5)
    # Of a move of 1 counts 0.2: errors 1 - 0.2, 1 + 0.1, -1 - 0, -1 + 0.2.
    assert report.value_loss == pytest.approx((0.64 + 1.21 + 1.0 + 0.64) / 4, abs=1e-5)
    assert report.clip_share == 0.5
    assert report.approx_kl == pytest.approx(sum(ratio - 1 - math.log(ratio) for ratio in ratios) / 4, abs=1e-5)
    assert report.entropy == pytest.approx(-sum(p * math.log(p) for p in now.probabilities), abs=1e-5)


def test_a_planted_bandit_is_solved() -> None:
    """A short one: 768 decisions in updates of 32, a small network, ten times the learning rate. The whole is
    ``benchmarks/prompt_mutations.py --bandit``: the default settings but for updates of 128 instead of 2,048, of which
    4,096 decisions would make only two."""
    policy = PromptPolicy(SMALL.model_copy(update={"policy_learning_rate": 3e-3}))
    for _ in range(24):
        policy.update(decisions(policy))
    unseen = np.random.default_rng(99).normal(size=(20, 16))
    assert np.mean([policy.distribution(one, ALL)[3] for one in unseen]) > 0.8


def test_saved_and_loaded_it_goes_on_as_if_nothing_had_happened() -> None:
    policy = practised()
    again = PromptPolicy.from_bytes(policy.to_bytes(), policy.settings)
    seen = np.linspace(-1, 1, 16)
    assert again.distribution(seen, ALL) == policy.distribution(seen, ALL)
    assert (again.version, again.decisions) == (2, 64)
    following = decisions(policy)
    assert again.update(following) == policy.update(following)
    assert again.distribution(seen, ALL) == policy.distribution(seen, ALL)
    assert again.distribution(seen, ALL) != practised().distribution(seen, ALL)


def test_the_same_seed_gives_the_same_policy_and_leaves_global_draws_alone() -> None:
    np.random.seed(5)
    before = np.random.get_state()[1].tolist()  # type: ignore[index]
    assert practised(3).to_bytes() == practised(3).to_bytes()
    assert np.random.get_state()[1].tolist() == before  # type: ignore[index]
    seen = [0.5] * 16
    assert practised(3).distribution(seen, ALL) != practised(4).distribution(seen, ALL)


def test_a_masked_mutation_is_never_selected() -> None:
    policy = practised()
    mask = [True, False, True, False, False, True]
    found = policy.distribution([0.1] * 16, mask)
    assert [one > 0 for one in found] == mask
    assert sum(found) == pytest.approx(1.0)
    assert {policy.select([0.1] * 16, mask, seed=seed).action for seed in range(50)} <= {0, 2, 5}
    best = policy.select([0.1] * 16, mask, deterministic=True)
    assert best.probabilities[best.action] == max(best.probabilities)
    assert best.log_prob == pytest.approx(math.log(max(best.probabilities)))


def test_shorter_embeddings_are_padded_so_that_cosines_stay() -> None:
    policy = practised()
    assert policy.distribution([1.0, 2.0], ALL) == policy.distribution([1.0, 2.0, *[0.0] * 14], ALL)


@pytest.mark.parametrize(
    ("embedding", "mask"),
    [
        ([0.0] * 17, ALL),
        ([], ALL),
        ([math.nan], ALL),
        ([math.inf], ALL),
        ([0.1], ALL[:-1]),
        ([0.1], [False, *ALL[1:]]),
        ([0.1], [1, 1, 1, 1, 1, 1]),
    ],
)
def test_what_is_no_prompt_is_refused_in_a_sentence(embedding: list[float], mask: list[bool]) -> None:
    with pytest.raises(ConfigurationError, match=r"\.$"):
        PromptPolicy(SMALL).select(embedding, mask)


def test_an_update_learns_from_one_version_and_from_nothing_broken() -> None:
    policy = practised()
    kept = policy.to_bytes()
    good = experience(1.0, version=2)
    for other in (
        experience(1.0, version=1),
        experience(math.nan, version=2),
        experience(1.0, version=2, log_prob=0.5),
        experience(1.0, version=2, action=6),
        experience(1.0, version=2, episode=""),
    ):
        with pytest.raises(ConfigurationError):
            policy.update([good, other])
    with pytest.raises(ConfigurationError):
        policy.update([good])
    assert policy.to_bytes() == kept


@pytest.mark.parametrize("number", [2, 9, 17, 33])
def test_any_number_of_decisions_can_be_learnt_from(number: int) -> None:
    """A last batch of a single decision could not be normalised."""
    policy = PromptPolicy(SMALL)
    assert policy.update(decisions(policy, number)).decisions == number


def test_bytes_of_something_else_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="no checkpoint"):
        PromptPolicy.from_bytes(b"nothing", SMALL)
    with pytest.raises(ConfigurationError, match="shape"):
        PromptPolicy.from_bytes(practised().to_bytes(), PolicySettings(policy_input=32, policy_hidden=(16, 8)))


def test_bytes_that_would_run_code_are_refused() -> None:
    import io

    import torch

    target = io.BytesIO()
    torch.save({"format": 1, "shape": test_bytes_of_something_else_are_refused}, target)
    with pytest.raises(ConfigurationError, match="no checkpoint"):
        PromptPolicy.from_bytes(target.getvalue(), SMALL)


def test_the_network_is_as_the_settings_say() -> None:
    policy = PromptPolicy(PolicySettings())
    widths = [tuple(one.shape) for name, one in policy._ppo.policy.named_parameters() if one.ndim == 2]
    tower = [(256, 1536), (256, 256), (128, 256)]
    assert widths == [*tower, *tower, (6, 128), (1, 128)]
    kinds = [type(one).__name__ for one in policy._acting.towers.actor]
    assert kinds == ["Linear", "BatchNorm1d", "ReLU", "Dropout"] * 3
    assert not policy._acting.towers.training


def test_the_learning_rate_falls_to_a_tenth() -> None:
    settings = PolicySettings()
    assert [learning_rate(settings, left) for left in (1.0, 0.5, 0.0)] == pytest.approx([3e-4, 1.65e-4, 3e-5])
    assert learning_rate(settings.model_copy(update={"policy_rate_schedule": "constant"}), 0.0) == 3e-4


def test_episodes_that_arrive_mixed_are_put_in_order() -> None:
    mixed = [experience(0, episode=name, step=step) for name, step in (("b", 1), ("a", 0), ("b", 0), ("a", 1))]
    assert [(one.episode, one.step) for one in in_order(mixed)] == [("b", 0), ("b", 1), ("a", 0), ("a", 1)]
