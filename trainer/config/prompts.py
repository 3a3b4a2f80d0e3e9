"""The settings of prompts: how long one may be, and the policy that learns which change to a prompt helps."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from trainer.config.settings import Section, setting


def _widths(value: object) -> object:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


Widths = Annotated[
    tuple[Annotated[int, Field(ge=1, le=8192)], ...], Field(min_length=1, max_length=8), BeforeValidator(_widths)
]


class ConsolePrompts(Section):
    """Prompts: what a mutation may make of one."""

    max_prompt_chars: int = setting(
        6_000, "Longest prompt, its examples included, in characters; a mutation beyond that is refused.", ge=200
    )


class PromptLimits(ConsolePrompts):
    """Prompts: what a mutation may make of one."""

    mutations_per_episode: int = setting(5, "Mutations of one prompt before an episode ends.", ge=1, le=50)
    prompt_points: int = setting(
        32, "Decision points of training windows at which a mutated prompt and its parent are compared.", ge=2
    )


class PolicySettings(Section):
    """Prompts: the policy that chooses a mutation."""

    policy_input: int = setting(1536, "Length of the embeddings that the policy reads; shorter ones are padded.", ge=8)
    policy_hidden: Widths = setting(
        (256, 256, 128), "Widths of its hidden layers; the value network has the same.", metavar="N,N"
    )
    policy_dropout: float = setting(0.1, "Dropout while it learns; none when it selects.", ge=0, lt=1)
    policy_batch_norm: bool = setting(True, "Batch normalisation after each hidden layer.")
    policy_learning_rate: float = setting(3e-4, "Learning rate at the beginning.", gt=0)
    policy_rate_schedule: Literal["linear", "constant"] = setting(
        "linear", "Whether the learning rate falls, down to a tenth, over the decisions of --policy-rate-decisions."
    )
    policy_rate_decisions: int = setting(100_000, "Decisions over which the learning rate falls.", ge=1)
    policy_gamma: float = setting(0.99, "Discount of rewards later in an episode.", ge=0, le=1)
    policy_gae: float = setting(0.95, "Lambda of generalised advantage estimation.", ge=0, le=1)
    policy_clip: float = setting(0.2, "How far an update may move the probability of an action, as a ratio.", gt=0)
    policy_value_clip: float | None = setting(
        0.2, "How far an update may move the value of a prompt; unset: any.", gt=0
    )
    policy_entropy: float = setting(0.01, "Weight of the entropy in the loss.", ge=0)
    policy_value_weight: float = setting(0.5, "Weight of the value loss.", ge=0)
    policy_gradient_norm: float = setting(0.5, "Longest gradient of a step; a longer one is scaled down.", gt=0)
    policy_epochs: int = setting(4, "Passes over the experience of an update.", ge=1)
    policy_batch: int = setting(64, "Decisions in a step of the optimizer.", ge=2)
    policy_buffer: int = setting(2_048, "Decisions that an update waits for.", ge=2)
    policy_seed: int = setting(0, "Seed of the first weights, the order of batches and the drawing of actions.", ge=0)
