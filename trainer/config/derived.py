"""Values derived from settings: the rules for reading, the time, the evaluation's judge and keys, pattern feedback."""

from __future__ import annotations

from datetime import datetime

from data_bridge.errors import ConfigurationError
from data_bridge.quality import Rules
from data_bridge.worlds.load import load_world
from trainer.config.sections import EvaluationSecrets, JudgeSecrets, JudgeSettings, WindowSettings, moment_of
from trainer.config.training import EvaluationSettings, RunSettings, TrainingSettings


def judge_key(secrets: JudgeSecrets, base_url: str | None) -> str:
    """The key to call the judge with. ConfigurationError if there is none and the endpoint is OpenAI's."""
    for secret in (secrets.judge_api_key, secrets.openai_api_key):
        if secret is not None and secret.get_secret_value():
            return secret.get_secret_value()
    if base_url is None:
        raise ConfigurationError("JUDGE_API_KEY is not set: the judge at OpenAI needs a key.")
    return "none"


def window_rules(settings: WindowSettings, *, now: datetime | None = None) -> Rules:
    """The rules for reading and checking, from the settings. ``now`` defaults to ``--until``, else to the clock."""
    return Rules(
        min_agents=settings.min_agents,
        min_actions=settings.min_actions,
        max_bytes=int(settings.max_trajectory_mb * 1_000_000),
        allow_partial_outcomes=settings.allow_partial_outcomes,
        now=now or moment_of(settings.until),
        lookback=settings.lookback,
        world=load_world(settings.world),
        facts_view=settings.facts_view,
    )


def judged_by(judge: JudgeSettings, evaluation: EvaluationSettings) -> JudgeSettings:
    """The evaluation's judge.

    ``auto`` uses the second model if one is configured: a model that was trained on one judge's scores should also
    convince another. Otherwise it is the training judge. It judges in all orders: what is saved on a comparison that
    decides about a release costs certainty there.
    """
    judge = judge.model_copy(update={"judge_order_rule": "all"})
    choice, model = evaluation.eval_judge, evaluation.eval_judge_model
    if choice == "auto" and model is None:
        return judge
    if choice in ("outcome", "reward"):
        return judge.model_copy(update={"judge": choice, "judge_passes": 1})
    if not (model or judge.judge_model):
        raise ConfigurationError("--eval-judge llm needs EVAL_JUDGE_MODEL: name the model that judges the evaluation.")
    changed: dict[str, object] = {"judge": "llm", "judge_model": model or judge.judge_model}
    if evaluation.eval_judge_base_url is not None:
        changed["judge_base_url"] = evaluation.eval_judge_base_url
    return judge.model_copy(update=changed)


def keys_of(evaluation: EvaluationSettings, secrets: EvaluationSecrets) -> JudgeSecrets:
    """The keys of the evaluation's judge."""
    second = evaluation.eval_judge not in ("outcome", "reward") and (
        evaluation.eval_judge == "llm" or evaluation.eval_judge_model is not None
    )
    key = secrets.eval_judge_api_key if second and secrets.eval_judge_api_key is not None else secrets.judge_api_key
    return JudgeSecrets(judge_api_key=key, openai_api_key=secrets.openai_api_key)


def feeds_patterns_back(training: TrainingSettings, run: RunSettings) -> bool:
    """Whether error patterns give weight, by ``--pattern-feedback``."""
    chosen = training.pattern_feedback
    return chosen == "on" or (chosen == "auto" and (training.replay == "prioritised" or run.curriculum == "auto"))


def pattern_weight(training: TrainingSettings, run: RunSettings) -> float:
    """Most that a group counts in a step by error patterns; 1 where they change no step.

    ``--scale-rewards`` divides every group by its own deviation, and a group's weight with it.
    """
    return training.pattern_weight if feeds_patterns_back(training, run) and not training.scale_rewards else 1.0
