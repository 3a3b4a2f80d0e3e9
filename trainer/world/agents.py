"""The agents of a world, and the policies that decide for them.

A policy is a script with a planted skill, or any chat model (the embedded one, an OpenAI-compatible endpoint). It
receives what the agent can see and returns a reply as text; other code parses and checks the reply. Agents explore a
lot in the first windows and little later. Nothing that trains or judges knows their planted skill.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

from data_bridge.models import ChatMessage
from trainer.types import ChatModel
from trainer.world.actions import MAX_REPLY_TOKENS
from trainer.world.chance import bits, latency_ms, pick, shuffled, snowflake, unit
from trainer.world.market_rules import readings as readings
from trainer.world.market_rules import sized as sized
from trainer.world.rules import WorldRules
from trainer.world.worlds import MARKET

_NAMES = ("ada", "blaise", "carl", "dorothy", "emmy", "fermi", "grace", "hypatia", "ibn", "joan", "kurt", "lise")
_FIRST_DAY = datetime(2024, 6, 1, tzinfo=UTC)

SCRIPTED = "scripted"
EXPLORER = "explorer"
"""The model name of a call whose answer exploration chose instead of the agent's model."""

Exploring = Literal["temperature", "answers"]


@dataclass(frozen=True, slots=True)
class Exploration:
    """The share of the agents that explore at a decision, falling linearly from ``start`` to ``end``.

    A scripted agent explores by choosing a random offer. An agent with a language model explores by ``how``:

    - ``temperature``: its model is called at ``hot_temperature`` if its own is lower; the tokens are its own, with
      their log-probabilities.
    - ``answers``: its model is not called; an offer is chosen and recorded under the name of the explorer, without
      tokens. The explorers of a decision take the offers in turn, so that every offer is taken as often as any other,
      whatever the model prefers: what is learnt from them cannot feed on itself.
    """

    start: float = 0.3
    end: float = 0.05
    over_windows: int = 168
    how: Exploring = "temperature"
    hot_temperature: float = 1.0
    known_states: Mapping[str, int] | None = None
    """How often the log has each state, by signature: where that is seldom, more is explored. None: all are alike."""
    is_careful: bool = False
    """Whether an agent in a risky or urgent state never explores; see ``states``."""

    def epsilon(self, window_index: int) -> float:
        """The share of the agents that explore in the ``window_index``-th window played."""
        progress = min(1.0, window_index / max(1, self.over_windows))
        return self.start + (self.end - self.start) * progress

    def explorers(
        self, agents: int, window_index: int, *key: object, share: float = 1.0, barred: Collection[int] = ()
    ) -> dict[int, int]:
        """The agents that explore at one decision, each with its turn: ``share`` of the usual, none of ``barred``."""
        expected = min(1.0, self.epsilon(window_index) * share) * agents
        number = math.floor(expected) + (unit(*key, "one more") < expected % 1)
        chosen = [agent for agent in shuffled(range(agents), *key, "explorers") if agent not in barred]
        return {agent: turn for turn, agent in enumerate(chosen[:number])}


DEFAULT_EXPLORATION = Exploration()
NO_EXPLORATION = Exploration(start=0.0, end=0.0)


@dataclass(frozen=True, slots=True)
class Ask:
    """One decision of one agent: what it sees, and whether it explores this time."""

    messages: Sequence[ChatMessage]
    seen: Any
    """The world's own observation."""
    turn: int | None
    """Which offer it takes if it explores, in an order that the decision's explorers share; None: it does not."""
    exploration: Exploration
    limits: Any
    key: tuple[object, ...]
    """The key of every random draw for this decision; its last part is the agent's."""
    rules: WorldRules = MARKET

    @property
    def explores(self) -> bool:
        return self.turn is not None


@dataclass(frozen=True, slots=True)
class AgentAnswer:
    """The reply and its origin. Token ids and log-probabilities are set only if the model sampled them itself."""

    text: str
    model: str
    temperature: float
    latency_ms: int
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    """Raw log-probabilities, at temperature 1."""
    finish_reason: str = "stop"


