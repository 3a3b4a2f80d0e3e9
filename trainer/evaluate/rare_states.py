"""Has the candidate narrowed? In a game nobody knows unseen words, so the log's rarest states are looked at instead.

A decision point is rare if its prompt has rare words: the mean, over its distinct words (numbers left out), of the
inverse document frequency among all prompts of the evaluation's windows. Of the points that were compared, the rarest
quarter counts. A reply is valid there if the game's rules say so where they are known, otherwise if it is neither empty
nor cut off.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Sequence
from statistics import fmean

from data_bridge.models import ChatMessage, LLMCall, NotText
from data_bridge.quality import CheckedWindow
from trainer.evaluate.comparison import Compared, ScoredReply
from trainer.evidence import Narrowing, Role

WHERE = "the rarest states of the log"
MIN_POINTS = 10
"""With fewer rare points a single reply would decide."""

_WORD = re.compile(r"[^\W\d_]{2,}")


def rarest_states(
    windows: Sequence[CheckedWindow], compared: Sequence[Compared], base: Role, purposes: Collection[str]
) -> Narrowing:
    """Validity of candidate and ``base`` at the rarest quarter of the compared decision points."""
    rare = rarest_quarter(windows, compared, purposes)
    if len(rare) < MIN_POINTS:
        reason = f"a quarter of {len(compared)} decision points is less than {MIN_POINTS}"
        return Narrowing(WHERE, len(rare), None, None, reason)
    candidate, other = (
        fmean(fmean(map(_is_valid, at.replies[role])) for at in rare) for role in (Role.CANDIDATE, base)
    )
    return Narrowing(WHERE, len(rare), candidate, other)


def rarest_quarter(
    windows: Sequence[CheckedWindow], compared: Sequence[Compared], purposes: Collection[str]
) -> list[Compared]:
    prompts = [
        words
        for checked in windows
        for trajectory in checked.usable
        for step in trajectory.steps
        for call in step.llm_calls
        if call.purpose in purposes and (words := _words_of(call))
    ]
    seen = Counter(word for words in prompts for word in words)

    def rarity(at: Compared) -> float:
        words = _words(at.point.messages)
        return fmean(math.log((1 + len(prompts)) / (1 + seen[word])) for word in words) if words else 0.0

    ordered = sorted(compared, key=lambda at: (-rarity(at), at.point.key))
    return ordered[: len(compared) // 4]


def _words_of(call: LLMCall) -> frozenset[str]:
    try:
        return _words(call.seen())
    except NotText:
        return frozenset()


def _words(messages: Sequence[ChatMessage]) -> frozenset[str]:
    text = " ".join(message.content for message in messages if isinstance(message.content, str))
    return frozenset(_WORD.findall(text.lower()))


def _is_valid(reply: ScoredReply) -> float:
    return float(not reply.is_error if reply.is_valid is None else reply.is_valid)
