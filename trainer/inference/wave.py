"""Replies that are generated together: a wave starts together, loses rows as they end, and may join another.

Requests that arrive in the meantime start their own wave; the engine steps the waves in turn and joins them when there
are many, so no request waits for another's long reply to end.

Before they start, replies wait in two lanes, one for short and one for long replies, each with its own capacity, so
that memory stays bounded and a short reply never waits for a long one to end. A wave stores its prompts and its replies
as rectangles; replies in one wave must be of similar length, so that these are not mostly padding.

Replies to one prompt that have said the same so far are one row of the model until they differ: greedy or sure of
itself, a model reads the same token for all of them once.

Each reply has its own stream of random numbers, so a request with a seed gives the same reply whichever replies share
its wave, except for rounding in matrix products of different shape.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from trainer.inference.shared_prefix import PromptReader, ReplyMemory, Tokens

if TYPE_CHECKING:
    from torch import Tensor

_COMPACT_BELOW = 0.75
"""Finished rows are kept until only this share of the rows is left: moving memory costs too."""
MAX_ROWS = 64
"""Maximum replies of one wave, and of one lane: a CPU gains nothing from more."""
LANE_BYTES = 1 << 30
"""Memory for the prompts and replies of one lane, assuming that every reply reaches its maximum length."""
_LONG = 256
"""Replies with a higher token limit than this wait in the lane for long replies."""
_PADDING_ALLOWED = 2048
"""Tokens of padding that cost less than a second pass over the model's weights."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """The parts of a causal language model that generation needs."""

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
    max_tokens: int
    stop: tuple[str, ...]
    source: random.Random
    is_wanted: Callable[[], bool]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None


class Wave:
    """Replies of one adapter. ``step`` generates one token of each and returns the replies that ended with it."""

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
        self._replies = list(replies)
        distinct = list(dict.fromkeys(reply.prompt for reply in replies))
        place = {prompt: index for index, prompt in enumerate(distinct)}
        self._row_of = [place[reply.prompt] for reply in replies]
        prompts, self._hidden = reader.read(distinct, adapter)
        self._positions = prompts.lengths
        self._memory = ReplyMemory(prompts, torch.arange(len(distinct)))

    @property
    def replies(self) -> Sequence[Reply]:
        """The replies still kept, which may include finished ones."""
        return self._replies

    @property
    def rows(self) -> int:
        """How many different beginnings the replies have."""
        return len(self._positions)

    @property
    def is_over(self) -> bool:
        return not any(reply.finish_reason is None for reply in self._replies)

    def step(self) -> list[Reply]:
        """The replies that ended. The model's weights must be those of ``adapter``."""
        tokens = self._sample()
        ended = [reply for reply, token in zip(self._replies, tokens, strict=True) if self._ends_with(reply, token)]
        alive = [index for index, reply in enumerate(self._replies) if reply.finish_reason is None]
        if alive:
            self._read(self._follow(alive, tokens))
        return ended

    def join(self, other: Wave) -> None:
        """Take over the replies of ``other``, a wave of the same adapter."""
        self._replies += other._replies
        self._row_of += [self.rows + row for row in other._row_of]
        self._positions = torch.cat([self._positions, other._positions])
        self._hidden = torch.cat([self._hidden, other._hidden])
        self._memory.join(other._memory)

    def _sample(self) -> list[int]:
        """The next token of each reply."""
        temperatures = torch.tensor([reply.temperature for reply in self._replies])
        uniforms = torch.tensor([reply.source.random() for reply in self._replies], dtype=torch.float64)
        chosen, logprobs = _choose(self._model.head(self._hidden)[self._row_of], temperatures, uniforms)
        tokens: list[int] = chosen.tolist()
        for reply, token, logprob in zip(self._replies, tokens, logprobs.tolist(), strict=True):
            if reply.finish_reason is None:
                reply.token_ids.append(token)
                reply.logprobs.append(logprob)
        return tokens

    def _follow(self, alive: Sequence[int], tokens: Sequence[int]) -> list[int]:
        """The token that each row reads next, after a row whose replies differ now has become several."""
        following = list(dict.fromkeys((self._row_of[index], tokens[index]) for index in alive))
        next_token = dict(following)
        if len(next_token) == len(following) >= _COMPACT_BELOW * self.rows:  # no row splits, and few have ended
            return [next_token.get(row, 0) for row in range(self.rows)]
        place = {row_and_token: new for new, row_and_token in enumerate(following)}
        self._row_of = [place[self._row_of[index], tokens[index]] for index in alive]
        self._replies = [self._replies[index] for index in alive]
        parents = torch.tensor([row for row, _ in following])
        self._positions = self._positions[parents]
        self._memory.keep(parents)
        return [token for _, token in following]

    def _ends_with(self, reply: Reply, token: int) -> bool:
        """Whether this token ends ``reply``; if so, sets the reason."""
        if reply.finish_reason is not None:
            return False
        if not reply.is_wanted():
            reply.finish_reason = "cancelled"
        elif token in self._model.ends:
            reply.finish_reason, reply.text = "stop", self._text_of(reply.token_ids[:-1])
        else:
            cut = _cut_at_stop(self._text_of(reply.token_ids), reply.stop) if reply.stop else None
            if cut is not None:
                reply.finish_reason, reply.text = "stop", cut
            elif len(reply.token_ids) >= reply.max_tokens:
                reply.finish_reason, reply.text = "length", self._text_of(reply.token_ids)
        return reply.finish_reason is not None

    def _read(self, tokens: Sequence[int]) -> None:
        self._memory.tokens += 1
        output = self._model.decoder(
            input_ids=torch.tensor(tokens)[:, None],
            position_ids=self._positions[:, None],
            use_cache=False,
            memory=self._memory,
        )
        self._positions = self._positions + 1
        self._hidden = output.last_hidden_state[:, 0]


