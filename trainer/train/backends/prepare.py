"""Turns a batch of verdicts into ART groups with rewards, and gives every member without a training signal a reason.

ART silently drops groups without spread, single members and members exactly at the mean; here each of them is counted
before ART sees the rest. A member that makes conversion, scoring or the step fail is counted too (``row_fault``); like
every member that is not trained, it stays in its group as a plain turn, since its score belongs to the group's mean.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, pstdev
from typing import TYPE_CHECKING

from data_bridge.art_converter import (
    UNTRAINED,
    ConversionRules,
    Converted,
    RewardedTrajectory,
    TokenCounts,
    convert_group,
    untrained,
)
from data_bridge.errors import BackendError
from data_bridge.quality import Exclusion, Reason, exclusion_of
from data_bridge.scoring import Scorer
from trainer.config.training import ObjectiveSettings, TraineeSettings
from trainer.faults import RowFaults, bisected, control_row, described, may_be_a_rows
from trainer.rewards import RewardHistory
from trainer.train.credit import RULE, beside_the_game, history_of
from trainer.train.selection import advantages, pooled_trust, trust, why_no_signal
from trainer.train.step_credit import as_whole, by_decision
from trainer.types import MIN_GROUP, Batch, JudgedGroup, PreparedBatch

if TYPE_CHECKING:
    import art

USUAL = 0.25
"""The mean size of an advantage that is a whole step on the absolute scale: of scores half of which are 0.5 higher."""
_ROUNDING = 1e-9
"""A credit smaller than this is a rounding error, and ART scales up whatever a batch consists of."""


async def prepare(
    batch: Batch, trainee: TraineeSettings, scorer: Scorer | None = None, base_model: str | None = None
) -> PreparedBatch:
    """``batch`` for ``backend.train``. ``base_model`` is what the backend trains, if --base-model does not say."""
    if not trainee.step_credit:
        return await _prepared(batch, trainee, scorer, base_model)
    parted = by_decision(batch, trainee.training.step_discount, trainee.training.potential)
    return as_whole(await _prepared(parted.batch, trainee, scorer, base_model), batch, parted.decisions)


async def _prepared(
    batch: Batch, trainee: TraineeSettings, scorer: Scorer | None, base_model: str | None
) -> PreparedBatch:
    settings = trainee.training
    rules = ConversionRules(
        trainee=batch.model,
        policy_step=batch.policy_step,
        purposes=trainee.purposes,
        foreign=settings.foreign,
        drawn=trainee.drawn,
        max_staleness=settings.max_staleness,
        base_names=(base_model or trainee.model.base_model, *settings.base_names),
        served=batch.served,
    )
    invalid = (one for judged in batch.groups for one in beside_the_game(judged))
    known = {one.trajectory_id: exclusion_of(one, Reason.INVALID) for one in invalid}
    known |= {exclusion.trajectory_id: exclusion for exclusion in batch.untrained}
    discount = settings.step_discount if batch.potentials else 0.0
    rule = replace(RULE, scale=settings.scale_rewards, discount=discount, most_emphasis=batch.most_emphasis)
    history = history_of(batch.groups, rule, batch.baselines, batch.potentials, batch.emphasis)
    worth = pooled_trust(batch.groups)
    parts = [
        await _prepared_group(judged, [one.credit for one in rewards], rules, scorer, trainee.min_spread, known, worth)
        for judged, rewards in zip(batch.groups, history, strict=True)
    ]
    groups = [part.group for part in parts if part.group is not None]
    # ART scales the advantages of every batch to one size, and Adam its gradient: only the learning rate can say what
    # a batch is worth.
    pace = batch.share * worth * _size_of(groups, settings)
    counts = sum((part.counts for part in parts), TokenCounts())
    return PreparedBatch(
        batch=batch,
        groups=groups,
        exclusions=tuple(exclusion for part in parts for exclusion in part.exclusions),
        trainable_tokens=counts.trainable,
        metrics=_metrics(batch, groups, counts, settings) | {"pace": pace},
        pace=pace,
        history=RewardHistory(rule, tuple(one for rewards in history for one in rewards)),
    )


def _size_of(groups: Sequence[art.TrajectoryGroup], settings: ObjectiveSettings) -> float:
    """The mean size of the advantages on the absolute scale; on the batch's own, every step is a whole one."""
    if settings.advantage_scale == "batch" or not groups:
        return 1.0
    return min(1.0, fmean(abs(one.reward) for group in groups for one in group.trajectories) / USUAL)


