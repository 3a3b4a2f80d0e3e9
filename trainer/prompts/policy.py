"""The policy: which mutation helps this prompt, learnt by PPO from judged rewards.

The learning is MaskablePPO's (sb3-contrib on stable-baselines3); see ``network``. What selects is a copy of the
networks as the last update left them, in evaluation mode: an update in another thread neither holds up a selection nor
shows it half-learnt weights. The same bytes give the same probabilities, and the same next update from the same
experience. Importing this file loads torch; ``experience`` does not.
"""

from __future__ import annotations

import copy
import io
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sb3_contrib import MaskablePPO

from data_bridge.errors import BackendError, ConfigurationError
from trainer.config.prompts import PolicySettings
from trainer.prompts.experience import (
    MUTATIONS,
    Experience,
    Selection,
    UpdateReport,
    Vector,
    check_experience,
    checked_embedding,
    checked_mask,
    in_order,
)
from trainer.prompts.network import filled_buffer, maskable_ppo

__all__ = ["MUTATIONS", "Experience", "PromptPolicy", "Selection", "UpdateReport"]

_FORMAT = 1


class PromptPolicy:
    """Selects from any thread; one update at a time."""

    name = "policy"

    def __init__(self, settings: PolicySettings) -> None:
        self.settings = settings
        self._ppo = maskable_ppo(settings)
        self._decisions = 0
        self._version = 0
        self._updating = threading.Lock()
        self._draws = np.random.default_rng(settings.policy_seed)
        self._acting = _Acting(self._ppo, 0)

    @property
    def version(self) -> int:
        """How many updates it has made."""
        return self._version

    @property
    def decisions(self) -> int:
        """How many decisions it has learnt from."""
        return self._decisions

    def select(
        self,
        embedding: Vector,
        mask: Sequence[bool],
        *,
        deterministic: bool = False,
        seed: int | None = None,
    ) -> Selection:
        """A mutation drawn by its probability; the most probable if ``deterministic``. Masked ones have none."""
        probabilities, value, version = self._seen(embedding, mask)
        if deterministic:
            action = int(probabilities.argmax())
        else:
            draws = self._draws if seed is None else np.random.default_rng(seed)
            action = int(draws.choice(len(MUTATIONS), p=probabilities / probabilities.sum()))
        return Selection(
            action,
            MUTATIONS[action],
            math.log(max(float(probabilities[action]), 1e-30)),
            value,
            tuple(probabilities.tolist()),
            version,
        )

    def distribution(self, embedding: Vector, mask: Sequence[bool]) -> tuple[float, ...]:
        """The probability of every mutation."""
        return tuple(self._seen(embedding, mask)[0].tolist())

    def learn(self, experiences: Sequence[Experience]) -> None:
        """``update``, as contestants call it."""
        self.update(experiences)

    def update(self, experiences: Sequence[Experience]) -> UpdateReport:
        """Learn from these decisions, all selected by one version. ConfigurationError for what cannot be learnt from;
        then nothing has changed."""
        if len(experiences) < 2:
            raise ConfigurationError("An update needs at least two decisions.")
        for one in experiences:
            check_experience(one, self.settings.policy_input)
        if len({one.version for one in experiences}) != 1:
            raise ConfigurationError("An update learns from the decisions of one version of the policy, not of two.")
        with self._updating:
            return self._update(in_order(experiences))

    def _update(self, ordered: Sequence[Experience]) -> UpdateReport:
        settings, ppo = self.settings, self._ppo
        ppo.rollout_buffer = filled_buffer(settings, ordered)
        ppo.batch_size = _batch_size(len(ordered), settings.policy_batch)
        ppo._current_progress_remaining = max(0.0, 1.0 - self._decisions / settings.policy_rate_decisions)
        before = _states(ppo)
        try:
            with _seeded(settings.policy_seed, self._version):
                ppo.train()
            if not all(bool(torch.isfinite(one).all()) for one in ppo.policy.parameters()):
                raise BackendError("The update gave weights that are not finite: nothing was learnt from it.")
        except BaseException:
            _restore(ppo, *before)
            raise
        finally:
            ppo.policy.set_training_mode(False)
        self._decisions += len(ordered)
        self._version += 1
        self._acting = _Acting(ppo, self._version)
        said = ppo.logger.name_to_value
        return UpdateReport(
            policy_loss=float(said["train/policy_gradient_loss"]),
            value_loss=float(said["train/value_loss"]),
            entropy=-float(said["train/entropy_loss"]),
            approx_kl=float(said["train/approx_kl"]),
            clip_share=float(said["train/clip_fraction"]),
            learning_rate=float(said["train/learning_rate"]),
            explained_variance=float(said["train/explained_variance"]),
            decisions=len(ordered),
            version=self._version,
        )

    def to_bytes(self) -> bytes:
        """Everything that the next selection and the next update depend on: tensors and numbers, no code."""
        with self._updating:
            kept = {
                "format": _FORMAT,
                "shape": _shape(self.settings),
                "networks": self._ppo.policy.state_dict(),
                "optimizer": self._ppo.policy.optimizer.state_dict(),
                "decisions": self._decisions,
                "version": self._version,
            }
            target = io.BytesIO()
            torch.save(kept, target)
        return target.getvalue()

    @classmethod
    def from_bytes(cls, kept: bytes, settings: PolicySettings) -> PromptPolicy:
        """The policy that ``to_bytes`` kept. ConfigurationError if it is none, or of another shape."""
        try:
            found = torch.load(io.BytesIO(kept), weights_only=True)
            shape = found["shape"] if found["format"] == _FORMAT else None
        except Exception as error:
            raise ConfigurationError("These bytes are no checkpoint of a prompt policy.") from error
        if shape != _shape(settings):
            raise ConfigurationError(
                f"The checkpoint is of a policy of the shape {shape}, the settings say {_shape(settings)}: set "
                "--policy-input and --policy-hidden as they were."
            )
        policy = cls(settings)
        _restore(policy._ppo, found["networks"], found["optimizer"])
        policy._decisions, policy._version = int(found["decisions"]), int(found["version"])
        policy._draws = np.random.default_rng([settings.policy_seed, policy._version])
        policy._acting = _Acting(policy._ppo, policy._version)
        return policy

    def _seen(self, embedding: Vector, mask: Sequence[bool]) -> tuple[NDArray[np.float64], float, int]:
        vector = checked_embedding(embedding, self.settings.policy_input)
        allowed = checked_mask(mask)
        acting = self._acting
        with torch.no_grad():
            latent_actor, latent_critic = acting.towers(torch.from_numpy(vector)[None])
            logits = acting.actions(latent_actor)[0].double()
            value = float(acting.value(latent_critic)[0, 0])
        logits[~torch.from_numpy(allowed)] = -torch.inf
        found: NDArray[np.float64] = torch.softmax(logits, 0).numpy()
        return found, value, acting.version


