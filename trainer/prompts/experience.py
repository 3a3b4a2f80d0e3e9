"""What passes between the policy and whoever asks it: a selection, what came of it, and what an update did.

Nothing here imports torch, so that a service can check and store experience without it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from data_bridge.errors import ConfigurationError

MUTATIONS: tuple[str, ...] = (
    "keep",
    "try_catch",
    "context_reduction",
    "expansion",
    "constraint_addition",
    "task_decomposition",
)
"""What may be done to a prompt. The index is the action; clients know it, so the order never changes."""
KEEP = 0

Floats = NDArray[np.float32]
Vector = Sequence[float] | NDArray[np.floating[Any]]
"""An embedding as it comes."""


@dataclass(frozen=True, slots=True)
class Selection:
    """An action that was chosen for a prompt."""

    action: int
    name: str
    log_prob: float
    value: float
    probabilities: tuple[float, ...]
    version: int = 0
    """How many updates the policy had made."""


@dataclass(frozen=True, slots=True)
class Experience:
    """One decision of an episode, and its reward."""

    embedding: Vector
    mask: Sequence[bool]
    action: int
    log_prob: float
    value: float
    reward: float
    done: bool
    episode: str
    step: int
    version: int = 0
    """That of the selection: an update learns from one version alone."""


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """What an update did, as means over its steps."""

    policy_loss: float
    value_loss: float
    entropy: float
    approx_kl: float
    clip_share: float
    learning_rate: float
    explained_variance: float
    decisions: int
    """That it learnt from."""
    version: int
    """Of the policy, after it."""


class Selects(Protocol):
    """Whoever chooses mutations and learns from their rewards: the policy, or a contestant."""

    @property
    def name(self) -> str: ...

    def select(self, embedding: Vector, mask: Sequence[bool], *, deterministic: bool = False) -> Selection: ...

    def learn(self, experiences: Sequence[Experience]) -> None: ...


def checked_embedding(embedding: Vector, length: int) -> Floats:
    """A vector of ``length`` numbers, padded with zeros. ConfigurationError if it is longer or not finite.

    Padding keeps the angle between any two vectors.
    """
    try:
        vector = np.asarray(embedding, np.float32)
    except (TypeError, ValueError) as error:
        raise ConfigurationError("The embedding is not a list of numbers.") from error
    if vector.ndim != 1 or not 1 <= vector.size <= length:
        raise ConfigurationError(
            f"The embedding must have {length} numbers, or fewer to be padded; it has "
            f"{' x '.join(map(str, vector.shape)) or 'none'}."
        )
    if not np.isfinite(vector).all():
        raise ConfigurationError("The embedding has a number that is not finite.")
    return np.pad(vector, (0, length - vector.size))


def checked_mask(mask: Sequence[bool]) -> NDArray[np.bool_]:
    """One truth value for each mutation. ConfigurationError if it is none, or forbids to keep."""
    allowed = np.asarray(mask)
    if allowed.shape != (len(MUTATIONS),) or allowed.dtype != np.bool_ or not allowed[KEEP]:
        raise ConfigurationError(f"The mask must be {len(MUTATIONS)} truth values, the first of them true.")
    return allowed


def check_experience(one: Experience, length: int) -> None:
    """ConfigurationError if an update could not learn from it."""
    checked_embedding(one.embedding, length)
    mask = checked_mask(one.mask)
    if not 0 <= one.action < len(MUTATIONS) or not mask[one.action]:
        raise ConfigurationError(f"The action {one.action} is not one that the mask allows.")
    if not all(math.isfinite(number) for number in (one.log_prob, one.value, one.reward)):
        raise ConfigurationError("The log-probability, the value and the reward must be finite numbers.")
    if one.log_prob > 1e-6:
        raise ConfigurationError("A log-probability cannot be above zero.")
    if one.step < 0 or not one.episode:
        raise ConfigurationError("An experience needs the name of its episode and a step of at least 0.")


def in_order(experiences: Sequence[Experience]) -> list[Experience]:
    """Episode by episode, each in the order of its steps; episodes in the order in which they are first met."""
    first: dict[str, int] = {}
    for place, one in enumerate(experiences):
        first.setdefault(one.episode, place)
    return sorted(experiences, key=lambda one: (first[one.episode], one.step))
