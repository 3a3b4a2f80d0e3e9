"""The settings of the command ``prompts``: what is done, where the policy is served, and what learning may cost."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, SecretStr

from trainer.config.lessons import EmbeddingSecrets, EmbeddingSettings, GameSettings
from trainer.config.prompts import PolicySettings, PromptLimits
from trainer.config.sections import (
    DatabaseCommand,
    DatabaseSecrets,
    EvaluatedWindows,
    EvaluationSecrets,
    JudgedSettings,
    WandbSecrets,
)
from trainer.config.settings import Names, Section, setting
from trainer.config.training import ChanceSettings, EvaluationSettings, GateSettings, ModelSettings, PromotionSettings


def _compiled(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"this is no regular expression ({error})") from None
    return value


Regex = Annotated[str, AfterValidator(_compiled)]


class PromptDeeds(Section):
    """What is done."""

    action: Literal["list", "add", "show", "diff", "mutate", "learn", "compare", "gate", "release", "serve"] = setting(
        ..., "list, add, show, diff, mutate, learn, compare, gate, release or serve.", positional=True
    )
    target: str | None = setting(
        None,
        "add: a file with the prompt; show, diff, mutate, gate, release: the prompt's id; learn, compare: the prompt "
        "to begin with, unset: all of the role.",
        positional=True,
    )
    against: str | None = setting(None, "Diff: the other prompt; unset: its parent.", flag_only=True, metavar="ID")
    mutation: str | None = setting(None, "Mutate: which; unset: the policy selects.", flag_only=True, metavar="NAME")
    prompt_role: str = setting(
        "",
        "Whose prompts; unset: those of every role without its own.",
        flag="--role",
        flag_only=True,
        max_length=100,
        pattern=r"^[^\x00-\x1f\x7f]*$",
    )
    decisions: int = setting(
        2_048, "Learn and compare: decisions of the policy, those of earlier runs included.", ge=2, flag_only=True
    )
    gepa_budget: int = setting(64, "Compare: scores that GEPA may ask for at each prompt.", ge=1, flag_only=True)
    force: bool = setting(False, "Release: against the gate, or without evidence; needs --reason.", flag_only=True)
    reason: str | None = setting(None, "Release: why; kept with the release.", flag_only=True)
    reply: Regex | None = setting(
        None,
        "Regular expression of a whole valid reply: a mutation keeps examples to it; unset: any reply is valid.",
        flag_only=True,
        metavar="REGEX",
    )


class PromptServer(Section):
    """Prompts: where the policy is served."""

    prompt_host: str = setting(
        "127.0.0.1", "Address to listen on.", flag="--host", env="HINDSIGHT_PROMPT_HOST", metavar="ADDRESS"
    )
    prompt_port: int = setting(
        8765, "Port to listen on; 0: a free one.", flag="--port", env="HINDSIGHT_PROMPT_PORT", ge=0, le=65535
    )
    prompt_hosts: Names = setting(
        (),
        "Further names that clients may call this server by, as in their Host header.",
        flag="--allowed-hosts",
        env="HINDSIGHT_PROMPT_HOSTS",
        metavar="NAMES",
    )


class PromptSecrets(DatabaseSecrets, EvaluationSecrets, WandbSecrets, EmbeddingSecrets):
    """The secrets of all services that prompts call, and the key of the one that they are."""

    console_key: SecretStr | None = setting(
        None, "Key that may do everything; unset: made at the first start, in a file under --home."
    )
    console_read_key: SecretStr | None = setting(None, "Key that may only look; unset: made like the other.")


class PromptsCommand(DatabaseCommand):
    """prompts."""

    deed: PromptDeeds
    server: PromptServer
    limits: PromptLimits
    policy: PolicySettings
    lessons: GameSettings
    embedding: EmbeddingSettings
    model: ModelSettings
    windows: EvaluatedWindows
    judge: JudgedSettings
    chance: ChanceSettings
    evaluation: EvaluationSettings
    gate: GateSettings
    promotion: PromotionSettings
    secrets: PromptSecrets
