"""A batch of verdicts as ART groups with rewards, and every member that teaches nothing with its reason.

ART drops groups without spread, single members and members exactly at the mean without a word; here each
of them is counted before ART sees the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, pstdev
from typing import TYPE_CHECKING

from data_bridge.art_converter import (
    ConversionRules,
    Converted,
    RewardedTrajectory,
    Scorer,
    TokenCounts,
    convert_group,
)
from data_bridge.quality import Exclusion, Reason
from trainer.config.sections import TrainingSettings
from trainer.train.backends.base import PreparedBatch
from trainer.types import Batch, JudgedGroup

if TYPE_CHECKING:
    import art


def advantages(rewards: Sequence[float], *, scale: bool = False) -> list[float]:
    """GRPO's advantages as ART computes them: reward minus the group's mean, divided by its spread if asked."""
    mean = sum(rewards) / len(rewards)
    spread = pstdev(rewards) + 1e-6 if scale else 1.0
    return [(reward - mean) / spread for reward in rewards]


def rules_of(batch: Batch, settings: TrainingSettings) -> ConversionRules:
    return ConversionRules(
        trainee=batch.model,
        policy_step=batch.policy_step,
        purposes=settings.purposes,
        foreign=settings.foreign,
        max_staleness=settings.max_staleness,
    )


async def prepare(
    batch: Batch, settings: TrainingSettings, *, scorer: Scorer | None = None, min_spread: float = 0.0
) -> PreparedBatch:
    """``batch`` for ``backend.train``. ``min_spread`` is the run's bound on best minus worst score of a group."""
    rules = rules_of(batch, settings)
    parts = [await _prepared_group(judged, rules, scorer, min_spread) for judged in batch.groups]
    groups = [part.group for part in parts if part.group is not None]
    counts = sum((part.counts for part in parts), TokenCounts())
    return PreparedBatch(
        batch=batch,
        groups=groups,
        exclusions=tuple(exclusion for part in parts for exclusion in part.exclusions),
        trainable_tokens=counts.trainable,
        metrics=_metrics(batch, groups, counts, settings),
    )


@dataclass(frozen=True, slots=True)
class _Part:
    group: art.TrajectoryGroup | None
    exclusions: tuple[Exclusion, ...]
    counts: TokenCounts = field(default_factory=TokenCounts)


async def _prepared_group(
    judged: JudgedGroup, rules: ConversionRules, scorer: Scorer | None, min_spread: float
) -> _Part:
    import art

    rewards = [verdict.score for verdict in judged.verdicts]
    if len(rewards) < 2:
        return _Part(None, _excluded(judged, Reason.NO_COMPARABLE_PEER, "alone in its group"))
    spread = max(rewards) - min(rewards)
    if spread == 0 or spread < min_spread:
        return _Part(None, _excluded(judged, Reason.NO_SPREAD, f"best and worst differ by {spread:.3f}"))
    signs = advantages(rewards)
    members = [
        RewardedTrajectory(trajectory, reward, is_above_mean=sign > 0)
        for trajectory, reward, sign in zip(judged.group.trajectories, rewards, signs, strict=True)
    ]
    converted = [
        _without_signal(one) if sign == 0 else one
        for one, sign in zip(await convert_group(members, rules, scorer), signs, strict=True)
    ]
    exclusions = tuple(
        _exclusion(member, one.reason, one.detail)
        for member, one in zip(members, converted, strict=True)
        if one.reason is not None
    )
    if len(exclusions) == len(members):
        return _Part(None, exclusions)
    group = art.TrajectoryGroup(
        [one.trajectory for one in converted],
        metadata={"group_id": judged.group.group_id, "window_id": judged.group.window_id},
    )
    return _Part(group, exclusions, sum((one.counts for one in converted), TokenCounts()))


def _without_signal(converted: Converted) -> Converted:
    """A member exactly at the mean has advantage 0: ART leaves it out, and so it is counted as left out."""
    if converted.reason is not None:
        return converted
    return Converted(converted.trajectory, TokenCounts(), Reason.NO_SPREAD, "its score is exactly the group's mean")


def _excluded(judged: JudgedGroup, reason: Reason, detail: str) -> tuple[Exclusion, ...]:
    return tuple(
        Exclusion(trajectory.trajectory_id, trajectory.agent_id, trajectory.window_id, reason, detail)
        for trajectory in judged.group.trajectories
    )


def _exclusion(member: RewardedTrajectory, reason: Reason, detail: str) -> Exclusion:
    trajectory = member.trajectory
    return Exclusion(trajectory.trajectory_id, trajectory.agent_id, trajectory.window_id, reason, detail)


def _metrics(
    batch: Batch, groups: Sequence[art.TrajectoryGroup], counts: TokenCounts, settings: TrainingSettings
) -> dict[str, float]:
    rewards = [verdict.score for judged in batch.groups for verdict in judged.verdicts]
    spreads = [pstdev([verdict.score for verdict in judged.verdicts]) for judged in batch.groups if judged.verdicts]
    metrics = {
        "groups": float(len(batch.groups)),
        "groups_trained": float(len(groups)),
        "reward": fmean(rewards) if rewards else 0.0,
        "reward_std": pstdev(rewards) if rewards else 0.0,
        "reward_spread": fmean(spreads) if spreads else 0.0,
        "share_foreign": _share(counts.foreign, counts.trainable),
        "share_rescored": _share(counts.rescored, counts.trainable),
        "share_off_temperature": _share(counts.off_temperature, counts.trainable),
    }
    of_groups = [
        advantage
        for group in groups
        for advantage in advantages([trajectory.reward for trajectory in group], scale=settings.scale_rewards)
    ]
    if of_groups:
        metrics |= {
            "advantage_min": min(of_groups),
            "advantage_max": max(of_groups),
            "advantage_std": pstdev(of_groups),
            "share_advantage_positive": _share(sum(one > 0 for one in of_groups), len(of_groups)),
        }
    return metrics


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
