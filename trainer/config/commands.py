"""The settings of the commands that train, evaluate, promote and serve: their sections, and what only they have.

An option for a single call (roll back, list, force) is a flag and never a variable.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Self

from pydantic import SecretStr, model_validator
from pydantic.fields import FieldInfo

from trainer.config.console import AdviceSettings, ConsoleCommand
from trainer.config.data_commands import (
    CertifySettings,
    CheckSettings,
    JudgeWindowsSettings,
    MigrationSettings,
    SpawnSettings,
    TraceSettings,
)
from trainer.config.lessons import (
    EmbeddingSecrets,
    EmbeddingSettings,
    GameSettings,
    KeptLessons,
    LessonsCommand,
    ShownLessons,
    TrainedLessons,
    UsedLessons,
)
from trainer.config.prompt_commands import PromptsCommand
from trainer.config.sections import (
    DatabaseCommand,
    DatabaseSecrets,
    EndpointSecrets,
    EvaluatedWindows,
    EvaluationSecrets,
    GroupSettings,
    JudgedSettings,
    MomentSettings,
    ReadinessSettings,
    ServeKeySecrets,
    SplitWindows,
    TrainingJudge,
    WandbSecrets,
    WorkerSettings,
)
from trainer.config.settings import Command, Duration, Names, Section, keys_of, setting, variables_of
from trainer.config.training import (
    AddressSettings,
    BackendSettings,
    ChanceSettings,
    EvaluationSettings,
    GateSettings,
    ModelNameSettings,
    ModelSettings,
    PromotionSettings,
    RunSettings,
    TrainingSettings,
    WorldSettings,
)


class TrainSecrets(DatabaseSecrets, EvaluationSecrets, WandbSecrets, EmbeddingSecrets):
    """The secrets of all services that training calls."""


class TrainSettings(DatabaseCommand):
    """train_mmo."""

    run: RunSettings
    windows: ReadinessSettings
    groups: GroupSettings
    judge: TrainingJudge
    workers: WorkerSettings
    model: ModelSettings
    backend: BackendSettings
    chance: ChanceSettings
    training: TrainingSettings
    evaluation: EvaluationSettings
    gate: GateSettings
    promotion: PromotionSettings
    market: WorldSettings
    lessons: TrainedLessons
    embedding: EmbeddingSettings
    secrets: TrainSecrets

    @model_validator(mode="after")
    def _judge_is_complete(self) -> Self:
        if self.judge.judge == "llm" and not self.judge.judge_model:
            raise ValueError("--judge llm needs JUDGE_MODEL: name the model that judges")
        return self

    @model_validator(mode="after")
    def _knows_its_last_day(self) -> Self:
        if self.run.max_lag > 0 and self.training.max_steps > 0:
            raise ValueError(
                "--max-lag 1 plays a day before it is known whether --max-steps leaves it untrained: choose one, or "
                "--iterations instead"
            )
        return self

    @model_validator(mode="after")
    def _shapes_decisions(self) -> Self:
        if self.training.potential != "off" and not self.judge.step_credit:
            raise ValueError("--potential shapes the returns of decisions: it needs --step-credit")
        return self

    @model_validator(mode="after")
    def _weighs_patterns(self) -> Self:
        if self.training.pattern_feedback == "on" and self.training.scale_rewards:
            raise ValueError(
                "--pattern-feedback on weighs groups, and --scale-rewards makes every group as large as any other: "
                "choose one"
            )
        return self


class ComparedSettings(Section):
    """What is compared."""

    candidate: str | None = setting(
        None, "Checkpoint to evaluate, e.g. hindsight@step3 or 3; unset: the newest.", positional=True
    )
    incumbent: str | None = setting(
        None, "Checkpoint to compare with; unset: the promoted one, or the base model (step 0).", positional=True
    )


class EvaluateSettings(DatabaseCommand):
    """evaluate."""

    ignored = ("held_out_share",)
    compared: ComparedSettings
    windows: EvaluatedWindows
    judge: JudgedSettings
    model: ModelSettings
    chance: ChanceSettings
    evaluation: EvaluationSettings
    gate: GateSettings
    promotion: AddressSettings
    lessons: UsedLessons
    embedding: EmbeddingSettings
    secrets: TrainSecrets


class PeriodSettings(Section):
    """Schedule: every other setting of the training reads its variable, from the environment or .env."""

    cron: str = setting("0 3 * * 0", "When to train, as a cron expression in UTC.", metavar="EXPRESSION")
    once: bool = setting(
        False, "Decide, train if a period is due, and exit: for cron, systemd and Kubernetes.", flag_only=True
    )
    job: str = setting("weekly", "Name of this schedule; hosts with the same name share its periods.")
    command: str | None = setting(
        None, "Command that trains one period; unset: train_mmo with this Python.", metavar="COMMAND"
    )
    period_attempts: int = setting(3, "Maximum number of attempts per period.", ge=1)
    retry_after: Duration = setting("10m", "Pause before a failed period is retried.")


class ScheduleSecrets(DatabaseSecrets, EmbeddingSecrets):
    """Schedule: every other setting of the training reads its variable, from the environment or .env."""

    notify_url: SecretStr | None = setting(
        None,
        "Webhook that receives each period's summary as JSON; its failure is never fatal.",
    )


class ScheduleSettings(DatabaseCommand):
    """schedule_training."""

    schedule: PeriodSettings
    windows: ReadinessSettings
    lessons: GameSettings
    embedding: EmbeddingSettings
    kept: KeptLessons
    secrets: ScheduleSecrets


class ServerSettings(Section):
    """Server."""

    host: str = setting("127.0.0.1", "Address to listen on; any but loopback needs HINDSIGHT_SERVE_KEY.")
    port: int = setting(8808, "Port to listen on.", ge=0, le=65535)
    engines: int = setting(
        1,
        "Processes that run the model behind this endpoint, each with its copy; they divide --threads. "
        "1: in this process.",
        ge=1,
        le=64,
    )
    max_waiting: int = setting(
        512, "Maximum number of requests in flight; more get status 429.", ge=1, formerly="most_waiting"
    )
    max_connections: int = setting(
        1024, "Maximum number of open connections; beyond it, the one idle for longest is closed.", ge=1
    )
    client_timeout: Duration = setting(
        "30s",
        "Maximum time that a client may take to send its headers, its body, or the next request, or to read a reply.",
        gt=timedelta(0),
    )
    allowed_hosts: Names = setting(
        (), "Further names that clients may call this server by, as in their Host header.", metavar="NAMES"
    )


class ServeSecrets(ServeKeySecrets):
    """Server."""

    database_url: SecretStr | None = setting(
        None,
        "The game's Postgres, whose promotions are followed. Unset: those made under the same --home are.",
        env="DATABASE_URL",
        flag="--database-url",
        metavar="URL",
    )


class ServeSettings(Command):
    """serve."""

    server: ServerSettings
    model: ModelSettings
    secrets: ServeSecrets

    @model_validator(mode="after")
    def _each_engine_has_a_thread(self) -> Self:
        if 0 < self.model.threads < self.server.engines:
            raise ValueError(
                f"--engines {self.server.engines} cannot divide --threads {self.model.threads}: each needs one"
            )
        return self


class PromoteDeeds(Section):
    """What is promoted."""

    step: str | None = setting(
        None,
        "Checkpoint to promote or roll back to, e.g. hindsight@step3 or 3; unset: the newest, or the one before.",
        positional=True,
    )
    list_checkpoints: bool = setting(
        False, "Show the checkpoints with scores, state and lineage.", flag="--list", flag_only=True
    )
    rollback: bool = setting(
        False, "Roll back to an earlier checkpoint (STEP), or end a running canary.", flag_only=True
    )
    finish: bool = setting(
        False,
        "Settle a canary now, by how its agents did since: give it to all agents, roll it back, or wait.",
        flag_only=True,
    )
    force: bool = setting(False, "Promote against the gate; needs --reason.", flag_only=True)
    reason: str | None = setting(None, "The reason; kept with the promotion.", flag_only=True)


class PromoteSettings(DatabaseCommand):
    """promote."""

    deed: PromoteDeeds
    windows: MomentSettings
    model: ModelNameSettings
    gate: GateSettings
    promotion: PromotionSettings
    lessons: ShownLessons
    secrets: DatabaseSecrets


class AncestrySettings(Section):
    """Lineage."""

    checkpoint: str | None = setting(
        None, "Checkpoint to walk back from, e.g. hindsight@step3 or 3; unset: the newest.", positional=True
    )
    window: str | None = setting(
        None, "Walk forward from this window to what it trained.", metavar="ID", flag_only=True
    )
    depth: int = setting(1, "How many checkpoints back; 0: all the way to the base model.", ge=0, flag_only=True)
    rewards: bool = setting(
        False,
        "Show how each verdict became an advantage, and compute it again; exit 4 if a bit differs.",
        flag_only=True,
    )


class CalibrateSecrets(DatabaseSecrets, EndpointSecrets):
    """Database."""


class CalibrationSettings(Section):
    """Calibration."""

    points: int = setting(600, "Maximum number of decision points at which the release is asked.", ge=1)


class CalibrateSettings(DatabaseCommand):
    """calibrate_advice."""

    calibration: CalibrationSettings
    windows: SplitWindows
    model: ModelNameSettings
    promotion: AddressSettings
    advice: AdviceSettings
    secrets: CalibrateSecrets


class LineageSettings(DatabaseCommand):
    """lineage."""

    ignored = ("held_out_share",)
    lineage: AncestrySettings
    model: ModelNameSettings
    secrets: DatabaseSecrets


class PageSettings(Section):
    """Report."""

    run: str | None = setting(None, "Id of the run; unset: the model's latest.", positional=True)
    report_file: Path | None = setting(
        None, "Where to write the page; unset: in the run's folder.", flag="--output", metavar="FILE", flag_only=True
    )
    open_page: bool = setting(False, "Open the page in a browser.", flag="--open", flag_only=True)
    list_runs: bool = setting(False, "List the model's runs instead.", flag="--list", flag_only=True)


class ReportSettings(DatabaseCommand):
    """report."""

    page: PageSettings
    model: ModelNameSettings
    secrets: DatabaseSecrets


COMMANDS: tuple[type[Command], ...] = (
    TrainSettings,
    EvaluateSettings,
    PromoteSettings,
    ServeSettings,
    ScheduleSettings,
    LineageSettings,
    ReportSettings,
    ConsoleCommand,
    CalibrateSettings,
    CheckSettings,
    JudgeWindowsSettings,
    CertifySettings,
    SpawnSettings,
    MigrationSettings,
    TraceSettings,
    LessonsCommand,
    PromptsCommand,
)


def all_variables() -> frozenset[str]:
    """Every variable that any command reads; no command rejects another command's variable."""
    return frozenset[str]().union(*(variables_of(command) for command in COMMANDS))


def all_keys() -> dict[str, dict[str, FieldInfo]]:
    """Every setting that any command reads, by section: one run.toml serves them all."""
    return keys_of(*COMMANDS)
