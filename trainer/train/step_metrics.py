"""What is measured of one gradient step, beside what the backend itself reports. Pure."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any

from data_bridge.models import author_of
from trainer.types import JudgedGroup, StepResult

HISTOGRAM_EDGES = (-0.5, -0.25, -0.1, -0.02, 0.02, 0.1, 0.25, 0.5)
"""Between these the advantages are counted; the first and the last bin are open."""


def advantages_of(scores: Sequence[float], *, scale: bool) -> list[float]:
    """Score minus the group's mean, divided by its population standard deviation if ``scale``: ART's definition."""
    mean = fmean(scores)
    centred = [score - mean for score in scores]
    deviation = pstdev(scores)
    return [one / (deviation + 1e-6) for one in centred] if scale else centred


def histogram(values: Sequence[float]) -> dict[str, list[float]]:
    counts = [0] * (len(HISTOGRAM_EDGES) + 1)
    for value in values:
        counts[bisect.bisect_right(HISTOGRAM_EDGES, value)] += 1
    return {"edges": list(HISTOGRAM_EDGES), "counts": [float(count) for count in counts]}


def of_batch(groups: Sequence[JudgedGroup], trainee: str, policy_step: int, *, scale: bool) -> dict[str, Any]:
    """Rewards, advantages, how well the judge agreed with itself, and how old the policy was that played."""
    scores = [[verdict.score for verdict in judged.verdicts] for judged in groups]
    flat = [score for group in scores for score in group]
    advantages = [one for group in scores for one in advantages_of(group, scale=scale)]
    ages = sampling_ages(groups, trainee, policy_step)
    return {
        "groups": len(groups),
        "trajectories": len(flat),
        "reward": fmean(flat),
        "reward_std": pstdev(flat),
        "reward_spread": fmean(max(group) - min(group) for group in scores),
        "advantage_std": pstdev(advantages),
        "advantage_histogram": histogram(advantages),
        "judge_order_spread": fmean(2 * verdict.uncertainty for judged in groups for verdict in judged.verdicts),
        "sampled_steps_ago": fmean(ages) if ages else None,
    }


def of_result(result: StepResult, known: Mapping[str, Any]) -> dict[str, Any]:
    """What the backend reports of the step, and what was ``known`` of its batch before."""
    return {
        **result.metrics,
        **known,
        "step": result.checkpoint.step,
        "trainable_tokens": result.trainable_tokens,
    }


def sampling_ages(groups: Sequence[JudgedGroup], trainee: str, policy_step: int) -> list[int]:
    """How many steps before ``policy_step`` the ``trainee`` wrote each logged reply, where the log says so."""
    authors = (
        author_of(call)
        for judged in groups
        for trajectory in judged.group.trajectories
        for call in trajectory.llm_calls
    )
    return [policy_step - one.step for one in authors if one.model == trainee and one.step is not None]


def flat(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The plain numbers of ``metrics``: for views, thresholds and tracking."""
    return {key: float(value) for key, value in metrics.items() if isinstance(value, int | float)}
