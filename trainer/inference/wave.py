"""Replies that are written together: a wave starts together, loses rows as they end, and may join another.

Requests that arrive meanwhile start a wave of their own; the engine steps the waves in turn and joins them when they
become many, so nobody waits for somebody else's long reply to end.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from trainer.inference.prompt_reader import PromptReader
from trainer.inference.sampling import choose, cut_at_stop
from trainer.inference.shared_prefix import ReplyMemory, Tokens

if TYPE_CHECKING:
    from torch import Tensor

_COMPACT_BELOW = 0.75
"""Rows that ended are carried along until this share of the wave is left: moving memory costs too."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """The parts of a causal language model that writing needs."""

    decoder: Any
    head: Any
    ends: frozenset[int]
    context: int


@dataclass(slots=True)
class Reply:
    """One reply in progress."""

    adapter: Path | None
    prompt: Tokens
    temperature: float
    most_tokens: int
    stop: tuple[str, ...]
    source: random.Random
    is_wanted: Callable[[], bool]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None


class Wave:
    """Replies of one adapter. ``step`` writes one token of each and says which replies ended with it."""

    def __init__(
        self,
        replies: Sequence[Reply],
        adapter: Path | None,
        *,
        reader: PromptReader,
        model: LoadedModel,
        text: Callable[[list[int]], str],
    ) -> None:
        self.adapter = adapter
        self._model = model
        self._text_of = text
        self._rows = list(replies)
        distinct = list(dict.fromkeys(reply.prompt for reply in replies))
        place = {prompt: index for index, prompt in enumerate(distinct)}
        prompt_of = torch.tensor([place[reply.prompt] for reply in replies])
        prompts, last_hidden = reader.read(distinct, adapter)
        self._positions = prompts.lengths[prompt_of]
        self._memory = ReplyMemory(prompts, prompt_of)
        self._hidden = last_hidden[prompt_of]

    @property
    def replies(self) -> Sequence[Reply]:
        """The rows still carried; those that ended before may be among them."""
        return self._rows

    @property
    def is_over(self) -> bool:
        return not any(reply.finish_reason is None for reply in self._rows)

    def step(self) -> list[Reply]:
        """The replies that ended. The model's weights must be those of ``adapter``."""
        tokens = self._sample()
        ended = [
            reply for reply, token in zip(self._rows, tokens.tolist(), strict=True) if self._ends_with(reply, token)
        ]
        alive = [index for index, reply in enumerate(self._rows) if reply.finish_reason is None]
        if alive:
            if len(alive) < _COMPACT_BELOW * len(self._rows):
                tokens = self._compact(torch.tensor(alive), tokens)
            self._read(tokens)
        return ended

    def join(self, other: Wave) -> None:
        """Go on with the replies of ``other``, a wave of the same adapter, too."""
        self._rows += other._rows
        self._positions = torch.cat([self._positions, other._positions])
        self._hidden = torch.cat([self._hidden, other._hidden])
        self._memory.join(other._memory)

    def _sample(self) -> Tensor:
        temperatures = torch.tensor([reply.temperature for reply in self._rows])
        uniforms = torch.tensor([reply.source.random() for reply in self._rows], dtype=torch.float64)
        tokens, logprobs = choose(self._model.head(self._hidden), temperatures, uniforms)
        for reply, token, logprob in zip(self._rows, tokens.tolist(), logprobs.tolist(), strict=True):
            if reply.finish_reason is None:
                reply.token_ids.append(token)
                reply.logprobs.append(logprob)
        return tokens

    def _ends_with(self, reply: Reply, token: int) -> bool:
        """Whether this token ended ``reply``; sets why."""
        if reply.finish_reason is not None:
            return False
        if not reply.is_wanted():
            reply.finish_reason = "cancelled"
        elif token in self._model.ends:
            reply.finish_reason, reply.text = "stop", self._text_of(reply.token_ids[:-1])
        else:
            cut = cut_at_stop(self._text_of(reply.token_ids), reply.stop) if reply.stop else None
            if cut is not None:
                reply.finish_reason, reply.text = "stop", cut
            elif len(reply.token_ids) >= reply.most_tokens:
                reply.finish_reason, reply.text = "length", self._text_of(reply.token_ids)
        return reply.finish_reason is not None

    def _compact(self, alive: Tensor, tokens: Tensor) -> Tensor:
        self._rows = [self._rows[index] for index in alive.tolist()]
        self._positions = self._positions[alive]
        self._memory.keep(alive)
        return tokens[alive]

    def _read(self, tokens: Tensor) -> None:
        self._memory.tokens += 1
        output = self._model.decoder(
            input_ids=tokens[:, None], position_ids=self._positions[:, None], use_cache=False, memory=self._memory
        )
        self._positions = self._positions + 1
        self._hidden = output.last_hidden_state[:, 0]
