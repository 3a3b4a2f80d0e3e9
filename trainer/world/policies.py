"""Who decides: a script of planted skill, or any chat model (the embedded one, an OpenAI-compatible endpoint).

A policy gets what the agent can see and gives a reply in words; reading and checking the reply is not its business.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from data_bridge.models import ChatMessage
from trainer.types import ChatModel
from trainer.world import headlines
from trainer.world.actions import BUY, HOLD, LONGEST_REPLY_TOKENS, NO, SELL, YES, Decision
from trainer.world.chance import bits, pick, unit
from trainer.world.clock import latency_ms
from trainer.world.exploration import EXPLORER, Exploration
from trainer.world.guard import Limits
from trainer.world.observation import Observation, Offer

SCRIPTED = "scripted"


@dataclass(frozen=True, slots=True)
class Ask:
    """One decision of one agent: what it sees, and whether it is its turn to explore."""

    messages: Sequence[ChatMessage]
    seen: Observation
    explores: bool
    exploration: Exploration
    limits: Limits
    key: tuple[object, ...]
    """What every draw of chance for this decision depends on."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The reply, and how it came about. Token ids and log-probabilities only if the model sampled them itself."""

    text: str
    model: str
    temperature: float
    latency_ms: int
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    """Raw log-probabilities, at temperature 1."""


class Policy(Protocol):
    """Anything that answers. Called for many agents at once."""

    async def answer(self, ask: Ask) -> Answer: ...


@dataclass(frozen=True, slots=True)
class ScriptedPolicy:
    """Takes the direction that the news implies with probability ``(1 + skill) / 2``: 0 guesses, 1 never errs."""

    skill: float

    async def answer(self, ask: Ask) -> Answer:
        decision = any_offer(ask) if ask.explores else self._decide(ask)
        return Answer(str(decision), SCRIPTED, 0.0, latency_ms(*ask.key, "latency"))

    def _decide(self, ask: Ask) -> Decision:
        readings = _readings(ask.seen)
        if not readings:
            return any_offer(ask)
        market, said = pick(readings, *ask.key, "market")
        right = unit(*ask.key, "skill") < (1 + self.skill) / 2
        direction = said if right else -said
        verbs = (YES, NO) if market.startswith("#") else (BUY, SELL)
        return sized(Offer(verbs[0] if direction > 0 else verbs[1], market), ask.limits)


@dataclass(frozen=True, slots=True)
class ChatPolicy:
    """Asks a chat model. Every agent may share one: the model batches what is asked at the same time."""

    model: ChatModel
    temperature: float = 1.0

    async def answer(self, ask: Ask) -> Answer:
        if ask.explores and ask.exploration.how == "answers":
            return Answer(str(any_offer(ask)), EXPLORER, 0.0, latency_ms(*ask.key, "latency"))
        temperature = max(self.temperature, ask.exploration.hot_temperature) if ask.explores else self.temperature
        started = time.monotonic()
        [completion] = await self.model.chat(
            ask.messages,
            temperature=temperature,
            max_tokens=LONGEST_REPLY_TOKENS,
            seed=bits(*ask.key, "sampling") % 2**31,
        )
        return Answer(
            completion.text,
            completion.model or self.model.name,
            temperature,
            int((time.monotonic() - started) * 1000),
            completion.token_ids,
            completion.logprobs,
        )


def any_offer(ask: Ask) -> Decision:
    """One of the things that can be done now, each equally likely."""
    return sized(pick(ask.seen.offers, *ask.key, "offer"), ask.limits)


def sized(offer: Offer, limits: Limits) -> Decision:
    """The offer taken at the largest size that is allowed."""
    if offer.verb == HOLD:
        return Decision(HOLD)
    share = limits.bet if offer.verb in (YES, NO) else limits.order
    return Decision(offer.verb, offer.market, round(share * 100))


def _readings(seen: Observation) -> list[tuple[str, int]]:
    """What the news says of each open market: its name and the direction."""
    subjects = [(quote.symbol, quote.symbol) for quote in seen.quotes]
    subjects += [(question.label, question.question) for question in seen.questions]
    found: dict[str, int] = {}
    for text in seen.headlines:
        for market, subject in subjects:
            if said := headlines.direction_of(text, subject):
                found[market] = said
    return list(found.items())
