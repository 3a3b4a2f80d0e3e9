"""The policy's and the value's networks, and stable-baselines3's MaskablePPO around them. Imports torch.

MaskablePPO plays no game here: it has no environment, its rollout buffer is filled from outside, and of its methods
only ``train`` is called.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.buffers import MaskableRolloutBuffer
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common.logger import Logger
from torch import nn

from trainer.config.prompts import PolicySettings
from trainer.prompts.experience import MUTATIONS, Experience, checked_embedding, checked_mask

os.environ.pop("PYGAME_HIDE_SUPPORT_PROMPT", None)  # gymnasium sets it when it is imported; nobody here draws

_LAST_RATE = 0.1
"""Share of the learning rate at the end of a linear schedule."""


class _Towers(nn.Module):
    """Two towers of the same shape: what the actor and what the critic see of an embedding."""

    def __init__(self, width: int, hidden: Sequence[int], dropout: float, batch_norm: bool) -> None:
        super().__init__()
        self.latent_dim_pi = self.latent_dim_vf = hidden[-1]
        self.actor = _tower(width, hidden, dropout, batch_norm)
        self.critic = _tower(width, hidden, dropout, batch_norm)

    def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.forward_actor(features), self.forward_critic(features)

    def forward_actor(self, features: torch.Tensor) -> torch.Tensor:
        seen: torch.Tensor = self.actor(features)
        return seen

    def forward_critic(self, features: torch.Tensor) -> torch.Tensor:
        seen: torch.Tensor = self.critic(features)
        return seen


def _tower(width: int, hidden: Sequence[int], dropout: float, batch_norm: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for size in hidden:
        layers.append(nn.Linear(width, size))
        if batch_norm:
            layers.append(nn.BatchNorm1d(size))
        layers += [nn.ReLU(), nn.Dropout(dropout)]
        width = size
    return nn.Sequential(*layers)


class _Networks(MaskableActorCriticPolicy):
    def __init__(self, *given: Any, dropout: float, batch_norm: bool, **named: Any) -> None:
        self._dropout, self._batch_norm = dropout, batch_norm
        super().__init__(*given, **named)

    def _build_mlp_extractor(self) -> None:
        assert isinstance(self.net_arch, list)
        self.mlp_extractor = _Towers(  # type: ignore[assignment]
            self.features_dim, self.net_arch, self._dropout, self._batch_norm
        )

    def _build(self, lr_schedule: Any) -> None:
        super()._build(lr_schedule)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        with torch.no_grad():
            for head in (self.action_net, self.value_net):
                head.weight.mul_(_FIRST_HEADS)  # type: ignore[operator]


_FIRST_HEADS = 0.01
"""Of Xavier's weights in the last layers. At first every mutation is as likely as any other, and every value about 0,
with the statistics of a batch as with those that BatchNorm begins with; values that differed between the two by more
than the clip would never be learnt."""


def maskable_ppo(settings: PolicySettings) -> MaskablePPO:
    """As the settings say, with first weights that are the same for the same seed."""
    model = MaskablePPO(
        _Networks,
        None,  # type: ignore[arg-type]
        learning_rate=lambda progress: learning_rate(settings, progress),
        n_steps=settings.policy_buffer,
        batch_size=settings.policy_batch,
        n_epochs=settings.policy_epochs,
        gamma=settings.policy_gamma,
        gae_lambda=settings.policy_gae,
        clip_range=settings.policy_clip,
        clip_range_vf=settings.policy_value_clip,
        ent_coef=settings.policy_entropy,
        vf_coef=settings.policy_value_weight,
        max_grad_norm=settings.policy_gradient_norm,
        policy_kwargs={
            "net_arch": list(settings.policy_hidden),
            "dropout": settings.policy_dropout,
            "batch_norm": settings.policy_batch_norm,
            "ortho_init": False,
        },
        device="cpu",
        _init_setup_model=False,
    )
    model.observation_space = spaces.Box(-np.inf, np.inf, (settings.policy_input,), np.float32)
    model.action_space = spaces.Discrete(len(MUTATIONS))
    model.n_envs = 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.policy_seed)
        model._setup_model()
    model.set_logger(Logger(folder=None, output_formats=[]))
    model.policy.set_training_mode(False)
    return model


def learning_rate(settings: PolicySettings, progress_remaining: float) -> float:
    if settings.policy_rate_schedule == "constant":
        return settings.policy_learning_rate
    return settings.policy_learning_rate * (_LAST_RATE + (1 - _LAST_RATE) * progress_remaining)


def filled_buffer(settings: PolicySettings, experiences: Sequence[Experience]) -> MaskableRolloutBuffer:
    """The rollout buffer of one update, with advantages and returns. ``experiences``: episodes one after the other.

    An episode that was cut before its end counts as ended: what would have followed is not known.
    """
    buffer = MaskableRolloutBuffer(
        len(experiences),
        spaces.Box(-np.inf, np.inf, (settings.policy_input,), np.float32),
        spaces.Discrete(len(MUTATIONS)),
        "cpu",
        gae_lambda=settings.policy_gae,
        gamma=settings.policy_gamma,
        n_envs=1,
    )
    before: Experience | None = None
    for one in experiences:
        begins = before is None or before.done or before.episode != one.episode
        buffer.add(
            checked_embedding(one.embedding, settings.policy_input)[None],
            np.array([[one.action]]),
            np.array([one.reward], np.float32),
            np.array([begins], np.float32),
            torch.tensor([one.value]),
            torch.tensor([one.log_prob]),
            action_masks=checked_mask(one.mask)[None],
        )
        before = one
    buffer.compute_returns_and_advantage(torch.zeros(1), np.array([True]))
    return buffer
