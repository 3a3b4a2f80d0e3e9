"""``--stop-on`` and ``--undo-on``: thresholds on a step's metrics that stop a run, or undo a collapse. Pure."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from data_bridge.errors import BackendError, ConfigurationError
from trainer.types import Checkpoint

METRICS = (
    "advantage_std", "agreement", "answer_share", "clip_share", "cost_usd", "effective_sample_size", "entropy",
    "first_token_entropy", "grad_norm", "judge_order_spread", "kl", "kl_behaviour", "learning_rate", "loss", "ratio",
    "ratio_max", "reward", "reward_spread", "reward_std", "sampled_steps_ago", "seconds", "staleness",
    "tokens_per_second", "trainable_tokens",
)  # fmt: skip
"""The metrics that a step may report under our names; a name with a slash is ART's own."""


_RULE = re.compile(r"(?P<metric>[A-Za-z_][\w/.-]*)\s*(?P<operator>[<>])\s*(?P<limit>[-+]?[\d.]+(?:[eE][-+]?\d+)?)")


@dataclass(frozen=True, slots=True)
class Threshold:
    """Stop when ``metric`` is on the wrong side of ``limit``; NaN counts as the wrong side."""

    metric: str
    operator: str
    limit: float

    def crossed_by(self, value: float) -> bool:
        if math.isnan(value):
            return True
        return value < self.limit if self.operator == "<" else value > self.limit

    def __str__(self) -> str:
        return f"{self.metric}{self.operator}{self.limit:g}"


def parse_thresholds(rules: Sequence[str], flag: str = "--stop-on") -> tuple[Threshold, ...]:
    """Thresholds from rules such as ``entropy<0.01``; ``off`` means none. ConfigurationError for anything else."""
    parsed = []
    for rule in rules:
        if rule.strip().lower() == "off":
            continue
        match = _RULE.fullmatch(rule.strip())
        try:
            limit = float(match["limit"]) if match else math.nan
        except ValueError:
            limit = math.nan
        if match is None or math.isnan(limit):
            raise ConfigurationError(
                f"{flag}: write a metric, < or >, and a number, as in entropy<0.01 (got {rule!r})."
            )
        if match["metric"] not in METRICS and "/" not in match["metric"]:
            close = difflib.get_close_matches(match["metric"], METRICS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"the metrics are {', '.join(METRICS)}."
            raise ConfigurationError(f"{flag}: no step reports {match['metric']!r}: {hint}")
        parsed.append(Threshold(match["metric"], match["operator"], limit))
    return tuple(parsed)


class Collapsed(BackendError):
    """A step crossed a threshold of ``--stop-on``, or the model collapsed again and again."""


def stop_collapse(thresholds: Sequence[Threshold], metrics: Mapping[str, float], checkpoint: Checkpoint) -> None:
    """Collapsed, with the way back, if the step that produced ``checkpoint`` crossed a threshold."""
    crossed = first_crossed(thresholds, metrics)
    if crossed is not None:
        raise Collapsed(
            f"Step {checkpoint.step} crossed --stop-on {crossed} ({crossed.metric} is {metrics[crossed.metric]:.4g}): "
            f"the run is collapsing and was stopped; {_way_back(checkpoint)} with a lower --learning-rate."
        )


def _way_back(checkpoint: Checkpoint) -> str:
    """Training continues from the newest checkpoint; how to make it continue from an earlier one."""
    if "://" in checkpoint.location:
        return "start again with another --model,"
    return f"delete {checkpoint.location} to continue from the step before it,"


def first_crossed(thresholds: Sequence[Threshold], metrics: Mapping[str, object]) -> Threshold | None:
    """The first threshold that this step crossed. A metric that the backend does not report crosses nothing."""
    for threshold in thresholds:
        value = metrics.get(threshold.metric)
        if isinstance(value, int | float) and threshold.crossed_by(float(value)):
            return threshold
    return None
