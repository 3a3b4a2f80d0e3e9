"""Turns a batch of verdicts into ART groups with rewards, and gives every member without a training signal a reason.

ART silently drops groups without spread, single members and members exactly at the mean; here each of them is counted
before ART sees the rest. A member that makes conversion, scoring or the step fail is counted too (``row_fault``); like
every member that is not trained, it stays in its group as a plain turn, since its score belongs to the group's mean.

A backend whose policy is not in this process cannot score replies that were logged without log-probabilities. ART's
trainers can compute those of a whole batch with the current policy before they train (``precalculate_logprobs``),
which is the same as scoring. So such a reply only gets its tokens, with a placeholder that marks them as trained, and
``train`` turns that option on whenever a batch contains such tokens. The price: logged log-probabilities in the same
batch are recomputed as well.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, pstdev
from typing import TYPE_CHECKING

from data_bridge.art_converter import (
    MAX_TOKENS,
    UNTRAINED,
    ConversionRules,
    Converted,
    RewardedTrajectory,
    Scored,
    Scorer,
    ScoreRequest,
    TokenCounts,
    convert_group,
    untrained,
)
from data_bridge.errors import BackendError
from data_bridge.quality import Exclusion, Reason, exclusion_of
from trainer.config.training import ObjectiveSettings, TraineeSettings
from trainer.faults import RowFaults, bisected, control_row, described, may_be_a_rows
from trainer.train.credit import beside_the_game, credits_of
from trainer.train.selection import advantages, spread
from trainer.types import MIN_GROUP, Batch, JudgedGroup, PreparedBatch

if TYPE_CHECKING:
    import art
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

_PLACEHOLDER = 0.0
_ROUNDING = 1e-9
"""A credit smaller than this is a rounding error, and ART scales up whatever a batch consists of."""


async def prepare(batch: Batch, trainee: TraineeSettings, scorer: Scorer | None = None) -> PreparedBatch:
    """``batch`` for ``backend.train``."""
    settings = trainee.training
    rules = ConversionRules(
        trainee=batch.model,
        policy_step=batch.policy_step,
        purposes=trainee.purposes,
        foreign=settings.foreign,
        drawn=trainee.drawn,
        max_staleness=settings.max_staleness,
    )
    invalid = (one for judged in batch.groups for one in beside_the_game(judged))
    known = {one.trajectory_id: exclusion_of(one, Reason.INVALID) for one in invalid}
    known |= {exclusion.trajectory_id: exclusion for exclusion in batch.untrained}
    parts = [
        await _prepared_group(judged, rewards, rules, scorer, trainee.min_spread, known)
        for judged, rewards in zip(batch.groups, credits_of(batch.groups), strict=True)
    ]
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
    judged: JudgedGroup,
    rewards: Sequence[float],
    rules: ConversionRules,
    scorer: Scorer | None,
    min_spread: float,
    known: Mapping[str, Exclusion],
) -> _Part:
    import art

    if len(rewards) < MIN_GROUP:
        return _Part(None, _excluded(judged, Reason.NO_COMPARABLE_PEER, "alone in its group"))
    apart = spread(judged.scores)
    if apart == 0 or apart < min_spread:
        return _Part(None, _excluded(judged, Reason.NO_SPREAD, f"best and worst differ by {apart:.3f}"))
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


# Scoring left to the trainer


class NoTokenizer(BackendError):
    """The tokenizer of the trained model is not available on this machine."""


class TokenisingScorer:
    """A ``Scorer`` that leaves the scoring to the trainer. It loads the tokenizer when the first reply needs it."""

    def __init__(self, base_model: str) -> None:
        self._base_model = base_model
        self._tokenizer: PreTrainedTokenizerBase | NoTokenizer | None = None

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Scored | None]:
        tokenizer = self._loaded()
        return [_tokenised(tokenizer, request) for request in requests]

    def fault_of_tokens(self, groups: Sequence[art.TrajectoryGroup]) -> BaseException | None:
        """What ART raises when it makes tokens of ``groups``, as it does before it trains them."""
        from art.preprocessing.tokenize import tokenize_trajectory_groups

        try:
            options: dict[str, bool] = {"allow_training_without_logprobs": False, "scale_rewards": False}
            list(tokenize_trajectory_groups(self._loaded(), list(groups), **options))
        except Exception as error:
            return error if may_be_a_rows(error) else None
        return None

    def _loaded(self) -> PreTrainedTokenizerBase:
        if self._tokenizer is None:
            from transformers import AutoTokenizer

            try:
                self._tokenizer = AutoTokenizer.from_pretrained(self._base_model)
            except (OSError, ValueError, KeyError, TypeError) as error:
                self._tokenizer = NoTokenizer(self._base_model)
                raise self._tokenizer from error
        if isinstance(self._tokenizer, NoTokenizer):
            raise self._tokenizer
        return self._tokenizer


def _tokenised(tokenizer: PreTrainedTokenizerBase, request: ScoreRequest) -> Scored | None:
    """The tokens of one reply; None if they do not fit or the chat template does not take its prompt."""
    from trainer.inference.base_model import prompt_tokens

    end = tokenizer.eos_token_id
    reply = request.tokens(tokenizer, end=end, ends={end, tokenizer.pad_token_id})
    if reply is None or not reply.token_ids:
        return reply
    try:
        prompt = prompt_tokens(tokenizer, request.messages)
    except Exception:  # a chat template is a program of its own and raises what it likes: its row's fault
        return None
    if len(prompt) + len(reply.token_ids) > MAX_TOKENS:
        return None
    return reply if reply.logprobs else replace(reply, logprobs=(_PLACEHOLDER,) * len(reply.token_ids))


async def prepare_deferred(batch: Batch, trainee: TraineeSettings, scorer: TokenisingScorer) -> PreparedBatch:
    """``batch`` for a trainer that scores.

    Without a tokenizer, replies that need scoring are left out and counted, and logged tokens are taken for the
    reply's: whether they say it cannot be told here.
    """
    try:
        return await prepare(batch, trainee, scorer)
    except NoTokenizer as error:
        logger.warning(
            "The tokenizer of %s cannot be loaded: replies without log-probabilities are left out, and logged tokens "
            "are not compared with their text.",
            error.args[0],
        )
        return await prepare(batch, trainee)


def needs_scoring(prepared: PreparedBatch) -> bool:
    """Whether the trainer must compute log-probabilities before it trains this batch."""
    return prepared.metrics.get("share_rescored", 0.0) > 0


# Before anything is sent


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