class AgentPolicy(Protocol):
    """Anything that answers. Called for many agents concurrently."""

    async def answer(self, ask: Ask) -> AgentAnswer: ...


@dataclass(frozen=True, slots=True)
class ScriptedPolicy:
    """Follows what is told with probability ``(1 + skill) / 2``: skill 0 guesses, skill 1 is always right."""

    skill: float

    async def answer(self, ask: Ask) -> AgentAnswer:
        decision = any_offer(ask) if ask.explores else self._decide(ask)
        return AgentAnswer(str(decision), SCRIPTED, 0.0, latency_ms(*ask.key, "latency"))

    def _decide(self, ask: Ask) -> Any:
        read = ask.rules.readings(ask.seen, ask.limits)
        if not read:
            return any_offer(ask)
        follows, opposes = pick(read, *ask.key, "market")
        return follows if unit(*ask.key, "skill") < (1 + self.skill) / 2 else opposes


@dataclass(frozen=True, slots=True)
class ChatPolicy:
    """Calls a chat model. All agents may share one: the model batches concurrent requests."""

    model: ChatModel
    temperature: float = 1.0

    async def answer(self, ask: Ask) -> AgentAnswer:
        if ask.explores and ask.exploration.how == "answers":
            return AgentAnswer(str(any_offer(ask)), EXPLORER, 0.0, latency_ms(*ask.key, "latency"))
        temperature = max(self.temperature, ask.exploration.hot_temperature) if ask.explores else self.temperature
        started = time.monotonic()
        [completion] = await self.model.chat(
            ask.messages,
            temperature=temperature,
            max_tokens=MAX_REPLY_TOKENS,
            seed=bits(*ask.key, "sampling") % 2**31,
        )
        return AgentAnswer(
            completion.text,
            completion.model or self.model.name,
            temperature,
            int((time.monotonic() - started) * 1000),
            completion.token_ids,
            completion.logprobs,
            completion.finish_reason,
        )


def any_offer(ask: Ask) -> Any:
    """One of the current offers, each equally likely; explorers of the same decision take different ones in turn."""
    offers = ask.rules.choices(ask.seen, ask.limits)
    if ask.turn is None:
        return pick(offers, *ask.key, "offer")
    return shuffled(offers, *ask.key[:-1], "offers")[ask.turn % len(offers)]


@dataclass(frozen=True, slots=True)
class Agent:
    """One agent. Its name, role, balance and id say nothing about its skill."""

    agent_id: str
    index: int
    name: str
    role: str
    starting_balance: float
    policy: AgentPolicy
    skill: float | None = None
    """The planted skill; None for an agent whose policy is a model."""


def scripted_cast(count: int, seed: int, rules: WorldRules = MARKET) -> tuple[Agent, ...]:
    """``count`` scripted agents with skills spread evenly over [0, 1], in random order."""
    skills = shuffled([index / max(1, count - 1) for index in range(count)], seed, "skills")
    return tuple(
        _agent(index, (seed, "scripted"), ScriptedPolicy(skill), skill, rules) for index, skill in enumerate(skills)
    )


def model_cast(count: int, seed: int, policy: AgentPolicy, rules: WorldRules = MARKET) -> tuple[Agent, ...]:
    """``count`` agents that share one policy, usually a model's."""
    return tuple(_agent(index, (seed, "model"), policy, None, rules) for index in range(count))


def _agent(index: int, cast: tuple[object, ...], policy: AgentPolicy, skill: float | None, rules: WorldRules) -> Agent:
    own = () if rules is MARKET else (rules.name,)
    key = (*cast, *own, "agent", index)
    return Agent(
        agent_id=snowflake(_FIRST_DAY, index, *key),
        index=index,
        name=f"{_NAMES[index % len(_NAMES)]}-{index + 1}",
        role=pick(rules.roles, *key, "role"),
        starting_balance=pick(rules.balances, *key, "balance"),
        policy=policy,
        skill=skill,
    )
