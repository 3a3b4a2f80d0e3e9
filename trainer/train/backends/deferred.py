"""Preparing a batch for a trainer that is not in this process: tokens are made here, scoring is left to it.

A backend whose policy is not in this process cannot score replies that were logged without log-probabilities. ART's
trainers can compute those of a whole batch with the current policy before they train (``precalculate_logprobs``),
which is the same as scoring. So such a reply only gets its tokens, with a placeholder that marks them as trained, and
``train`` turns that option on whenever a batch contains such tokens. Logged log-probabilities in the same batch are
then the behaviour's, as long as the trainer weights by them; where it cannot, a batch with stale replies is trained
without those that would need scoring (``prepare_logged``).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from data_bridge.art_converter import BEHAVIOUR, MAX_TOKENS
from data_bridge.errors import BackendError
from data_bridge.scoring import Scored, ScoreRequest
from trainer.config.training import AdapterSettings, TraineeSettings
from trainer.faults import may_be_a_rows
from trainer.train.backends.prepare import prepare
from trainer.types import Batch, PreparedBatch

if TYPE_CHECKING:
    import art
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

_PLACEHOLDER = 0.0


class NoTokenizer(BackendError):
    """The tokenizer of the trained model is not available on this machine."""


class TokenisingScorer:
    """A ``Scorer`` that leaves the scoring to the trainer. It loads the tokenizer when the first reply needs it."""

    def __init__(self, base_model: str, *, marks: bool = False) -> None:
        self.base_model = base_model
        self._marks = marks
        self._tokenizer: PreTrainedTokenizerBase | NoTokenizer | None = None

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Scored | None]:
        return [one if one is None or one.logprobs else self._held_open(one) for one in await self.logged(requests)]

    def _held_open(self, reply: Scored) -> Scored:
        """``reply`` with placeholders, which mark its tokens as trained by whatever the trainer computes for them."""
        size = len(reply.token_ids)
        return replace(reply, logprobs=(_PLACEHOLDER,) * size, behaviour=(math.nan,) * size if self._marks else ())

    async def logged(self, requests: Sequence[ScoreRequest]) -> list[Scored | None]:
        """The tokens of each reply, and log-probabilities only where the log has them."""
        tokenizer = await asyncio.to_thread(self._loaded)  # without a network the hub's client tries for 40 s
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
                self._tokenizer = AutoTokenizer.from_pretrained(self.base_model)
            except (OSError, ValueError, KeyError, TypeError) as error:
                self._tokenizer = NoTokenizer(self.base_model)
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
    return reply if len(prompt) + len(reply.token_ids) <= MAX_TOKENS else None


class _LoggedOnly:
    """A ``Scorer`` that compares logged tokens with their text, and scores nothing."""

    def __init__(self, scorer: TokenisingScorer) -> None:
        self._scorer = scorer

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Scored | None]:
        return await self._scorer.logged(requests)


async def prepare_logged(batch: Batch, trainee: TraineeSettings, scorer: TokenisingScorer) -> PreparedBatch:
    """``batch`` for a trainer that can score, but then forgets what the log said.

    Where replies are stale the log is what keeps the policy near them, so those that need scoring are left out.
    """
    prepared = await prepare_deferred(batch, trainee, scorer)
    if prepared.metrics["share_stale"] > 0 and needs_scoring(prepared):
        return await prepare(batch, trainee, _LoggedOnly(scorer), scorer.base_model)
    return prepared


async def prepare_deferred(batch: Batch, trainee: TraineeSettings, scorer: TokenisingScorer) -> PreparedBatch:
    """``batch`` for a trainer that scores.

    Without a tokenizer, replies that need scoring are left out and counted, and logged tokens are taken for the
    reply's: whether they say it cannot be told here.
    """
    try:
        return await prepare(batch, trainee, scorer, scorer.base_model)
    except NoTokenizer as error:
        logger.warning(
            "The tokenizer of %s cannot be loaded: replies without log-probabilities are left out, and logged tokens "
            "are not compared with their text.",
            error.args[0],
        )
        return await prepare(batch, trainee, base_model=scorer.base_model)


def needs_scoring(prepared: PreparedBatch) -> bool:
    """Whether the trainer must compute log-probabilities before it trains this batch."""
    return prepared.metrics.get("share_rescored", 0.0) > 0


def decoupled(prepared: PreparedBatch, settings: AdapterSettings) -> dict[str, Any]:
    """Arguments by which ART's trainer scores the batch first and weights what the log has by what has changed."""
    has_stale, has_logged = prepared.metrics.get("share_stale", 0.0) > 0, _has_logged(prepared)
    if not needs_scoring(prepared) and not has_stale:
        return {"precalculate_logprobs": False}
    if not has_logged:
        return {"precalculate_logprobs": True}
    for group in prepared.groups:
        _forget_placeholders(group)
    return {"precalculate_logprobs": True, "truncated_importance_sampling": settings.max_importance}


def _has_logged(prepared: PreparedBatch) -> bool:
    return prepared.metrics.get("share_rescored", 0.0) < 1


def _forget_placeholders(group: art.TrajectoryGroup) -> None:
    """Placeholders become no number, which ART's loss takes for the current policy's: the token enters no ratio.

    ART finds where replies part by their first log-probability, so in a group without any the first of each stays.
    """
    replies = [_tokens_of(history) for one in group.trajectories for history in (one, *one.additional_histories)]
    is_unknown = [bool(reply) and _is_placeholder(reply[0]) for reply in replies]
    first = 1 if all(unknown for unknown, reply in zip(is_unknown, replies, strict=True) if reply) else 0
    for reply, unknown in zip(replies, is_unknown, strict=True):
        for token in reply[first:] if unknown else ():
            token.logprob = math.nan


def _tokens_of(history: Any) -> list[Any]:
    last = history.messages_and_choices[-1]
    return [] if isinstance(last, dict) or last.logprobs is None else last.logprobs.content or []


def _is_placeholder(token: Any) -> bool:
    extra = (token.model_extra or {}).get("extra_logprobs")
    return isinstance(extra, dict) and extra.get(BEHAVIOUR, 0.0) is None
