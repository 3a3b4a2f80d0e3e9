"""Which replies are written when, and which of them together: memory stays bounded and nobody waits for a long reply.

Replies wait in two lanes, the short and the long ones, each with room of its own, so that a short one never waits for
a long one to end. A wave keeps its prompts and its replies as rectangles; what is written together must be alike
enough that they are not mostly padding.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer.inference.wave import Reply

MOST_ROWS = 64
"""Replies of one wave, and of one lane: beyond this a CPU gains nothing from more."""
LANE_BYTES = 1 << 30
"""Memory for the prompts and replies of one lane, as if every reply became as long as it may."""
_LONG = 256
"""Replies that may have more tokens than this wait in the lane of the long ones."""
_PADDING_ALLOWED = 2048
"""Tokens of padding that cost less than a second pass over the model's weights."""


class Waiting:
    """Replies that have not begun."""

    def __init__(self, lane_tokens: int) -> None:
        self._short, self._long = _Lane(lane_tokens), _Lane(lane_tokens)

    def __bool__(self) -> bool:
        return bool(self._short.replies or self._long.replies)

    def add(self, reply: Reply) -> None:
        (self._long if _is_long(reply) else self._short).replies.append(reply)

    def take(self, waves: Sequence[Sequence[Reply]]) -> list[Reply]:
        """The next replies of each lane that have room beside those in ``waves``."""
        long = [[reply for reply in wave if _is_long(reply)] for wave in waves]
        short = [[reply for reply in wave if not _is_long(reply)] for wave in waves]
        return [*self._short.take(short), *self._long.take(long)]

    def remove_unwanted(self) -> list[Reply]:
        """Take out the replies that nobody waits for any more."""
        return self._short.remove_unwanted() + self._long.remove_unwanted()

    def remove_all(self) -> list[Reply]:
        removed = [*self._short.replies, *self._long.replies]
        self._short.replies.clear()
        self._long.replies.clear()
        return removed


class _Lane:
    """Replies in the order they came, and room for ``tokens`` of prompts and replies."""

    def __init__(self, tokens: int) -> None:
        self.replies: deque[Reply] = deque()
        self._tokens = tokens

    def take(self, waves: Sequence[Sequence[Reply]]) -> list[Reply]:
        """Those that have room; one that alone is too large for the lane begins when nothing else is under way."""
        rows = sum(map(len, waves))
        tokens = sum(map(_may_hold, waves))
        taken: list[Reply] = []
        while self.replies:
            grown = [*taken, self.replies[0]]
            is_full = rows + len(grown) > MOST_ROWS or tokens + _may_hold(grown) > self._tokens
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
    """``replies`` of one adapter in as few waves as are not mostly padding."""
    waves: list[list[Reply]] = []
    for reply in sorted(replies, key=lambda reply: len(reply.prompt)):
        if waves and _fit_together([*waves[-1], reply]):
            waves[-1].append(reply)
        else:
            waves.append([reply])
    return waves


def cheapest_pair(waves: Sequence[Sequence[Reply]]) -> tuple[int, int] | None:
    """The two waves that are joined with the least memory moved; None if no two fit together."""
    joined = {(one, other): [*waves[one], *waves[other]] for one, other in combinations(range(len(waves)), 2)}
    fitting = [pair for pair, replies in joined.items() if _fit_together(replies)]
    return min(fitting, key=lambda pair: _held(joined[pair]), default=None)


def _is_long(reply: Reply) -> bool:
    return reply.most_tokens > _LONG


def _may_hold(wave: Sequence[Reply]) -> int:
    """Tokens that ``wave`` holds when every reply is as long as it may be."""
    return sum(len(prompt) for prompt in {reply.prompt for reply in wave}) + sum(reply.most_tokens for reply in wave)


def _fit_together(replies: Sequence[Reply]) -> bool:
    used = sum(len(prompt) for prompt in {reply.prompt for reply in replies})
    used += sum(len(reply.token_ids) for reply in replies)
    return len(replies) <= MOST_ROWS and _held(replies) <= 1.5 * used + _PADDING_ALLOWED


def _held(replies: Sequence[Reply]) -> int:
    """Tokens that one wave of ``replies`` holds now, padding included."""
    prompts = {reply.prompt for reply in replies}
    longest, furthest = max(map(len, prompts)), max(len(reply.token_ids) for reply in replies)
    return len(prompts) * longest + len(replies) * furthest
