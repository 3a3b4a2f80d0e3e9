"""The settings of the commands around the data: check, judge, certify, spawn, migrate, traces."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import SecretStr

from trainer.config.lessons import EmbeddingSecrets, EmbeddingSettings, UsedLessons
from trainer.config.sections import (
    MAX_HOURS,
    DatabaseCommand,
    DatabaseSecrets,
    GroupingSettings,
    JudgeCallSettings,
    JudgePassSettings,
    JudgePriceSettings,
    JudgeSecrets,
    JudgeSettings,
    JudgeStepSettings,
    MomentSettings,
    PlanSettings,
    ReadinessSettings,
    SplitWindows,
    SurveyedJudge,
    TrainingJudge,
    WindowSettings,
    WorkerSettings,
)
from trainer.config.settings import Duration, Section, setting
from trainer.config.training import MarketSettings, ModelSettings


class OneWindowSettings(Section):
    """Which windows are shown."""

    window: str | None = setting(None, "Show this one window in full.", metavar="ID", flag_only=True)


class CheckSettings(DatabaseCommand):
    """check_windows."""

    shown: OneWindowSettings
    windows: ReadinessSettings
    groups: PlanSettings
    judge: SurveyedJudge
    secrets: DatabaseSecrets


class PlaySettings(Section):
    """What is played."""

    count: int = setting(24, "Hourly windows to play.", ge=1, le=MAX_HOURS, flag="--windows", flag_only=True)
    world: Literal["market", "quests"] = setting("market", "The simulated world that is played.")
    policy: str = setting(
        "scripted",
        "Who decides: `scripted` (skills from 0 to 1), `embedded` (the base model on this CPU), or the base URL of an "
        "OpenAI-compatible endpoint.",
        metavar="scripted|embedded|URL",
    )
    policy_model: str | None = setting(None, "Name of the model at the endpoint; unset: as --model.")
    seed: int = setting(7, "Seed of the simulated world and its agents.", env="HINDSIGHT_WORLD_SEED")
    start: str | None = setting(
        None,
        "First window, e.g. 2026-03-02T00:00; unset: whole days, the last of them yesterday.",
        metavar="ID",
        flag_only=True,
    )
    until_now: bool = setting(
        False, "End with the newest closed hour; with --start, play all hours between.", flag_only=True
    )
    dirty: float = setting(
        0.0, "Share of rows and windows that get one of the faults found in real tables.", ge=0, le=1, flag_only=True
    )


class SpawnSecrets(DatabaseSecrets, EmbeddingSecrets):
    """What is played."""

    policy_api_key: SecretStr | None = setting(None, "Key of the endpoint.", env="POLICY_API_KEY")


class SpawnSettings(DatabaseCommand):
    """spawn_test_agents."""

    play: PlaySettings
    model: ModelSettings
    market: MarketSettings
    lessons: UsedLessons
    embedding: EmbeddingSettings
    secrets: SpawnSecrets


class ExaminationSettings(Section):
    """Certification."""

    examined_groups: int = setting(
        36, "Simulated groups that the judge is examined on.", ge=4, flag="--groups", metavar="GROUPS", flag_only=True
    )
    group_agents: int = setting(6, "Agents in a group of the simulated market.", ge=3)
    own_windows: bool = setting(
        False, "Examine on twelve of your own windows as well as on the simulated market.", flag_only=True
    )
    fresh: bool = setting(False, "Ask everything again, also what this judge has answered before.", flag_only=True)
    seed: int = setting(0, "Seed of the simulated market.")


class ExaminedJudge(JudgePriceSettings, JudgePassSettings, JudgeStepSettings, JudgeCallSettings):
    """The user cannot choose the number of orders."""

    def asked_in(self, orders: int, passes: int | None = None) -> JudgeSettings:
        """The judge's settings for one part of the examination; unset ``passes`` are the user's."""
        own = {name: getattr(self, name) for name in type(self).model_fields if name != "step_credit"}
        own["judge_passes"] = passes or self.judge_passes
        return JudgeSettings(judge_orders=orders, judge_order_rule="all", **own)


class ExaminationSecrets(DatabaseSecrets, JudgeSecrets):
    """The secrets of all services that a certification calls."""


class CertifySettings(DatabaseCommand):
    """certify_judge."""

    ignored = ("held_out_share",)
    examination: ExaminationSettings
    windows: WindowSettings
    groups: GroupingSettings
    judge: ExaminedJudge
    secrets: ExaminationSecrets


class MigrationDeeds(Section):
    """What is done."""

    status: bool = setting(False, "Only show how each migration stands.", flag_only=True)
    dry_run: bool = setting(False, "Show what would be applied, and apply nothing.", flag_only=True)
    url: bool = setting(
        False,
        "Print the embedded database as DATABASE_URL for other programs, and keep it running until interrupted.",
        flag_only=True,
    )


class MigrationSettings(DatabaseCommand):
    """run_migrations."""

    deed: MigrationDeeds
    secrets: DatabaseSecrets


class JudgingSettings(Section):
    """What is judged."""

    window: str | None = setting(
        None, "Judge this one window and show every score and explanation.", metavar="ID", flag_only=True
    )
    held_out: bool = setting(
        False, "Judge the windows that are kept for evaluation instead of the others.", flag_only=True
    )
    write_back: bool = setting(
        False,
        "Write aiJudgeReward, aiJudgeReasoning, judgedAt and reward_judgments into the game's tables.",
        flag_only=True,
    )
    seed: int = setting(0, "Seed of the grouping; as in training, so that both share their verdicts.")


class JudgeWindowsSettings(DatabaseCommand):
    """judge_windows."""

    judging: JudgingSettings
    windows: SplitWindows
    groups: GroupingSettings
    judge: TrainingJudge
    workers: WorkerSettings
    secrets: ExaminationSecrets


class TraceFileSettings(Section):
    """What is written or read."""

    action: Literal["export", "import"] = setting(..., "Write a file of traces, or read one.", positional=True)
    file: Path = setting(
        ...,
        "JSON lines, one trajectory each; compressed if the name ends in .gz; - is standard output or input.",
        positional=True,
    )
    groups: bool = setting(
        False,
        "Export: judged groups for another engine instead, a line for each call (docs/export.md); as Parquet if the "
        "name ends in .parquet.",
        flag_only=True,
    )
    untrained: bool = setting(
        False, "Import: drop the marks that rows were judged and trained on, to train on them again.", flag_only=True
    )


class ExportedWindows(MomentSettings):
    """Windows: which hours and rows are used."""

    lookback: Duration = setting("7d", "Export: how far back windows are read.")
    until: str | None = setting(None, "Export: as if it were this UTC time (ISO 8601).")


class TraceSettings(DatabaseCommand):
    """traces."""

    traces: TraceFileSettings
    windows: ExportedWindows
