"""The settings of the console: where it listens, who may use it, what it keeps, and what it can judge and promote."""

from __future__ import annotations

from datetime import timedelta

from pydantic import SecretStr, field_validator

from trainer.config.lessons import EmbeddingSecrets, EmbeddingSettings, GameSettings, KeptLessons
from trainer.config.prompts import ConsolePrompts, PolicySettings
from trainer.config.sections import (
    DatabaseCommand,
    DatabaseSecrets,
    EndpointSecrets,
    JudgeSecrets,
    JudgeSettings,
    PlanSettings,
    ReadinessSettings,
)
from trainer.config.settings import Duration, Names, Section, setting
from trainer.config.training import AddressSettings, GateSettings, ModelNameSettings


class ConsoleSettings(Section):
    """Console: where it listens, and what it keeps."""

    console_host: str = setting(
        "127.0.0.1",
        "Address to listen on.",
        flag="--host",
        env="HINDSIGHT_CONSOLE_HOST",
        metavar="ADDRESS",
        common=True,
    )
    console_port: int = setting(
        8899, "Port to listen on.", flag="--port", env="HINDSIGHT_CONSOLE_PORT", ge=0, le=65535, common=True
    )
    console_hosts: Names = setting(
        (),
        "Further names that browsers may call this server by, as in their Host header.",
        flag="--allowed-hosts",
        env="HINDSIGHT_CONSOLE_HOSTS",
        metavar="NAMES",
        common=True,
    )
    console_path: str = setting(
        "", "Path under which a proxy offers the console, e.g. /hindsight.", flag="--path", metavar="PATH"
    )
    console_proxy: str | None = setting(
        None,
        "Address of the TLS proxy in front; only its X-Forwarded-For and X-Forwarded-Proto are believed.",
        flag="--proxy",
        metavar="ADDRESS",
    )
    console_trains: bool = setting(
        True, "Take trainings that were asked for, when this host is idle, and run them here.", flag="--train-here"
    )
    training_command: str | None = setting(
        None, "Command that trains; unset: train_mmo with this Python.", flag="--command", metavar="COMMAND"
    )
    keep_events: Duration = setting("30d", "How long events are kept.", gt=timedelta(0))
    keep_audit: Duration = setting("365d", "How long the audit log is kept.", gt=timedelta(0))
    keep_rewards: Duration = setting(
        "180d", "How long scores that were asked for through the API are kept.", gt=timedelta(0)
    )

    keep_advice: Duration = setting("180d", "How long proposals and what came of them are kept.", gt=timedelta(0))

    @field_validator("console_path")
    @classmethod
    def _path_is_clean(cls, value: str) -> str:
        path = value.rstrip("/")
        if path and (
            not path.startswith("/") or not all(part.isalnum() for part in path[1:].replace("-", "x").split("/"))
        ):
            raise ValueError("write a path such as /hindsight, of letters, digits and hyphens")
        return path


class AdviceSettings(Section):
    """Advice: what the promoted release would do."""

    advice_precision: float = setting(
        0.75,
        "Share of the proposals shown that must be right; where that is not certain, nothing is shown.",
        ge=0.5,
        lt=1,
    )
    advice_memory: Duration = setting(
        "28d", "How far back outcomes calibrate the confidence; a change is noticed earlier.", gt=timedelta(0)
    )
    advice_samples: int = setting(8, "Replies that a proposal is made of.", ge=2, le=64)
    advice_tokens: int = setting(64, "Maximum length of a proposal, in tokens.", ge=1, le=2048)
    advice_timeout: Duration = setting("20s", "Maximum time for a proposal.", gt=timedelta(0), le=timedelta(minutes=10))


class AdvisorSettings(AdviceSettings):
    """Advice: what the promoted release would do."""

    advice_control: float = setting(
        0.1, "Share of the questions that get no advice, so that its worth can be measured.", ge=0, lt=1
    )


class ConsoleDeeds(Section):
    """What is done instead of serving."""

    watch: bool = setting(False, "Show what happens now in this terminal; no server is started.", flag_only=True)
    rotate_keys: bool = setting(
        False, "Make new keys; the old ones and every login end at once, also in a running console.", flag_only=True
    )


class ConsoleSecrets(DatabaseSecrets, JudgeSecrets, EndpointSecrets, EmbeddingSecrets):
    """Console: where it listens, and what it keeps."""

    console_key: SecretStr | None = setting(
        None, "Key that may do everything; unset: made at the first start, in a file under --home."
    )
    console_read_key: SecretStr | None = setting(None, "Key that may only look; unset: made like the other.")
    notify_url: SecretStr | None = setting(
        None, "Webhook that is told of rollbacks, collapses, exhausted budgets and failures, as JSON."
    )


class ConsoleCommand(DatabaseCommand):
    """console."""

    console: ConsoleSettings
    deed: ConsoleDeeds
    model: ModelNameSettings
    windows: ReadinessSettings
    groups: PlanSettings
    judge: JudgeSettings
    gate: GateSettings
    promotion: AddressSettings
    advice: AdvisorSettings
    lessons: GameSettings
    embedding: EmbeddingSettings
    kept: KeptLessons
    limits: ConsolePrompts
    policy: PolicySettings
    secrets: ConsoleSecrets
