"""Every setting, once: its flag, its variable, its default and what it means.

Sections are what a stage is handed; a command's settings class inherits those that its code reads, and no other:
a flag that `--help` shows has an effect. Hence the small ones: a section is split where a command reads half of it.
A sentence of help here is the only place where the setting is described.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, Self

from pydantic import SecretStr, field_validator, model_validator

from data_bridge.errors import ConfigurationError
from data_bridge.quality import Rules
from trainer.config.sources import Duration, Names, Section, setting

MOST_HOURS = 10 * 365 * 24
"""That the simulated market is asked for at once: as far as a lookback reaches."""


class CommonSettings(Section):
    """Files and errors."""

    home: Path = setting(
        Path(".hindsight"),
        "Folder of the embedded database, model cache, checkpoints and runs.",
        env="HINDSIGHT_HOME",
        metavar="DIR",
    )
    debug: bool = setting(False, "Show the traceback of an error, and debug logging.")


class OutputSettings(Section):
    """Output."""

    json_output: bool = setting(
        False, "Print one JSON object instead of tables and progress.", flag="--json", env="HINDSIGHT_JSON"
    )


class DatabaseSettings(Section):
    """Database."""

    database_url: SecretStr | None = setting(
        None,
        "The game's Postgres. Unset: a real Postgres of our own is started under --home.",
        env="DATABASE_URL",
        flag="--database-url",
        metavar="URL",
    )
    # Postgres counts it in milliseconds, in 32 bits.
    statement_timeout: Duration = setting("2m", "Longest that one SQL statement may take.", le=timedelta(days=24))


class MomentSettings(Section):
    """Windows: which hours, and which rows of them, are used."""

    until: str | None = setting(None, "Read as if it were this UTC moment (ISO 8601), for repeating a run.")

    @field_validator("until")
    @classmethod
    def _until_is_a_moment(cls, value: str | None) -> str | None:
        try:
            moment_of(value)
        except ConfigurationError:
            raise ValueError("write a moment as 2026-11-02T12:00 in UTC") from None
        return value


class HeldOutSettings(Section):
    """Windows: which hours, and which rows of them, are used."""

    held_out_share: float = setting(
        0.1, "Share of windows kept for evaluation, chosen by a hash of the id; never change it later.", ge=0, lt=1
    )


class WindowSettings(MomentSettings, HeldOutSettings):
    """Windows: which hours, and which rows of them, are used."""

    lookback: Duration = setting("7d", "How far back windows are read.")
    min_agents: int = setting(3, "Fewest usable agents in a window.", ge=2)
    min_actions: int = setting(1, "Fewest actions in a trajectory.", ge=0)
    max_trajectory_mb: float = setting(5.0, "A trajectory with more JSON than this is left out as oversized.", gt=0)
    allow_partial_outcomes: bool = setting(False, "Also use windows of which only some outcomes are known.")


class EnoughSettings(Section):
    """Windows: which hours, and which rows of them, are used."""

    min_windows: int = setting(3, "Fewest usable windows that are worth a training run.", ge=1)


class ReadinessSettings(WindowSettings, EnoughSettings):
    """Whether there is enough to train on."""


class GroupingSettings(Section):
    """Groups."""

    grouping: Literal["window", "matched"] = setting(
        "window", "Who is compared: all agents of the hour, or those of the same role and a similar balance."
    )
    max_group: int = setting(8, "Most trajectories in one group.", ge=2)
    match_ratio: float = setting(
        2.0,
        "`matched` grouping: the largest starting balance of a group is at most this many times the smallest.",
        ge=1,
    )


class DropoutSettings(Section):
    """Groups."""

    target_trajectories: int = setting(1000, "Dropout thins a run towards this many trajectories.", ge=1)
    max_dropout: float = setting(0.3, "Largest share that automatic dropout may leave out.", ge=0, lt=1)
    dropout: float | None = setting(None, "Fix the dropout rate instead of computing it.", ge=0, lt=1)


class SelectionSettings(Section):
    """Groups."""

    select: str | None = setting(
        None,
        "`max-variance N`: after judging, keep the N most telling trajectories of each group.",
        metavar="RULE",
        several_words=True,
    )
    min_spread: float = setting(0.02, "A group whose best and worst score differ by less has no signal.", ge=0, le=1)


class PlanSettings(GroupingSettings, DropoutSettings):
    """What is judged: the groups, thinned."""


class GroupSettings(PlanSettings, SelectionSettings):
    """Everything that decides who is compared with whom."""


class JudgePriceSettings(Section):
    """Judge."""

    judge: str = setting(
        "auto",
        "`outcome` (offline, not an LLM), or `llm`; auto takes the LLM when --judge-model is set.",
    )
    judge_model: str | None = setting(None, "Model that judges, at any OpenAI-compatible endpoint.", env="JUDGE_MODEL")
    price: str | None = setting(
        None,
        "Price of the judge as INPUT/OUTPUT dollars per million tokens, e.g. 0.25/2; overrides the table.",
        env="JUDGE_PRICE",
    )
    judge_context: int = setting(24_000, "Most tokens of one judge prompt.", ge=1_000)


class JudgeOrderSettings(Section):
    """Judge."""

    judge_orders: int = setting(2, "In how many different orders each group is judged.", ge=1, le=8)


class JudgeCostSettings(JudgePriceSettings, JudgeOrderSettings):
    """What an estimate of the judge's cost rests on."""


