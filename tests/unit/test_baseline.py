"""What is usual for a role is taken off its scores: the same direction, from a gradient of less variance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from trainer.ledger.rewards import means_of
from trainer.rewards import Graded
from trainer.train.credit import RULE, rewards_of

OFFSET = 0.3
"""By how much one of two roles scores better, whatever it decides."""
RIGHT = 0.2
"""What a right decision is worth, as beside explorers in the simulated market."""
WORDS, AGENTS, HOURS, TIMES = 6, 8, 12, 60


def gradients(seed: int, *, baseline: bool) -> Any:
    """The policy gradient of each of some hours, played many times by a softmax policy, four agents of each role.

    What is usual for a role is what the ledger would say after a step of other hours, not the planted offset.
    """
    rng = np.random.default_rng(seed)
    truth, weights = rng.normal(size=WORDS), 0.3 * rng.normal(size=WORDS)
    before = [_played(rng, rng.normal(size=WORDS), truth, weights) for _ in range(HOURS)]
    scored = [
        (_role(one), float(score)) for _, _, roles, scores in before for one, score in zip(roles, scores, strict=True)
    ]
    means, usual = means_of(scored)
    usually = {_role(one): means.get(_role(one), usual) if baseline else 0.0 for one in (True, False)}
    return np.array([_of_hour(rng, rng.normal(size=WORDS), truth, weights, usually) for _ in range(HOURS)])


def _role(is_lucky: bool) -> str:
    return "role:lucky" if is_lucky else "role:other"


def _played(rng: Any, words: Any, truth: Any, weights: Any) -> tuple[Any, Any, Any, Any]:
    """The chance of the first answer, who said it, who is of the lucky role, and the scores."""
    first = 1 / (1 + np.exp(-words @ weights))
    said = rng.random(AGENTS) < first
    roles = rng.permutation(AGENTS) % 2 == 0
    right = said == (words @ truth > 0)
    return first, said, roles, 0.2 + RIGHT * right + OFFSET * roles + rng.normal(scale=0.05, size=AGENTS)


def _of_hour(rng: Any, words: Any, truth: Any, weights: Any, usually: Mapping[str, float]) -> list[Any]:
    found = []
    for _ in range(TIMES):
        first, said, roles, scores = _played(rng, words, truth, weights)
        members = [
            Graded("", float(score), 0.0, str(bool(one)), 1.0, _role(role), usually[_role(role)])
            for score, one, role in zip(scores, said, roles, strict=True)
        ]
        [rewards] = rewards_of([("g", members)], RULE)
        gains = np.array([one.advantage for one in rewards])
        found.append((gains * np.where(said, 1 - first, -first)).mean() * words)
    return found


@pytest.mark.parametrize("seed", range(5))
def test_role_baselines_take_thirty_per_cent_off_the_variance_of_the_gradient_and_keep_its_direction(seed: int) -> None:
    plain, with_baseline = gradients(seed, baseline=False), gradients(seed, baseline=True)
    assert with_baseline.var(axis=1).sum() < 0.7 * plain.var(axis=1).sum()
    mean, other = plain.mean(axis=(0, 1)), with_baseline.mean(axis=(0, 1))
    assert mean @ other / np.linalg.norm(mean) / np.linalg.norm(other) > 0.9


def test_a_baseline_that_all_share_changes_nothing() -> None:
    def gains(baseline: float) -> list[float]:
        members = [Graded("", score, 0.0, "stake +1", 1.0, baseline=baseline) for score in (0.1, 0.4, 0.9)]
        return [one.advantage for rewards in rewards_of([("g", members)], RULE) for one in rewards]

    assert gains(0.3) == pytest.approx(gains(0.0))
