"""ART's names of what a step reported, as the names that our thresholds, views and tables use."""

from __future__ import annotations

from collections.abc import Mapping

_OURS = {
    "loss/train": "loss",
    "loss/entropy": "entropy",
    "loss/kl_div": "kl",
    "loss/kl_policy_ref": "kl",
    "loss/grad_norm": "grad_norm",
    "loss/learning_rate": "learning_rate",
    "time/step_trainer_s": "seconds",
}


def our_names(metrics: Mapping[str, float]) -> dict[str, float]:
    """``metrics`` with the names we know replaced; anything else keeps ART's name."""
    return {_OURS.get(name, name): float(value) for name, value in metrics.items()}
