"""The settings of each command: the sections it needs, and what only it has.

What a command is asked to do once (roll back, list, force) is a flag and never a variable.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import SecretStr

from trainer.config.sections import (
    MOST_HOURS,
    CommonSettings,
    DatabaseSettings,
    GateSettings,
    GroupingSettings,
    HeldOutSettings,
    JudgeCallSettings,
    JudgeCostSettings,
    JudgeFailureSettings,
    JudgePriceSettings,
    JudgeSettings,
    MarketSettings,
    ModelNameSettings,
    ModelSettings,
    MomentSettings,
    OutputSettings,
    PlanSettings,
    PromotionSettings,
    ReadinessSettings,
    WindowSettings,
)
from trainer.config.sources import Duration, Section, setting, variable_of


class CheckSettings(
    CommonSettings, OutputSettings, DatabaseSettings, ReadinessSettings, PlanSettings, JudgeCostSettings
):
    """check_windows."""

    window: str | None = setting(None, "Show this one window in full.", metavar="ID", flag_only=True)


def all_variables() -> frozenset[str]:
    """Every variable that any command reads; a command does not reject a variable of another."""
    sections = Section.__subclasses__()
    names = set[str]()
    while sections:
        section = sections.pop()
        sections.extend(section.__subclasses__())
        named = (variable_of(name, field) for name, field in section.model_fields.items())
        names.update(variable for variable in named if variable is not None)
    return frozenset(names)


class ScheduleSettings(CommonSettings, OutputSettings, DatabaseSettings, ReadinessSettings):
    """Schedule: every other setting of the training reads its variable, from the environment or .env."""

    cron: str = setting("0 3 * * 0", "When to train, as a cron expression in UTC.", metavar="EXPRESSION")
    once: bool = setting(
        False, "Decide, train if a period is due, and exit: for cron, systemd and Kubernetes.", flag_only=True
    )
    job: str = setting("weekly", "Name of this schedule; hosts with the same name share its periods.")
    command: str | None = setting(
        None, "Command that trains one period; unset: train_mmo with this Python.", metavar="COMMAND"
    )
    period_attempts: int = setting(3, "How often a failed period is tried in all.", ge=1)
    retry_after: Duration = setting("10m", "Pause before a failed period is tried again.")
    notify_url: SecretStr | None = setting(
        None, "Webhook that is told each period's summary as JSON; never fatal.", flag="--notify-url", metavar="URL"
    )


class ServeSettings(CommonSettings, ModelSettings):
    """Server."""

    database_url: SecretStr | None = setting(
        None,
        "The game's Postgres, whose promotions are followed. Unset: those made under the same --home are.",
        env="DATABASE_URL",
        flag="--database-url",
        metavar="URL",
    )
    host: str = setting("127.0.0.1", "Address to listen on; any but loopback needs HINDSIGHT_SERVE_KEY.")
    port: int = setting(8808, "Port to listen on.", ge=0, le=65535)
    serve_key: SecretStr | None = setting(None, "Key that clients must send as their API key.")
    most_waiting: int = setting(512, "Requests answered at once; more are told to come back (429).", ge=1)


class PromoteSettings(
    CommonSettings,
    OutputSettings,
    DatabaseSettings,
    MomentSettings,
    ModelNameSettings,
    GateSettings,
    PromotionSettings,
):
    """promote."""

    step: str | None = setting(
        None,
        "Checkpoint to promote or roll back to, e.g. hindsight@step3 or 3; unset: the newest, or the one before.",
        positional=True,
    )
    list_checkpoints: bool = setting(
        False,
        "Show the checkpoints with scores, state and lineage.",
        flag="--list",
        flag_only=True,
    )
    rollback: bool = setting(False, "Go back to an earlier checkpoint (STEP), or end a running canary.", flag_only=True)
    finish: bool = setting(
        False, "Finish a canary: all agents, back, or wait, by how its agents did since.", flag_only=True
    )
    force: bool = setting(False, "Promote against the gate; needs --reason.", flag_only=True)
    reason: str | None = setting(None, "Why; kept with the promotion.", flag_only=True)


class LineageSettings(CommonSettings, OutputSettings, DatabaseSettings, HeldOutSettings, ModelNameSettings):
    """lineage."""

    checkpoint: str | None = setting(
        None, "Checkpoint to walk back from, e.g. hindsight@step3 or 3; unset: the newest.", positional=True
    )
    window: str | None = setting(
        None, "Walk forward from this window to what it trained.", metavar="ID", flag_only=True
    )
    depth: int = setting(1, "How many checkpoints back; 0: all the way to the base model.", ge=0, flag_only=True)


class ReportSettings(CommonSettings, OutputSettings, DatabaseSettings):
    """Report."""

    run: str | None = setting(None, "Id of the run; unset: the model's latest.", positional=True)
    model: str = setting("hindsight", "Model whose latest run is reported.")
    output: Path | None = setting(
        None, "Where to write the page; unset: in the run's folder.", metavar="FILE", flag_only=True
    )
    open_page: bool = setting(False, "Open the page in a browser.", flag="--open", flag_only=True)
    list_runs: bool = setting(False, "List the model's runs instead.", flag="--list", flag_only=True)


class SpawnSettings(CommonSettings, OutputSettings, DatabaseSettings, ModelSettings, MarketSettings):
    """spawn_test_agents."""

    windows: int = setting(24, "Hourly windows to play.", ge=1, le=MOST_HOURS, flag_only=True)
    policy: str = setting(
        "scripted",
        "Who decides: `scripted` (skills from 0 to 1), `embedded` (the base model on this CPU), or the base URL of an "
        "OpenAI-compatible endpoint.",
        metavar="scripted|embedded|URL",
    )
    policy_model: str | None = setting(None, "Name of the model at the endpoint; unset: as --model.")
    policy_api_key: SecretStr | None = setting(None, "Key of the endpoint.", env="POLICY_API_KEY")
    seed: int = setting(7, "Seed of the simulated market and its agents.", env="HINDSIGHT_WORLD_SEED")
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


class CertifySettings(
    CommonSettings,
    OutputSettings,
    DatabaseSettings,
    WindowSettings,
    GroupingSettings,
    JudgePriceSettings,
    JudgeCallSettings,
):
    """Certification."""

    groups: int = setting(16, "Groups that the judge is examined on.", ge=4, flag_only=True)
    group_agents: int = setting(6, "Agents in a group of the simulated market.", ge=3)
    own_windows: bool = setting(
        False, "Examine on your own windows as well as on the simulated market.", flag_only=True
    )
    fresh: bool = setting(False, "Ask everything anew, also what this judge has answered before.", flag_only=True)
    seed: int = setting(0, "Seed of the simulated market.")

    def judge_asked_in(self, orders: int) -> JudgeSettings:
        """The judge as one part of the examination asks it; in how many orders is no choice of the user's."""
        chosen = {name: getattr(self, name) for name in JudgeSettings.model_fields if name != "judge_orders"}
        return JudgeSettings(judge_orders=orders, **chosen)


class MigrationSettings(CommonSettings, OutputSettings, DatabaseSettings):
    """run_migrations."""

    status: bool = setting(False, "Only show how each migration stands.", flag_only=True)
    dry_run: bool = setting(False, "Show what would be applied, and apply nothing.", flag_only=True)


class JudgeWindowsSettings(
    CommonSettings,
    OutputSettings,
    DatabaseSettings,
    WindowSettings,
    GroupingSettings,
    JudgeSettings,
    JudgeFailureSettings,
):
    """judge_windows."""

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


class TraceSettings(CommonSettings, OutputSettings, DatabaseSettings, MomentSettings):
    """traces."""

    action: Literal["export", "import"] = setting(..., "Write a file of traces, or read one.", positional=True)
    file: Path = setting(..., "JSON lines, one trajectory each; compressed if the name ends in .gz.", positional=True)
    lookback: Duration = setting("7d", "Export: how far back windows are read.")
    until: str | None = setting(None, "Export: as if it were this UTC moment (ISO 8601).")
    untrained: bool = setting(
        False, "Import: forget that rows were judged and trained on, to train on them again.", flag_only=True
    )