def random_source(seed: int | None, sample: int) -> random.Random:
    """The random numbers of one reply: a separate stream for every sample of a request."""
    return random.Random() if seed is None else random.Random(f"{seed}:{sample}")


def _choose(logits: Tensor, temperatures: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """One token per row by inverse transform, and its log-probability at temperature 1.

    Temperature 0 selects the most likely token.
    """
    greedy = temperatures <= 0
    scaled = logits / torch.where(greedy, torch.ones_like(temperatures), temperatures)[:, None]
    cumulative = torch.softmax(scaled, dim=-1).double().cumsum(dim=-1)
    targets = (uniforms.double() * cumulative[:, -1])[:, None]
    sampled = torch.searchsorted(cumulative, targets, right=True)[:, 0].clamp_max(logits.shape[-1] - 1)
    tokens = torch.where(greedy, logits.argmax(dim=-1), sampled)
    logprobs = logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(dim=-1)
    return tokens, logprobs


def _cut_at_stop(text: str, stops: Sequence[str]) -> str | None:
    """``text`` up to the first of ``stops``, or None if it contains none."""
    places = [place for stop in stops if stop and (place := text.find(stop)) >= 0]
    return text[: min(places)] if places else None


class Waiting:
    """Replies that have not begun."""

    def __init__(self, lane_tokens: int) -> None:
        self._short, self._long = _Lane(lane_tokens), _Lane(lane_tokens)

    def __bool__(self) -> bool:
        return bool(self._short.replies or self._long.replies)

    def add(self, reply: Reply) -> None:
        (self._long if _is_long(reply) else self._short).replies.append(reply)

    def take(self, waves: Sequence[Sequence[Reply]]) -> list[Reply]:
        """The next replies of each lane that fit beside those in ``waves``."""
        long = [[reply for reply in wave if _is_long(reply)] for wave in waves]
        short = [[reply for reply in wave if not _is_long(reply)] for wave in waves]
        return [*self._short.take(short), *self._long.take(long)]

    def remove_unwanted(self) -> list[Reply]:
        """Remove the replies that no caller waits for any more."""
        return self._short.remove_unwanted() + self._long.remove_unwanted()

    def remove_all(self) -> list[Reply]:
        removed = [*self._short.replies, *self._long.replies]
        self._short.replies.clear()
        self._long.replies.clear()
        return removed


class _Lane:
    """Replies in order of arrival, and a capacity of ``tokens`` for prompts and replies."""

    def __init__(self, tokens: int) -> None:
        self.replies: deque[Reply] = deque()
        self._tokens = tokens

    def take(self, waves: Sequence[Sequence[Reply]]) -> list[Reply]:
        """The replies that fit; one that alone is too large for the lane starts when nothing else is running."""
        rows = sum(map(len, waves))
        tokens = sum(map(_may_hold, waves))
        taken: list[Reply] = []
        while self.replies:
            grown = [*taken, self.replies[0]]
            is_full = rows + len(grown) > MAX_ROWS or tokens + _may_hold(grown) > self._tokens
            if is_full and (rows or taken):
                break
            taken = grown
            self.replies.popleft()
        return taken

    def remove_unwanted(self) -> list[Reply]:
        unwanted = [reply for reply in self.replies if not reply.is_wanted()]
        if unwanted:
            self.replies = deque(reply for reply in self.replies if reply.is_wanted())
        return unwanted


def in_waves(replies: Sequence[Reply]) -> list[list[Reply]]:
    """``replies`` of one adapter in the minimum number of waves that are not mostly padding."""
    waves: list[list[Reply]] = []
    for reply in sorted(replies, key=lambda reply: len(reply.prompt)):
        if waves and _fit_together([*waves[-1], reply]):
            waves[-1].append(reply)
        else:
            waves.append([reply])
    return waves


def cheapest_pair(waves: Sequence[Sequence[Reply]]) -> tuple[int, int] | None:
    """The two waves that can be joined with the least memory moved; None if no two fit together."""
    joined = {(one, other): [*waves[one], *waves[other]] for one, other in combinations(range(len(waves)), 2)}
    fitting = [pair for pair, replies in joined.items() if _fit_together(replies)]
    return min(fitting, key=lambda pair: _held(joined[pair]), default=None)


def _is_long(reply: Reply) -> bool:
    return reply.max_tokens > _LONG


def _may_hold(wave: Sequence[Reply]) -> int:
    """Tokens that ``wave`` holds if every reply reaches its maximum length."""
    return sum(len(prompt) for prompt in {reply.prompt for reply in wave}) + sum(reply.max_tokens for reply in wave)


def _fit_together(replies: Sequence[Reply]) -> bool:
    used = sum(len(prompt) for prompt in {reply.prompt for reply in replies})
    used += sum(len(reply.token_ids) for reply in replies)
    return len(replies) <= MAX_ROWS and _held(replies) <= 1.5 * used + _PADDING_ALLOWED


def _held(replies: Sequence[Reply]) -> int:
    """Tokens that one wave of ``replies`` holds now, padding included."""
    prompts = {reply.prompt for reply in replies}
    longest, furthest = max(map(len, prompts)), max(len(reply.token_ids) for reply in replies)
    return len(prompts) * longest + len(replies) * furthest
