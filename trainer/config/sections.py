"""Every setting, once: its flag, its variable, its default and what it means.

A section is what a stage receives. If a command reads only half of a section, the section is composed of two, so that
every flag in `--help` has an effect. Secrets have their own sections, which only code that calls other services
receives. The help text here is the only description of a setting.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import ModelWrapValidatorHandler, SecretStr, field_validator, model_validator

from data_bridge.errors import ConfigurationError
from data_bridge.models import DECISIONS
from data_bridge.worlds.load import load_world
from trainer.config.settings import Command, Duration, Names, Section, setting

MAX_HOURS = 10 * 365 * 24
"""Maximum hours of the simulated market in one command: as many as a lookback can cover."""


class OutputSettings(Section):
    """Output."""

    json_output: bool = setting(
        False, "Print one JSON object instead of tables and progress.", flag="--json", env="HINDSIGHT_JSON", common=True
    )


class DatabaseSettings(Section):
    """Database."""

    # Postgres stores it in milliseconds, in 32 bits.
    statement_timeout: Duration = setting("2m", "Maximum time for one SQL statement.", le=timedelta(days=24))
    gone_after: Duration = setting(
        "45s",
        "How long Postgres, the endpoint of the judge or of the agents' model, W&B or all workers may be away before "
        "the command ends with exit 4; the same command resumes.",
        gt=timedelta(0),
    )


def moment_of(until: str | None) -> datetime:
    """``--until`` as an aware moment; now if it is not set."""
    if until is None:
        return datetime.now(UTC)
    try:
        moment = datetime.fromisoformat(until)
        if not 1000 < moment.year < 2999:  # as in window ids: far from the end of the calendar
            raise ValueError
    except ValueError:
        raise ConfigurationError(f"--until: write a moment as 2026-11-02T12:00 in UTC (got {until!r}).") from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


class MomentSettings(Section):
    """Windows: which hours and rows are used."""

    until: str | None = setting(None, "Read as if it were this UTC time (ISO 8601), to repeat a run.", common=True)

    @field_validator("until")
    @classmethod
    def _until_is_a_moment(cls, value: str | None) -> str | None:
        try:
            moment_of(value)
        except ConfigurationError:
            raise ValueError("write a moment as 2026-11-02T12:00 in UTC") from None
        return value


class LaterSettings(Section):
    """Windows: which hours and rows are used."""

    eval_windows: int = setting(40, "Maximum number of windows kept for, and used in, one evaluation.", ge=1)
    embargo: Duration = setting("3h", "Hours before the evaluation windows that are not trained either.")


class HeldOutSettings(LaterSettings):
    """Windows: which hours and rows are used."""

    held_out_share: float = setting(
        0.25, "Share of windows kept for the next ruling, the newest: at least 15, none if fewer than 30.", ge=0, lt=1
    )


class WindowSettings(MomentSettings):
    """Windows: which hours and rows are used."""

    lookback: Duration = setting("7d", "How far back windows are read.", common=True)
    min_agents: int = setting(3, "Minimum number of usable agents in a window.", ge=2)
    min_actions: int = setting(1, "Minimum number of actions in a trajectory.", ge=0)
    max_trajectory_mb: float = setting(5.0, "Leave out a trajectory with more JSON than this as oversized.", gt=0)
    allow_partial_outcomes: bool = setting(False, "Also use windows with only some known outcomes.")
    world: str = setting(
        "market",
        "Kind of game: market, quests, desk, or a file.",
        metavar="NAME|FILE",
        common=True,
    )
    facts_view: str | None = setting(
        None, "Read facts from this SQL view of yours instead of our own table.", metavar="NAME"
    )


class EnoughSettings(Section):
    """Windows: which hours and rows are used."""

    min_windows: int = setting(3, "Minimum number of usable windows for a training run.", ge=1)


class EvaluatedWindows(WindowSettings, LaterSettings):
    """Windows: which hours and rows are used."""


class SplitWindows(WindowSettings, HeldOutSettings):
    """Windows: which hours and rows are used."""


class ReadinessSettings(SplitWindows, EnoughSettings):
    """Whether there is enough to train on."""


class WorkerSettings(Section):
    """Workers: where windows are read and judged."""

    workers: int = setting(
        0, "Worker processes that read and judge, placed by Ray (the extra `scale`); 0: this process does it.", ge=0
    )
    ray_address: str | None = setting(
        None, "Address of the Ray cluster to place the workers on, or `auto`; unset: Ray is started on this machine."
    )
    worker_env: Path | None = setting(
        None,
        "File with DATABASE_URL and the judge's key that each worker reads on its own host; unset: one for this "
        "machine is written, and on others the environment of Ray's processes counts.",
        metavar="FILE",
    )
    worker_lease: Duration = setting(
        "10s", "Silence of a worker after which another one does its units.", ge=timedelta(seconds=1)
    )


class GroupingSettings(Section):
    """Groups."""

    grouping: Literal["window", "matched"] = setting(
        "window",
        "Who is compared: all agents of the window, or those with the same role and a similar balance.",
    )
    max_group: int = setting(8, "Maximum number of trajectories in a group.", ge=2, common=True)
    match_ratio: float = setting(
        2.0,
        "`matched` grouping: maximum ratio of the largest to the smallest starting balance in a group.",
        ge=1,
    )


class DropoutSettings(Section):
    """Groups."""

    target_trajectories: int = setting(1000, "Number of trajectories that dropout thins a run towards.", ge=1)
    max_dropout: float = setting(0.3, "Maximum share that automatic dropout may leave out.", ge=0, lt=1)
    dropout: float | None = setting(None, "Fix the dropout rate instead of computing it.", ge=0, lt=1)


class SelectionSettings(Section):
    """Groups."""

    select: str | None = setting(
        None,
        "`max-variance N`: after judging, keep the N most telling trajectories of each group.",
        metavar="RULE",
        several_words=True,
    )
    min_spread: float = setting(
        0.02, "Minimum difference between a group's best and worst score; below it the group has no signal.", ge=0, le=1
    )


class PlanSettings(GroupingSettings, DropoutSettings):
    """What is judged: the groups, thinned."""


class GroupSettings(PlanSettings, SelectionSettings):
    """Everything that decides who is compared with whom."""


class JudgePriceSettings(Section):
    """Judge."""

    judge: str = setting(
        "auto",
        "`outcome`, `reward` (offline, not an LLM), or `llm`; auto takes the LLM when --judge-model is set.",
        common=True,
    )
    judge_model: str | None = setting(
        None, "Model that judges, at any OpenAI-compatible endpoint.", env="JUDGE_MODEL", common=True
    )
    price: str | None = setting(
        None,
        "Price of the judge as INPUT/OUTPUT or INPUT/OUTPUT/CACHED dollars per million tokens, e.g. 0.25/2/0.025; "
        "overrides the table.",
        env="JUDGE_PRICE",
    )
    purposes: Names = setting(
        DECISIONS, "Which LLM calls are judged, trained and evaluated, by purpose, comma separated."
    )
    judge_context: int = setting(24_000, "Maximum tokens of one judge prompt.", ge=1_000)


class JudgeOrderSettings(Section):
    """Judge."""

    judge_orders: int = setting(
        2, "Maximum number of different orders in which a group is judged.", ge=1, le=8, common=True
    )
    judge_order_rule: Literal["adaptive", "all"] = setting(
        "adaptive",
        "When a group is judged in more than one order: where that could change its advantages (and a random tenth, to "
        "measure it), or always. adaptive also leaves out, unasked, groups whose members all did the same.",
    )


class JudgePassSettings(Section):
    """Judge."""

    judge_passes: int = setting(
        1,
        "2: the judge scores decisions without the outcome, then with it; luck, the difference, is not trained. Twice "
        "the calls.",
        ge=1,
        le=2,
    )


class JudgeCostSettings(JudgePriceSettings, JudgeOrderSettings, JudgePassSettings):
    """What an estimate of the judge's cost rests on."""