class JudgeCallSettings(Section):
    """Judge."""

    judge_base_url: str | None = setting(None, "The judge's endpoint; unset means OpenAI's.", env="JUDGE_BASE_URL")
    judge_api_key: SecretStr | None = setting(
        None, "The judge's key; unset: the provider's own variable (OPENAI_API_KEY).", env="JUDGE_API_KEY"
    )
    openai_api_key: SecretStr | None = setting(None, "Used when JUDGE_API_KEY is not set.", env="OPENAI_API_KEY")
    rubric: str = setting("trading", "Name of a built-in rubric, or a file of your own.", metavar="NAME|FILE")
    judge_reply_tokens: int = setting(
        4_096, "Most tokens of one judge reply, thinking included; --max-cost sets this much aside.", ge=64
    )
    judge_concurrency: int = setting(16, "Most judge calls in flight.", ge=1)
    judge_timeout: Duration = setting("2m", "Longest that one judge call may take.")
    judge_attempts: int = setting(5, "Tries per call when the endpoint is busy or failing.", ge=1)
    max_cost: float | None = setting(None, "Ceiling of the judge's cost in US dollars.", ge=0, metavar="USD")


class JudgeSettings(JudgeCostSettings, JudgeCallSettings):
    """What it takes to open a judge."""


class JudgeFailureSettings(Section):
    """Judge."""

    max_judge_failures: float = setting(
        0.2, "Largest share of groups that may fail before the run stops with exit 4.", ge=0, le=1
    )


class ModelNameSettings(Section):
    """Model."""

    model: str = setting(
        "hindsight",
        "Name of the trained model: its checkpoints, lock and lineage.",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
    )


class BaseModelSettings(Section):
    """Model."""

    base_model: str = setting(
        "smollm2-135m-instruct",
        "The model to train: the embedded one, a local directory, or a hub name; unset, local and serverless "
        "take a Qwen of 7 and 14 billion parameters.",
    )
    threads: int = setting(0, "CPU threads for the model; 0 takes all cores.", ge=0)


class ModelSettings(ModelNameSettings, BaseModelSettings):
    """A model that runs on this machine."""


class WandbSettings(Section):
    """Backend and run tracking."""

    wandb_api_key: SecretStr | None = setting(
        None, "Key for W&B Serverless RL and for run tracking.", env="WANDB_API_KEY"
    )


class BackendSettings(ModelSettings, WandbSettings):
    """Backend and run tracking."""

    backend: Literal["auto", "cpu", "local", "serverless"] = setting(
        "auto", "Where to train: auto takes serverless with a W&B key, local with a GPU, else the CPU."
    )
    wandb_project: str = setting("hindsight", "W&B project.", env="WANDB_PROJECT")
    wandb_entity: str | None = setting(None, "W&B entity; unset: the key's default.", env="WANDB_ENTITY")
    tracking: Literal["auto", "online", "offline", "off"] = setting(
        "auto", "wandb run tracking: auto is online with a key, else off."
    )
    remote_deadline: Duration = setting("6h", "Longest that a remote training job is followed.")


class ChoiceSettings(Section):
    """Which calls, and chance."""

    purposes: Names = setting(("action",), "Which LLM calls are trained and evaluated, by purpose, comma separated.")
    seed: int = setting(0, "Seed of everything random.")


