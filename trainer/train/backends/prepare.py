"""Turns a batch of verdicts into ART groups with rewards, and gives every member without a training signal a reason.

ART silently drops groups without spread, single members and members exactly at the mean; here each of them is counted
before ART sees the rest.

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
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, pstdev
from typing import TYPE_CHECKING

from data_bridge.art_converter import (
    MAX_TOKENS,
    ConversionRules,
    Converted,
    RewardedTrajectory,
    Scored,
    Scorer,
    ScoreRequest,
    TokenCounts,
    convert_group,
)
from data_bridge.errors import BackendError
from data_bridge.quality import Exclusion, Reason, exclusion_of
from trainer.config.training import ObjectiveSettings, TraineeSettings
from trainer.train.selection import advantages, spread
from trainer.types import Batch, JudgedGroup, PreparedBatch

if TYPE_CHECKING:
    import art
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

_PLACEHOLDER = 0.0


async def prepare(batch: Batch, trainee: TraineeSettings, scorer: Scorer | None = None) -> PreparedBatch:
    """``batch`` for ``backend.train``."""
    settings = trainee.training
    rules = ConversionRules(
        trainee=batch.model,
        policy_step=batch.policy_step,
        purposes=trainee.purposes,
        foreign=settings.foreign,
        max_staleness=settings.max_staleness,
    )
    parts = [await _prepared_group(judged, rules, scorer, trainee.min_spread) for judged in batch.groups]
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

    rewards = judged.scores
    if len(rewards) < 2:
        return _Part(None, _excluded(judged, Reason.NO_COMPARABLE_PEER, "alone in its group"))
    apart = spread(rewards)
    if apart == 0 or apart < min_spread:
        return _Part(None, _excluded(judged, Reason.NO_SPREAD, f"best and worst differ by {apart:.3f}"))
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


class NoTokenizer(Exception):
    """The tokenizer of the trained model is not available on this machine."""


class TokenisingScorer:
    """A ``Scorer`` that leaves the scoring to the trainer. It loads the tokenizer when the first reply needs it."""

    def __init__(self, base_model: str) -> None:
        self._base_model = base_model
        self._tokenizer: PreTrainedTokenizerBase | NoTokenizer | None = None

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Scored | None]:
        tokenizer = self._loaded()
        return [_tokenised(tokenizer, request) for request in requests]

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
    """BackendError if the batch cannot be written as JSON. Checked before, so that a failed request is never this."""
    try:
        for group in prepared.groups:
            json.dumps(group.model_dump(mode="json"), allow_nan=False)
    except (ValueError, TypeError) as error:
        raise BackendError(
            f"Batch {prepared.batch.batch_id} cannot be sent ({error}): one of its trajectories contains a value "
            "that JSON cannot represent; nothing was sent."
        ) from error