class JudgeStepSettings(Section):
    """Judge."""

    step_credit: bool = setting(
        False,
        "Credit each decision by itself: the judge scores the decisions as well as the whole, in the same call. Its "
        "prompt is another one then, so verdicts from before are not used.",
    )


class SurveyedJudge(JudgeCostSettings, JudgeStepSettings):
    """What judging a log would cost."""


class JudgeCallSettings(Section):
    """Judge."""

    judge_base_url: str | None = setting(
        None, "The judge's endpoint; unset means OpenAI's.", env="JUDGE_BASE_URL", common=True
    )
    rubric: str = setting(
        "trading",
        "Built-in rubric, or a file; unset: the world's.",
        metavar="NAME|FILE",
        common=True,
    )
    judge_reply_tokens: int = setting(
        4_096, "Maximum tokens of one judge reply, thinking included; --max-cost reserves this much.", ge=64
    )
    judge_concurrency: int = setting(16, "Maximum number of judge calls in flight.", ge=1)
    judge_timeout: Duration = setting("2m", "Maximum time for one judge call.")
    judge_attempts: int = setting(5, "Attempts per call when the endpoint is busy or failing.", ge=1)
    max_cost: float | None = setting(
        None, "Ceiling of the judge's cost in US dollars.", ge=0, metavar="USD", common=True
    )


