"""One proposal of several replies, and how sure the model is of it. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from data_bridge.models import Action
from data_bridge.replies import action_in
from data_bridge.worlds.market import MARKET
from data_bridge.worlds.world import World
from trainer.types import Completion

_LONGEST_ANSWER = 200
_AGREEMENT, _LIKELIHOOD = 0.25, 0.75


@dataclass(frozen=True, slots=True)
class Proposal:
    """What most replies propose."""

    text: str
    """The likeliest of the replies that propose it."""
    answer: str
    """What it chooses, in one spelling and without its size."""
    agreement: float
    """The share of all replies that choose the same."""
    likelihood: float | None
    """How likely the model finds a token of those replies, by the geometric mean; None without log-probabilities."""
    samples: int

    @property
    def score(self) -> float:
        """Both together, from 0 to 1. The likelihood weighs more: it is exact, where eight replies are a small poll."""
        return (
            self.agreement if self.likelihood is None else _AGREEMENT * self.agreement + _LIKELIHOOD * self.likelihood
        )


def proposal_of(replies: Sequence[Completion], world: World = MARKET) -> Proposal | None:
    """The choice of most replies; among equals the likeliest. None if no reply says anything."""
    by_answer: dict[str, list[Completion]] = defaultdict(list)
    for reply in replies:
        if reply.text.strip():
            by_answer[answer_of(reply.text, world)].append(reply)
    if not by_answer:
        return None
    answer, own = max(by_answer.items(), key=lambda pair: (len(pair[1]), _mean(pair[1]) or -math.inf, pair[0]))
    likelihood = _mean(own)
    best = max(own, key=lambda reply: (_of_token(reply) or -math.inf, reply.text))
    return Proposal(
        text=best.text.strip(),
        answer=answer,
        agreement=len(own) / len(replies),
        likelihood=None if likelihood is None else math.exp(likelihood),
        samples=len(replies),
    )


def proposed(reply: str, world: World, logged: Action | None = None) -> Action | None:
    """The action that ``reply`` proposes; None if it cannot be read. ``logged`` is what the agent then did.

    A market's replies are read whatever the game's format is; another world has a parser of its own, or none.
    """
    return action_in(reply) if world.reads_markets else world.parse(reply, logged)


def answer_of(reply: str, world: World = MARKET) -> str:
    """What a reply chooses; of one that is no action that we can read, its text without the spaces."""
    action = proposed(reply, world)
    choice = None if action is None else world.choice_of(action)
    return (choice or " ".join(reply.split()).casefold())[:_LONGEST_ANSWER]


def _of_token(reply: Completion) -> float | None:
    return fmean(reply.logprobs) if reply.logprobs else None


def _mean(replies: Sequence[Completion]) -> float | None:
    known = [value for reply in replies if (value := _of_token(reply)) is not None]
    return fmean(known) if known else None