class _Acting:
    """A copy of the networks as one version left them."""

    def __init__(self, ppo: MaskablePPO, version: int) -> None:
        networks = ppo.policy
        parts: list[Any] = [networks.mlp_extractor, networks.action_net, networks.value_net]
        self.towers, self.actions, self.value = (copy.deepcopy(part).eval() for part in parts)
        self.version = version


def _states(ppo: MaskablePPO) -> tuple[dict[str, Any], dict[str, Any]]:
    return copy.deepcopy(ppo.policy.state_dict()), copy.deepcopy(ppo.policy.optimizer.state_dict())


def _restore(ppo: MaskablePPO, networks: dict[str, Any], optimizer: dict[str, Any]) -> None:
    ppo.policy.load_state_dict(networks)
    ppo.policy.optimizer.load_state_dict(optimizer)


def _shape(settings: PolicySettings) -> list[Any]:
    return [settings.policy_input, list(settings.policy_hidden), settings.policy_batch_norm, list(MUTATIONS)]


def _batch_size(decisions: int, wanted: int) -> int:
    """``wanted``, or a little more: a last batch of one decision cannot be normalised."""
    return next(size for size in range(wanted, wanted + decisions) if decisions % size != 1 or decisions == size)


@contextmanager
def _seeded(*seed: int) -> Iterator[None]:
    """The same draws for the same seed inside, and undisturbed ones outside: MaskablePPO draws from the global ones."""
    before = np.random.get_state()
    numbers = np.random.SeedSequence(seed).generate_state(2)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(numbers[0]))
            np.random.seed(int(numbers[1]))
            yield
    finally:
        np.random.set_state(before)