class JudgeSettings(JudgeCostSettings, JudgeCallSettings):
    """What it takes to open a judge."""


class JudgeFailureSettings(Section):
    """Judge."""

    max_judge_failures: float = setting(
        0.2, "Maximum share of groups that the judge may fail on before the run stops with exit 4.", ge=0, le=1
    )


class JudgedSettings(JudgeSettings, JudgeFailureSettings):
    """A judge for many groups, some of which may fail."""


class TrainingJudge(JudgedSettings, JudgeStepSettings):
    """A judge whose verdicts are trained: it may score decisions by themselves."""


# Secrets: from a variable or .env


class DatabaseSecrets(Section):
    """Database."""

    database_url: SecretStr | None = setting(
        None,
        "The game's Postgres. Unset: one of our own, under --home.",
        env="DATABASE_URL",
        flag="--database-url",
        metavar="URL",
        common=True,
    )


class DatabaseCommand(Command):
    """A command that opens the database."""

    output: OutputSettings
    database: DatabaseSettings
    secrets: DatabaseSecrets

    @model_validator(mode="wrap")
    @classmethod
    def _follow_the_world(cls, given: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        """What is not set is the world's to say: its rubric, and the judge by its own measure instead of by prices."""
        made = validate(given)
        windows, judge = getattr(made, "windows", None), getattr(made, "judge", None)
        if not isinstance(windows, WindowSettings) or windows.world == "market":
            return made
        world, changed = load_world(windows.world), dict[str, Any]()
        if isinstance(judge, JudgeCallSettings) and "rubric" not in judge.model_fields_set:
            changed["rubric"] = world.rubric
        if isinstance(judge, JudgePriceSettings) and judge.judge == "outcome" and not world.reads_markets:
            raise ConfigurationError(f"--judge outcome judges markets; in the world {world.name} it is --judge reward.")
        if not world.reads_markets and getattr(getattr(made, "training", None), "potential", "off") != "off":
            raise ConfigurationError(f"--potential reads the accounts of a market; the world {world.name} has none.")
        if isinstance(judge, JudgePriceSettings) and judge.judge == "auto" and judge.judge_model is None:
            changed["judge"] = "outcome" if world.reads_markets else "reward"
        return made.model_copy(update={"judge": judge.model_copy(update=changed)}) if judge and changed else made


class JudgeSecrets(Section):
    """Judge."""

    judge_api_key: SecretStr | None = setting(
        None, "The judge's key; unset: the provider's own variable (OPENAI_API_KEY).", env="JUDGE_API_KEY", common=True
    )
    openai_api_key: SecretStr | None = setting(None, "Used when JUDGE_API_KEY is not set.", env="OPENAI_API_KEY")


class WandbSecrets(Section):
    """Backend and run tracking."""

    wandb_api_key: SecretStr | None = setting(
        None, "Key for W&B Serverless RL and for run tracking.", env="WANDB_API_KEY", common=True
    )


class ServeKeySecrets(Section):
    """Server."""

    serve_key: SecretStr | None = setting(None, "Key that clients must send as their API key.")


class EndpointSecrets(WandbSecrets, ServeKeySecrets):
    """The keys of the endpoints at which releases are asked."""


class EvaluationSecrets(JudgeSecrets):
    """Evaluation."""

    eval_judge_api_key: SecretStr | None = setting(
        None, "Key of the evaluation judge; unset: the judge's.", env="EVAL_JUDGE_API_KEY"
    )
