"""Replies without log-probabilities, for backends whose policy is not in this process.

ART's trainers can compute the log-probabilities of a whole batch with the current policy before they train
(``precalculate_logprobs``), which is what scoring means. So here a reply only gets its tokens, with a
placeholder that marks them as trained, and ``train`` asks for that whenever a batch holds such tokens. The
price: log-probabilities that the log did have in the same batch are computed anew as well.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from data_bridge.art_converter import Scored, ScoreRequest
from trainer.config.sections import TrainSettings
from trainer.train.backends.base import PreparedBatch
from trainer.train.backends.prepare import prepare
from trainer.types import Batch

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

_PLACEHOLDER = 0.0
_LONGEST = 32_768
"""Tokens of a prompt with its reply: what ART's trainers take by default, and W&B's smallest model."""


class NoTokenizer(Exception):
    """The tokenizer of the trained model is not to be had on this machine."""


class TokenisingScorer:
    """A ``Scorer`` that leaves the scoring to the trainer. Loads the tokenizer when the first reply needs it."""

    def __init__(self, base_model: str) -> None:
        self._base_model = base_model
        self._tokenizer: PreTrainedTokenizerBase | None = None

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Scored | None]:
        tokenizer = self._loaded()
        return [_tokenised(tokenizer, request) for request in requests]

    def _loaded(self) -> PreTrainedTokenizerBase:
        if self._tokenizer is None:
            from transformers import AutoTokenizer

            try:
                self._tokenizer = AutoTokenizer.from_pretrained(self._base_model)
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise NoTokenizer(self._base_model) from error
        return self._tokenizer


def _tokenised(tokenizer: PreTrainedTokenizerBase, request: ScoreRequest) -> Scored | None:
    """The tokens of one reply, as the model would have sampled them; None if they cannot be known or do not fit."""
    from trainer.inference.base_model import prompt_tokens

    tokens = request.token_ids
    if not tokens:
        if request.tool_calls:
            return None  # only the model that wrote it knows how it spelt its tool calls
        end = [tokenizer.eos_token_id] if request.is_complete and tokenizer.eos_token_id is not None else []
        tokens = (*tokenizer.encode(request.text, add_special_tokens=False), *end)
    if not tokens or len(prompt_tokens(tokenizer, request.messages)) + len(tokens) > _LONGEST:
        return None
    return Scored(tokens, (_PLACEHOLDER,) * len(tokens))


async def prepare_deferred(batch: Batch, settings: TrainSettings, scorer: TokenisingScorer) -> PreparedBatch:
    """``batch`` for a trainer that scores. Without a tokenizer, replies that need scoring are left out and counted."""
    try:
        return await prepare(batch, settings, scorer=scorer, min_spread=settings.min_spread)
    except NoTokenizer as error:
        logger.warning(
            "The tokenizer of %s cannot be loaded: replies without log-probabilities are left out.", error.args[0]
        )
        return await prepare(batch, settings, min_spread=settings.min_spread)


def needs_scoring(prepared: PreparedBatch) -> bool:
    """Whether the trainer must compute log-probabilities before it trains this batch."""
    return prepared.metrics.get("share_rescored", 0.0) > 0
