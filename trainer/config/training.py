"""The settings for training and what follows it: model, backend, training, market, evaluation, gate, promotion."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trainer.config.sections import MAX_HOURS
from trainer.config.settings import Duration, Names, Section, setting


class ModelNameSettings(Section):
    """Model."""

    model: str = setting(
        "hindsight",
        "Name of the trained model: its checkpoints, lock and lineage.",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        common=True,
    )


class BaseModelSettings(Section):
    """Model."""

    base_model: str = setting(
        "smollm2-135m-instruct",
        "The model to train: the embedded one, a local directory, or a hub name; unset, local and serverless "
        "take a Qwen of 7 and 14 billion parameters.",
        common=True,
        by_backend=True,
    )


class EngineSettings(BaseModelSettings):
    """Model."""

    threads: int = setting(0, "CPU threads for the model; 0 takes all cores.", ge=0)


class TrainedModelSettings(ModelNameSettings, BaseModelSettings):
    """Model."""


class ModelSettings(TrainedModelSettings, EngineSettings):
    """A model that runs on this machine."""


class BackendSettings(Section):
    """Backend and run tracking."""

    backend: Literal["auto", "cpu", "local", "serverless"] = setting(
        "auto", "Where to train; auto: serverless with a W&B key, local with a GPU, otherwise the CPU.", common=True
    )
    wandb_project: str = setting("hindsight", "W&B project.", env="WANDB_PROJECT", common=True)
    wandb_entity: str | None = setting(None, "W&B entity; unset: the key's default.", env="WANDB_ENTITY")
    tracking: Literal["auto", "online", "offline", "tensorboard", "off"] = setting(
        "auto",
        "Run tracking: by wandb (auto is online with a key, else off), or as TensorBoard files in the run's folder.",
    )
    remote_deadline: Duration = setting("6h", "Maximum time to follow a remote training job.")


class ChanceSettings(Section):
    """Chance."""

    seed: int = setting(0, "Seed of everything random.", common=True)


class ObjectiveSettings(Section):
    """Training."""

    learning_rate: float = setting(
        7e-4,
        "AdamW learning rate of the LoRA adapter; unset, local and serverless take ART's 5e-6.",
        gt=0,
        common=True,
        by_backend=True,
    )
    loss: Literal["ppo", "cispo"] = setting("ppo", "Clipped PPO objective, or CISPO.")
    epsilon: float = setting(0.2, "PPO clip range below 1.", gt=0, by_backend=True)
    epsilon_high: float | None = setting(None, "PPO clip range above 1; unset: as --epsilon.", gt=0)
    importance_level: Literal["token", "sequence"] = setting("token", "Level of the importance ratio.")
    kl: float = setting(0.0, "Weight of the KL penalty to the base model, where the backend has it.", ge=0)
    step_discount: float = setting(
        0.5, "--step-credit: how much of the scores of later decisions a decision is credited with.", ge=0, le=1
    )
    potential: Literal["off", "equity"] = setting(
        "off",
        "--step-credit: take what a state was worth off the decisions in it, as a potential, which cannot change the "
        "order of policies; equity: the account's gain so far on its balance.",
    )
    scale_rewards: bool = setting(
        False, "Divide advantages by the group's standard deviation: a close decision counts as much as a clear one."
    )
    advantage_scale: Literal["batch", "absolute"] = setting(
        "batch",
        "batch: every step is as large as any other, whatever its scores; absolute: by the size of its advantages.",
    )
    foreign: Literal["positive", "all", "none"] = setting(
        "positive", "Tokens written by another model: learn from good ones only, from all, or from none."
    )
    max_staleness: int = setting(
        4,
        "Tokens sampled more than this many steps ago also count by how much likelier the policy finds them now.",
        ge=0,
    )
    base_names: Names = setting((), "Other names under which agents run the base model: step 0 of the trained one.")


class AdapterSettings(ObjectiveSettings):
    """Training."""

    lora_rank: int = setting(16, "Rank of the LoRA adapter (CPU and local).", ge=1)
    max_grad_norm: float = setting(1.0, "Gradient clipping.", gt=0)
    max_importance: float = setting(
        1.3,
        "Most that a token counts which was sampled more than --max-staleness steps ago; on the CPU one that has moved "
        "so far already is pushed no further.",
        gt=1,
    )


class CpuTrainingSettings(AdapterSettings):
    """Training."""

    updates: int = setting(1, "Optimizer updates per batch, each on its share of the groups (CPU).", ge=1)
    warm_start: int = setting(
        0, "Number of first steps that only imitate replies judged above their group's mean (CPU).", ge=0
    )
    balance_answers: bool = setting(
        True, "After each step, take out a preference for one answer that is the same in every hour (CPU)."
    )
    init_from: str | None = setting(
        None, "Begin a new --model with another's adapter, MODEL@stepN, as its first step (CPU).", metavar="MODEL@stepN"
    )
    token_weights: Literal["reply", "token"] = setting(
        "reply",
        "reply: every reply counts the same, whatever its length; token: every token does, as in Dr. GRPO (CPU).",
    )
    train_workers: int = setting(
        1, "Processes that share a gradient step, each with its copy of the model; they divide --threads (CPU).", ge=1
    )
    weight_decay: float = setting(0.0, "AdamW weight decay (CPU; ART's local trainer has 0.1).", ge=0)
    entropy_bonus: float = setting(
        0.0, "Weight of the entropy of each reply's first token, against early collapse (CPU).", ge=0
    )


class StepLimitSettings(Section):
    """Training."""

    max_steps: int = setting(0, "Maximum number of gradient steps in this run; 0: no limit.", ge=0, common=True)
    stop_on: Names = setting(
        ("entropy<0.01", "kl>5"),
        "Stop a collapsing run when a metric of a step crosses a threshold, e.g. entropy<0.01,kl>5.",
    )
    undo_on: Names = setting(
        ("answer_share>0.95",),
        "Go back to the last step before a metric crossed a threshold, and on with smaller steps (CPU); off: never.",
    )


BaselineName = Literal["off", "agent", "role", "leave-one-out"]


class BaselineSettings(Section):
    """Training."""

    baseline: BaselineName = setting(
        "off",
        "Take what is usual for a member's agent or role off its score: its running mean in what was trained; or, in "
        "the simulated market with the offline judge, what HOLD would have scored in its place.",
    )


class ReplayModeSettings(Section):
    """Training."""

    replay: Literal["off", "uniform", "prioritised"] = setting(
        "off", "Train groups again in the places that groups without signal leave empty: any, or the telling and new."
    )


class ReplayShareSettings(ReplayModeSettings):
    """Training."""

    replay_share: float = setting(0.5, "Maximum share of a step's groups that are replayed.", ge=0, lt=1)


class ReplaySettings(ReplayModeSettings):
    """Training."""

    replay_lag: int = setting(8, "Replay groups that were first trained at most this many steps ago.", ge=0)
    replay_uses: int = setting(3, "Maximum number of times that a group is trained, the first included.", ge=2, le=3)


class PatternSettings(Section):
    """Training."""

    pattern_feedback: Literal["auto", "on", "off"] = setting(
        "auto",
        "Whether significant error patterns of what was trained give the groups and arms that show them more weight: "
        "in a step, in a prioritised replay and in a curriculum; auto: where one of those two is chosen.",
    )
    pattern_weight: float = setting(
        3.0,
        "Most that a group counts in a step that shows an error pattern, where another counts 1; the step is no longer "
        "than without. 1: patterns change no step.",
        ge=1,
        le=10,
    )


class TrainingSettings(
    CpuTrainingSettings, StepLimitSettings, ReplayShareSettings, ReplaySettings, BaselineSettings, PatternSettings
):
    """Training."""

    groups_per_step: int = setting(12, "Groups in one gradient step.", ge=1, common=True)
    remainder: Literal["auto", "scale", "full", "carry"] = setting(
        "auto",
        "Groups left over at the end of a pass: trained at their share of the learning rate, at all of it, or carried "
        "to the next pass; auto: scale, but full in the simulated market.",
    )


@dataclass(frozen=True, slots=True)
class TraineeSettings:
    """What every backend receives: the model, how it learns, and where its files are."""

    home: Path
    project: str
    model: TrainedModelSettings
    training: ObjectiveSettings
    purposes: tuple[str, ...]
    step_credit: bool
    min_spread: float
    drawn: tuple[str, ...]
    """Names under which our own exploration answers; see ``ConversionRules``."""


@dataclass(frozen=True, slots=True)
class LocalTrainee(TraineeSettings):
    """For a backend that creates the adapter itself."""

    training: AdapterSettings


@dataclass(frozen=True, slots=True)
class CpuTrainee(LocalTrainee):
    """For the backend that makes the step itself."""

    training: CpuTrainingSettings
    seed: int
    threads: int


class MarketSettings(Section):
    """Simulated market: how hard it is, and how its agents play."""

    luck: float = setting(
        0.2,
        "Probability that what happens in an hour has nothing to do with the news; half of such hours go against it.",
        ge=0,
        le=1,
    )
    agents: int = setting(8, "Agents in a window.", ge=2)
    decisions: int = setting(1, "Decision steps of an agent in a window.", ge=1)
    stage: Literal["one", "several"] = setting(
        "one",
        "One ticker or errand with its news a decision; or several, with prediction markets or partners.",
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

    # Measured: without forced answers in both directions, one of two seeds never learnt the direction of the news.
    explore: Literal["temperature", "answers"] = setting(
        "answers",
        "How agents with a model explore: at temperature 1 if theirs is lower, or by taking any answer offered.",
    )

    world_seed: int = setting(7, "Seed of the simulated world.")


class EvaluationSettings(Section):
    """Evaluation."""

    eval_judge: Literal["auto", "outcome", "reward", "llm"] = setting(
        "auto",
        "Judge of the evaluation: outcome, reward, llm, or auto (another than the training judge when there are two).",
    )
    eval_judge_model: str | None = setting(None, "Model of the evaluation judge.", env="EVAL_JUDGE_MODEL")
    eval_judge_base_url: str | None = setting(
        None, "Endpoint of the evaluation judge; unset: the judge's.", env="EVAL_JUDGE_BASE_URL"
    )
    eval_lookback: Duration = setting("28d", "How far back evaluation windows are read.")
    eval_points: int = setting(2, "Maximum number of distinct decision points per evaluation window.", ge=1)
    eval_samples: int = setting(4, "Replies of each policy at each decision point.", ge=1)
    eval_questions: int = setting(
        160, "Simulated worlds only: questions with unseen words in the reading test; 0: no reading test.", ge=0
    )


class GateSettings(Section):
    """Gate."""

    min_gain: float = setting(0.0, "Promote only if the interval of the score gain lies above this.", common=True)
    max_error_rate: float = setting(0.25, "Guard: maximum error rate of a promoted model.", ge=0, le=1)
    max_safety_blocks: float = setting(0.1, "Guard: maximum share of actions stopped by the safety guard.", ge=0, le=1)
    max_length_ratio: float = setting(1.5, "Guard: maximum reply length as a multiple of the incumbent's.", gt=0)
    max_kl: float = setting(2.0, "Guard: maximum mean KL per token from the base model.", gt=0)


class AddressSettings(Section):
    """Promotion."""

    serve_url: str = setting("http://127.0.0.1:8808/v1", "Base URL that is published for CPU checkpoints.")
    wandb_base_url: str | None = setting(
        None, "Endpoint of the serverless training API, for a proxy or a test.", env="WANDB_TRAINING_BASE_URL"
    )


class PromotionSettings(AddressSettings):
    """Promotion."""

    canary: float | None = setting(
        None,
        "Promote to this share of the agents first; agents identify themselves by the `user` of a request.",
        gt=0,
        lt=1,
        common=True,
    )


class RunSettings(Section):
    """This run."""

    dry_run: bool = setting(False, "Print windows, groups, tokens and cost; nothing is paid for.", flag_only=True)
    resume: bool = setting(True, "Resume an interrupted run of this model.")
    run_id: str | None = setting(
        None,
        "Id of the run if it is a new one; unset: made from the time.",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        flag_only=True,
    )
    iterations: int = setting(6, "Simulated worlds: days that are played and trained on.", ge=1, common=True)
    curriculum: Literal["off", "auto", "uniform"] = setting(
        "off",
        "Which windows come first: in the simulated market the stages and luck up to --stage and --luck, in a log the "
        "windows by how hard they are; auto: near what half of the agents succeed at; uniform: any, for comparison.",
    )
    max_lag: int = setting(
        0,
        "Simulated worlds only: days that play may be ahead of training; 1: the next day is played and judged, by the "
        "checkpoint from before this day's training, while this one is trained.",
        ge=0,
        le=1,
    )
    windows_per_iteration: int = setting(24, "Simulated worlds only: hours in such a day.", ge=1, le=MAX_HOURS)
    require_certified: bool = setting(False, "Refuse to train on a judge without a passing certificate.", common=True)
    promote: bool = setting(True, "Promote the checkpoint if the gate says so.", common=True)
    max_undecided: int = setting(
        3, "Undecided checkpoints in a row after which training starts from what the agents use; 0: never.", ge=0
    )
    hold: bool = setting(
        False, "While the gate is undecided about the newest checkpoint, train nothing: evaluate it on new windows."
    )
    keep_checkpoints: int = setting(
        20, "Number of newest checkpoints to keep on this disk, besides any that agents ever used; 0: keep all.", ge=0
    )
    simulate: Literal["auto", "on", "off"] = setting(
        "auto", "Play the simulated world before each iteration; auto: only on the embedded database."
    )