@dataclass(frozen=True, slots=True)
class _Part:
    group: art.TrajectoryGroup | None
    exclusions: tuple[Exclusion, ...]
    counts: TokenCounts = field(default_factory=TokenCounts)


async def _prepared_group(
    judged: JudgedGroup,
    rewards: Sequence[float],
    rules: ConversionRules,
    scorer: Scorer | None,
    min_spread: float,
    known: Mapping[str, Exclusion],
    worth: float,
) -> _Part:
    import art

    if len(rewards) < MIN_GROUP:
        return _Part(None, _excluded(judged, Reason.NO_COMPARABLE_PEER, "alone in its group"))
    missing = why_no_signal(judged.scores, judged.uncertainties, min_spread)
    if missing is None and min(worth, trust(judged.scores, judged.uncertainties)) == 0:
        missing = Reason.WITHIN_NOISE, "its scores, or those of its step, vary no more than the judge's orders"
    if missing is not None:
        return _Part(None, _excluded(judged, *missing))
    signs = advantages(rewards)
    members = [
        RewardedTrajectory(trajectory, reward, is_above_mean=sign > 0)
        for trajectory, reward, sign in zip(judged.group.trajectories, rewards, signs, strict=True)
    ]
    converted = [
        _without_signal(one) if abs(sign) < _ROUNDING else one
        for one, sign in zip(await _convert(members, rules, scorer, known), signs, strict=True)
    ]
    exclusions = tuple(
        exclusion_of(member.trajectory, one.reason, one.detail)
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


async def _convert(
    members: Sequence[RewardedTrajectory],
    rules: ConversionRules,
    scorer: Scorer | None,
    known: Mapping[str, Exclusion],
) -> list[Converted]:
    """``members`` converted together; if that fails, each alone, so that only those at fault are not trained."""
    sound = [member for member in members if member.trajectory.trajectory_id not in known]
    try:
        found = await convert_group(sound, rules, scorer)
    except Exception as error:
        if not may_be_a_rows(error):
            raise
        control = RewardedTrajectory(control_row(rules.trainee, rules.purposes[0]), 1.0, is_above_mean=True)
        await convert_group([control], rules, scorer)  # raises if it is not the rows that are at fault
        found = [await _converted_alone(member, rules, scorer) for member in sound]
    converted = dict(zip((member.trajectory.trajectory_id for member in sound), found, strict=True))
    return [
        converted[name] if (name := member.trajectory.trajectory_id) in converted else _left_out(member, known[name])
        for member in members
    ]


def _left_out(member: RewardedTrajectory, why: Exclusion) -> Converted:
    return untrained(member, why.reason, why.detail)


async def _converted_alone(member: RewardedTrajectory, rules: ConversionRules, scorer: Scorer | None) -> Converted:
    try:
        [converted] = await convert_group([member], rules, scorer)
    except Exception as error:
        if not may_be_a_rows(error):
            raise
        return untrained(member, Reason.ROW_FAULT, described(error, "prepared"))
    return converted


# A step that failed


def rows_at_fault(
    groups: Sequence[art.TrajectoryGroup], fault_of: Callable[[Sequence[art.TrajectoryGroup]], BaseException | None]
) -> RowFaults | None:
    """The rows that make a step on ``groups`` fail, found by halving; None if that is not a row's fault.

    ``fault_of`` tries a step without making it; it is given all groups with only some of their members trained.
    """
    import art

    def only(rows: Sequence[tuple[int, int]]) -> list[art.TrajectoryGroup]:
        kept = set(rows)
        plain = {"messages_and_choices": list(UNTRAINED), "additional_histories": []}
        return [
            art.TrajectoryGroup(
                [
                    one if (place, number) in kept else one.model_copy(update=plain)
                    for number, one in enumerate(group.trajectories)
                ]
            )
            for place, group in enumerate(groups)
            if any(where == place for where, _ in kept)
        ]

    rows = [(place, number) for place, group in enumerate(groups) for number in range(len(group.trajectories))]
    found = bisected(rows, lambda some: fault_of(only(some)))
    names = {
        str(groups[place].trajectories[number].metadata["trajectory_id"]): described(error, "trained")
        for (place, number), error in found
    }
    return RowFaults(names) if names else None


def _without_signal(converted: Converted) -> Converted:
    """A member exactly at the mean has advantage 0. ART drops it, so it is counted as left out."""
    if converted.reason is not None:
        return converted
    return Converted(converted.trajectory, TokenCounts(), Reason.NO_SPREAD, "its score is exactly the group's mean")


def _excluded(judged: JudgedGroup, reason: Reason, detail: str) -> tuple[Exclusion, ...]:
    return tuple(exclusion_of(trajectory, reason, detail) for trajectory in judged.group.trajectories)


def _metrics(
    batch: Batch, groups: Sequence[art.TrajectoryGroup], counts: TokenCounts, settings: ObjectiveSettings
) -> dict[str, float]:
    rewards = [score for judged in batch.groups for score in judged.scores]
    metrics = {
        "groups": float(len(batch.groups)),
        "groups_trained": float(len(groups)),
        "reward": fmean(rewards) if rewards else 0.0,
        "reward_std": pstdev(rewards) if rewards else 0.0,
        "share_foreign": _share(counts.foreign, counts.trainable),
        "share_rescored": _share(counts.rescored, counts.trainable),
        "share_retokenised": _share(counts.retokenised, counts.trainable),
        "share_stale": _share(counts.stale, counts.trainable),
        "share_corrected": _share(counts.corrected, counts.trainable),
        "share_off_temperature": _share(counts.off_temperature, counts.trainable),
        "share_off_top_p": _share(counts.off_top_p, counts.trainable),
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


# Before anything is sent


def why_nothing(prepared: PreparedBatch) -> str:
    reasons = Counter(exclusion.reason.value for exclusion in prepared.exclusions)
    counted = ", ".join(f"{number} {reason}" for reason, number in reasons.most_common()) or "the batch is empty"
    return (
        f"Batch {prepared.batch.batch_id} has no trainable token, so nothing was trained ({counted}): "
        "check --purposes, --foreign and the judge's scores."
    )


def check_trainable(prepared: PreparedBatch) -> None:
    """BackendError, before anything is sent or paid for, if the batch would train nothing or poison the model."""
    batch = prepared.batch
    if prepared.trainable_tokens <= 0 or not prepared.groups:
        raise BackendError(
            f"Batch {batch.batch_id} has no trainable tokens: its exclusions say why; "
            "log token ids and log-probabilities with the recorder, or check --purposes and --foreign."
        )
    for group in prepared.groups:
        for trajectory in group.trajectories:
            if not math.isfinite(trajectory.reward):
                raise BackendError(
                    f"Batch {batch.batch_id} has a reward that is not a number ({trajectory.reward}): "
                    "nothing was sent; judge its groups again."
                )


def check_sendable(prepared: PreparedBatch) -> None:
    """RowFaults if rows cannot be written as JSON. Checked before, so that a failed request is never this."""
    found = rows_at_fault(prepared.groups, _fault_of_writing)
    if found is not None:
        raise found


def _fault_of_writing(groups: Sequence[art.TrajectoryGroup]) -> BaseException | None:
    try:
        for group in groups:
            json.dumps(group.model_dump(mode="json"), allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        return error
    return None
