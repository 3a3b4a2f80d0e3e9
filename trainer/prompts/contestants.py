"""What the policy is compared with: keep always, random, the best fixed mutation, linear Thompson sampling.

All select and learn as the policy does; GEPA, which searches with judged scores instead, is in ``reflective``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trainer.prompts.experience import (
    KEEP,
    MUTATIONS,
    Experience,
    Selection,
    Vector,
    checked_mask,
)


class _Chance:
    """Selects by probabilities that a contestant gives."""

    name = ""

    def __init__(self, seed: int = 0) -> None:
        self._chance = np.random.default_rng(seed)

    def select(self, embedding: Vector, mask: Sequence[bool], *, deterministic: bool = False) -> Selection:
        chances = self._chances(np.asarray(embedding, np.float64), checked_mask(mask), deterministic)
        action = int(self._chance.choice(len(MUTATIONS), p=chances))
        return Selection(action, MUTATIONS[action], math.log(chances[action]), 0.0, tuple(chances.tolist()))

    def learn(self, experiences: Sequence[Experience]) -> None:
        """Nothing, unless the contestant learns."""

    def _chances(
        self, embedding: NDArray[np.float64], mask: NDArray[np.bool_], deterministic: bool
    ) -> NDArray[np.float64]:
        raise NotImplementedError


class KeepAlways(_Chance):
    name = "keep"

    def _chances(
        self, embedding: NDArray[np.float64], mask: NDArray[np.bool_], deterministic: bool
    ) -> NDArray[np.float64]:
        return _only(KEEP)


class RandomMutation(_Chance):
    """Whatever applies, *keep* included, each as likely as any other."""

    name = "random"

    def _chances(
        self, embedding: NDArray[np.float64], mask: NDArray[np.bool_], deterministic: bool
    ) -> NDArray[np.float64]:
        return _any_of(mask)


class FixedMutation(_Chance):
    """The one mutation that would have gained most over all prompts: its mean reward, times how often it applies. Where
    it does not apply it keeps. It explores at random until it is asked for its best."""

    name = "best fixed"

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self._sums, self._counts, self._allowed = (np.zeros(len(MUTATIONS)) for _ in range(3))

    @property
    def best(self) -> int:
        return int(np.argmax(self._allowed * self._sums / np.maximum(self._counts, 1)))

    def learn(self, experiences: Sequence[Experience]) -> None:
        for one in experiences:
            self._allowed += checked_mask(one.mask)
            self._sums[one.action] += one.reward
            self._counts[one.action] += 1

    def _chances(
        self, embedding: NDArray[np.float64], mask: NDArray[np.bool_], deterministic: bool
    ) -> NDArray[np.float64]:
        if not deterministic:
            return _any_of(mask)
        return _only(self.best if mask[self.best] else KEEP)


class LinearThompson(_Chance):
    """For each mutation a Bayesian linear regression of its reward on the embedding; selects the best of one draw from
    each, or of the means if asked for its best. Rewards later in an episode are not its business."""

    name = "thompson"

    def __init__(self, features: int, seed: int = 0, prior: float = 1.0, noise: float = 0.05) -> None:
        super().__init__(seed)
        size = features + 1
        self._features, self._noise = features, noise
        self._precision = np.repeat(np.eye(size)[None] * prior, len(MUTATIONS), axis=0)
        self._weighted = np.zeros((len(MUTATIONS), size))
        self._solve()

    def learn(self, experiences: Sequence[Experience]) -> None:
        for one in experiences:
            seen = self._seen(np.asarray(one.embedding, np.float64))
            self._precision[one.action] += np.outer(seen, seen)
            self._weighted[one.action] += one.reward * seen
        self._solve()

    def _solve(self) -> None:
        covariance = np.linalg.inv(self._precision)
        self._means = np.einsum("aij,aj->ai", covariance, self._weighted)
        self._roots = np.linalg.cholesky(covariance)

    def _seen(self, embedding: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.append(embedding[: self._features], 1.0)

    def _chances(
        self, embedding: NDArray[np.float64], mask: NDArray[np.bool_], deterministic: bool
    ) -> NDArray[np.float64]:
        weights = self._means
        if not deterministic:
            drawn = self._chance.standard_normal(weights.shape)
            weights = weights + self._noise * np.einsum("aij,aj->ai", self._roots, drawn)
        expected = np.where(mask, weights @ self._seen(embedding), -np.inf)
        return _only(int(expected.argmax()))


def _any_of(mask: NDArray[np.bool_]) -> NDArray[np.float64]:
    return np.where(mask, 1.0 / float(mask.sum()), 0.0)


def _only(action: int) -> NDArray[np.float64]:
    return np.where(np.arange(len(MUTATIONS)) == action, 1.0, 0.0)