class TrainingSettings(ChoiceSettings):
    """Training."""

    learning_rate: float = setting(
        7e-4, "AdamW learning rate of the LoRA adapter; unset, local and serverless take ART's 5e-6.", gt=0
    )
    groups_per_step: int = setting(9, "Groups in one gradient step.", ge=1)
    max_steps: int = setting(0, "Most gradient steps in this run; 0 trains on all groups.", ge=0)
    loss: Literal["ppo", "cispo"] = setting("ppo", "Clipped PPO objective, or CISPO.")
    epsilon: float = setting(0.2, "PPO clip range below 1.", gt=0)
    epsilon_high: float | None = setting(None, "PPO clip range above 1; unset: as --epsilon.", gt=0)
    importance_level: Literal["token", "sequence"] = setting("token", "Level of the importance ratio.")
    kl: float = setting(0.0, "Weight of the KL penalty to the base model, where the backend has it.", ge=0)
    scale_rewards: bool = setting(False, "Divide advantages by the group's standard deviation.")
    max_grad_norm: float = setting(1.0, "Gradient clipping.", gt=0)
    lora_rank: int = setting(16, "Rank of the LoRA adapter (CPU and local).", ge=1)
    updates: int = setting(1, "Optimizer updates made of one batch, each on its share of the groups (CPU).", ge=1)
    warm_start: int = setting(
        0, "First steps that only imitate the replies judged above their group's mean (CPU); 0: none.", ge=0
    )
    entropy_bonus: float = setting(
        0.0, "Weight of the entropy of each reply's first token, against early collapse (CPU).", ge=0
    )
    foreign: Literal["positive", "all", "none"] = setting(
        "positive", "Tokens another model wrote: learn only from good ones, all, or none."
    )
    max_staleness: int = setting(
        4, "Batches made with a policy more steps old than this are re-scored or dropped.", ge=0
    )
    stop_on: Names = setting(
        ("entropy<0.01", "kl>5"),
        "Stop a collapsing run when a step's metric crosses a threshold, e.g. entropy<0.01,kl>5.",
    )


class MarketSettings(Section):
    """Simulated market: how hard it is, and how its agents play."""

    luck: float = setting(0.2, "0: the news tells everything; 1: prices are pure noise.", ge=0, le=1)
    agents: int = setting(8, "Agents in a window.", ge=2)
    decisions: int = setting(1, "Decision steps of an agent in a window.", ge=1)
    stage: Literal["one", "several"] = setting(
        "one", "One ticker with a clear headline a decision; or several tickers and a prediction market."
    )
    temperature: float = setting(
        1.0,
        "Temperature of agents that ask a model; at 1 the logged log-probabilities are those of the sampling.",
        ge=0,
    )
    explore: Literal["temperature", "answers"] = setting(
        "temperature",
        "How agents with a model explore: at temperature 1 if theirs is lower, or by taking any answer offered.",
    )


class WorldSettings(MarketSettings):
    """Simulated market (used when there is no DATABASE_URL)."""

    # Measured: without answers of both directions on purpose, one seed of two never learnt the direction of the news.
    explore: Literal["temperature", "answers"] = setting(
        "answers",
        "How agents with a model explore: at temperature 1 if theirs is lower, or by taking any answer offered.",
    )

    world_seed: int = setting(7, "Seed of the simulated market.")


class EvaluationSettings(Section):
    """Evaluation."""

    eval_judge: Literal["auto", "outcome", "llm"] = setting(
        "auto", "Judge of the evaluation: outcome, llm, or auto (another than the training judge when there are two)."
    )
    eval_judge_model: str | None = setting(None, "Model of the evaluation judge.", env="EVAL_JUDGE_MODEL")
    eval_judge_base_url: str | None = setting(
        None, "Endpoint of the evaluation judge; unset: the judge's.", env="EVAL_JUDGE_BASE_URL"
    )
    eval_judge_api_key: SecretStr | None = setting(
        None, "Key of the evaluation judge; unset: the judge's.", env="EVAL_JUDGE_API_KEY"
    )
    eval_windows: int = setting(40, "Most held-out windows to evaluate on.", ge=1)
    eval_lookback: Duration = setting("28d", "How far back held-out windows are read: they never wear out.")
    eval_points: int = setting(2, "Most different decision points of a held-out window.", ge=1)
    eval_samples: int = setting(4, "Replies of each policy at each decision point.", ge=1)


class GateSettings(Section):
    """Gate."""

    min_gain: float = setting(0.0, "Promote only if the score gain's interval lies above this.")
    max_error_rate: float = setting(0.25, "Guard: largest error rate of a promoted model.", ge=0, le=1)
    max_safety_blocks: float = setting(0.1, "Guard: largest share of actions stopped by the safety guard.", ge=0, le=1)
    max_length_ratio: float = setting(1.5, "Guard: replies at most this many times as long as the incumbent's.", gt=0)
    max_kl: float = setting(2.0, "Guard: largest mean KL per token from the base model.", gt=0)


class AddressSettings(Section):
    """Promotion."""

    serve_url: str = setting("http://127.0.0.1:8808/v1", "Base URL that is published for CPU checkpoints.")
    wandb_base_url: str | None = setting(
        None, "Endpoint of the serverless training API, for a proxy or a test.", env="WANDB_TRAINING_BASE_URL"
    )


class PromotionSettings(AddressSettings):
    """Promotion."""

    canary: float | None = setting(
        None, "Promote to this share of the agents first; they say who they are as `user` of a request.", gt=0, lt=1
    )


class RunSettings(Section):
    """This run."""

    dry_run: bool = setting(
        False, "Stop before anything is paid for; print windows, groups, tokens and cost.", flag_only=True
    )
    resume: bool = setting(True, "Take up an interrupted run of this model.")
    iterations: int = setting(7, "Simulated market only: days that are played, judged and trained on.", ge=1)
    windows_per_iteration: int = setting(18, "Simulated market only: hours in such a day.", ge=1, le=MOST_HOURS)
    require_certified: bool = setting(False, "Refuse to train on a judge without a passing certificate.")
    promote: bool = setting(True, "Promote the checkpoint if the gate says so.")
    keep_checkpoints: int = setting(
        20, "Newest checkpoints that stay on this disk, beside all that agents ever used; 0: all of them.", ge=0
    )
    simulate: Literal["auto", "on", "off"] = setting(
        "auto", "Play the simulated market before each iteration; auto: only on the embedded database."
    )


class TrainSettings(
    CommonSettings,
    OutputSettings,
    DatabaseSettings,
    ReadinessSettings,
    GroupSettings,
    JudgeSettings,
    JudgeFailureSettings,
    BackendSettings,
    TrainingSettings,
    EvaluationSettings,
    GateSettings,
    PromotionSettings,
    WorldSettings,
    RunSettings,
):
    """train_mmo."""

    @model_validator(mode="after")
    def _judge_is_complete(self) -> Self:
        if self.judge == "llm" and not self.judge_model:
            raise ValueError("--judge llm needs JUDGE_MODEL: name the model that judges")
        return self


def judge_key(settings: JudgeCallSettings) -> str:
    """The key to call the judge with. ConfigurationError if there is none and the endpoint is OpenAI's."""
    for secret in (settings.judge_api_key, settings.openai_api_key):
        if secret is not None and secret.get_secret_value():
            return secret.get_secret_value()
    if settings.judge_base_url is None:
        raise ConfigurationError("JUDGE_API_KEY is not set: the judge at OpenAI needs a key.")
    return "none"


def moment_of(until: str | None) -> datetime:
    """``--until`` as an aware moment; now where it is not given."""
    if until is None:
        return datetime.now(UTC)
    try:
        moment = datetime.fromisoformat(until)
        if not 1000 < moment.year < 2999:  # as window ids have it: far from where the calendar ends
            raise ValueError
    except ValueError:
        raise ConfigurationError(f"--until: write a moment as 2026-11-02T12:00 in UTC (got {until!r}).") from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def window_rules(
    settings: WindowSettings, *, purpose: Literal["training", "evaluation"] = "training", now: datetime | None = None
) -> Rules:
    """The settings as the rules that reading and checking go by. Without ``now``: ``--until``, or the wall clock."""
    return Rules(
        min_agents=settings.min_agents,
        min_actions=settings.min_actions,
        max_bytes=int(settings.max_trajectory_mb * 1_000_000),
        held_out_share=settings.held_out_share,
        allow_partial_outcomes=settings.allow_partial_outcomes,
        now=now or moment_of(settings.until),
        purpose=purpose,
        lookback=settings.lookback,
    )


class EvaluateSettings(
    CommonSettings,
    OutputSettings,
    DatabaseSettings,
    WindowSettings,
    JudgeSettings,
    JudgeFailureSettings,
    ModelSettings,
    WandbSettings,
    ChoiceSettings,
    EvaluationSettings,
    GateSettings,
    AddressSettings,
):
    """evaluate."""

    candidate: str | None = setting(
        None,
        "Checkpoint to evaluate, e.g. hindsight@step3 or 3; unset: the newest.",
        positional=True,
    )
    incumbent: str | None = setting(
        None,
        "Checkpoint to compare with; unset: the promoted one, or the base model (step 0).",
        positional=True,
    )


def judged_by(settings: TrainSettings | EvaluateSettings) -> JudgeSettings:
    """The settings with the evaluation's judge in the place of the training's.

    ``auto`` takes the second model where one is configured: a model that was trained to please one judge should
    convince another. Otherwise it is the training judge.
    """
    choice, model = settings.eval_judge, settings.eval_judge_model
    if choice == "auto" and model is None:
        return settings
    if choice == "outcome":
        return settings.model_copy(update={"judge": "outcome"})
    if not (model or settings.judge_model):
        raise ConfigurationError("--eval-judge llm needs EVAL_JUDGE_MODEL: name the model that judges the evaluation.")
    changed: dict[str, object] = {"judge": "llm", "judge_model": model or settings.judge_model}
    if settings.eval_judge_base_url is not None:
        changed["judge_base_url"] = settings.eval_judge_base_url
    if settings.eval_judge_api_key is not None:
        changed["judge_api_key"] = settings.eval_judge_api_key
    return settings.model_copy(update=changed)
