"""Plays hours: all agents of a window side by side, decision by decision. In memory; ``play`` stores them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from data_bridge.models import ChatMessage
from trainer.lesson import Lesson
from trainer.world.actions import ActionError
from trainer.world.agents import DEFAULT_EXPLORATION, Agent, AgentAnswer, Ask, Exploration
from trainer.world.rules import SimulatedWorld, WorldRules
from trainer.world.states import thinness
from trainer.world.worlds import rules_of


@dataclass(frozen=True, slots=True)
class PlayedStep:
    """One decision of one agent at the time it was made, and what the world or the guard made of it."""

    seen: Any
    messages: Sequence[ChatMessage]
    answer: AgentAnswer
    decision: Any
    """The decision in the reply, if it can be parsed (None if not); blocked or not."""
    error: ActionError | None
    book: Any
    """Before the decision."""
    gain: float
    """The agent's profit in the window before the decision."""
    price: float | None
    """What came of it at once: the price at which an order was filled, the coins of an errand."""
    lessons: tuple[Lesson, ...] = ()
    """What the prompt showed of earlier hours."""


class PutLessons(Protocol):
    """Puts lessons into an agent's prompt."""

    async def put(
        self, messages: Sequence[ChatMessage], seen: Any, agent: Agent
    ) -> tuple[list[ChatMessage], tuple[Lesson, ...]]: ...


@dataclass(frozen=True, slots=True)
class _Asked:
    """An agent's answer to exactly these messages."""

    messages: Sequence[ChatMessage]
    answer: AgentAnswer
    lessons: tuple[Lesson, ...] = ()


@dataclass(frozen=True, slots=True)
class AgentHour:
    """One agent's window: its decisions, and its book after the window has closed."""

    agent: Agent
    steps: tuple[PlayedStep, ...]
    after: Any

    @property
    def pnl(self) -> float:
        return float(self.after.lifetime_pnl - self.steps[0].book.lifetime_pnl)


@dataclass(frozen=True, slots=True)
class PlayedHour:
    hour: Any
    tape: Any
    agents: tuple[AgentHour, ...]


@dataclass(frozen=True)
class Player:
    """A world with its agents. Keeps their accounts from window to window."""

    market: SimulatedWorld
    cast: Sequence[Agent]
    exploration: Exploration = DEFAULT_EXPLORATION
    limits: Any = None
    """Unset: the usual ones of the world."""
    markets: Mapping[str, SimulatedWorld] = field(default_factory=dict)
    """The windows that are played in another world than ``market``: those of a curriculum."""
    lessons: PutLessons | None = None

    @cached_property
    def _rules(self) -> WorldRules:
        return rules_of(self.market)

    @cached_property
    def _limits(self) -> Any:
        return self._rules.limits if self.limits is None else self.limits

    @cached_property
    def _books(self) -> dict[str, Any]:
        return {agent.agent_id: self._rules.book(agent.starting_balance, 0.0) for agent in self.cast}

    def resume(self, books: Mapping[str, Any]) -> None:
        """Continue with the books of agents that have played before."""
        self._books.update(books)

    async def play(
        self, window_ids: Sequence[str], *, first_index: int = 0, lookahead: int = 0
    ) -> AsyncGenerator[PlayedHour, None]:
        """Play the windows in order. The first decisions of ``lookahead`` more windows are requested in advance.

        A first decision does not depend on earlier windows, so a model that batches can answer those of several
        windows together; the accounts are still updated strictly in order.
        """
        asked: deque[tuple[Any, int, asyncio.Task[list[_Asked]]]] = deque()
        upcoming = iter(enumerate(window_ids, start=first_index))
        try:
            while True:
                while len(asked) <= self._ahead(lookahead) and (following := next(upcoming, None)) is not None:
                    index, window_id = following
                    hour = self._market(window_id).hour(window_id)
                    answers = self._ask(self._first_seen(hour), index, self._barred(hour, 0))
                    asked.append((hour, index, asyncio.create_task(answers, name=f"ask {window_id}")))
                if not asked:
                    return
                hour, index, first = asked.popleft()
                yield await self._play_hour(hour, index, await first)
        finally:
            unused = [waiting for _, _, waiting in asked]
            for waiting in unused:
                waiting.cancel()
            await asyncio.gather(*unused, return_exceptions=True)

    def _market(self, window_id: str) -> SimulatedWorld:
        return self.markets.get(window_id, self.market)

    def _begun(self, hour: Any) -> list[Any]:
        return [self._rules.begun(self._books[agent.agent_id], hour) for agent in self.cast]

    def _first_seen(self, hour: Any) -> list[Any]:
        return self._seen(hour, 0, self._rules.table(hour).quotes(0), self._begun(hour))

    def _seen(self, hour: Any, step: int, quotes: Any, books: Sequence[Any]) -> list[Any]:
        return [self._rules.observe(hour, step, quotes, book) for book in books]

    def _ahead(self, lookahead: int) -> int:
        """How many windows may be asked ahead: none while the result of the last could bar an agent from exploring."""
        if not self.exploration.is_careful:
            return lookahead
        books = ((self._books[agent.agent_id], agent.starting_balance) for agent in self.cast)
        return lookahead if all(self._rules.is_far_from_risk(*one) for one in books) else 0

    def _barred(self, hour: Any, step: int, books: Sequence[Any] = (), gains: Sequence[float] = ()) -> set[int]:
        """The places of agents that must not explore at this decision; without ``books``, at the start of the hour."""
        if not self.exploration.is_careful:
            return set()
        held = books or self._begun(hour)
        found = zip(self.cast, held, gains or [0.0] * len(held), strict=True)
        is_last = step == len(hour.minutes) - 1
        return {
            place
            for place, (agent, book, gain) in enumerate(found)
            if self._rules.forbids_exploring(book, gain, agent.starting_balance, self._limits, is_last=is_last)
        }

    async def _ask(self, seen: Sequence[Any], window_index: int, barred: Collection[int]) -> list[_Asked]:
        """One answer per agent to what it sees, in the cast's order, all requested concurrently."""
        rules, exploration = self._rules, self.exploration
        first = seen[0]
        market = self._market(first.window_id)
        decision = (market.seed, first.window_id, first.step)
        known = exploration.known_states
        share = 1.0 if known is None else thinness(rules.state_of(first), known)
        explorers = exploration.explorers(len(self.cast), window_index, *decision, share=share, barred=barred)
        common = rules.messages(first, market.stage)

        async def ask(place: int, agent: Agent) -> _Asked:
            view = seen[place]
            own = common if view == first else rules.messages(view, market.stage)
            lessons = tuple[Lesson, ...]()
            if self.lessons is not None:
                own, lessons = await self.lessons.put(own, view, agent)
            key = (*decision, agent.index)
            asked = Ask(own, view, explorers.get(place), exploration, self._limits, key, rules)
            return _Asked(own, await agent.policy.answer(asked), lessons)

        return list(await asyncio.gather(*(ask(place, agent) for place, agent in enumerate(self.cast))))

    async def _play_hour(self, hour: Any, index: int, first_answers: list[_Asked]) -> PlayedHour:
        rules, limits = self._rules, self._limits
        table, books = rules.table(hour), self._begun(hour)
        steps: list[list[PlayedStep]] = [[] for _ in self.cast]
        for step in range(len(hour.minutes)):
            quotes = table.quotes(step)
            seen = self._seen(hour, step, quotes, books)
            gains = [rules.gain(book, quotes) for book in books]
            asked = first_answers if step == 0 else await self._ask(seen, index, self._barred(hour, step, books, gains))
            read = [
                rules.judge_reply(one.answer.text, view, book, gain, limits)
                for one, view, book, gain in zip(asked, seen, books, gains, strict=True)
            ]
            fills = table.clear(step, [None if error else decision for decision, error in read])
            for number, (decision, error) in enumerate(read):
                own, view, before = asked[number], seen[number], (books[number], gains[number])
                result = rules.result(decision, view, fills, decision) if error is None else None
                steps[number].append(
                    PlayedStep(view, own.messages, own.answer, decision, error, *before, result, own.lessons)
                )
                if error is None:
                    books[number] = rules.after(books[number], decision, view, result)
                else:
                    books[number] = books[number].with_error()
        tape = table.close()
        played: list[AgentHour] = []
        for agent, book, taken in zip(self.cast, books, steps, strict=True):
            after = rules.settled(book, tape)
            self._books[agent.agent_id] = after
            played.append(AgentHour(agent, tuple(taken), after))
        return PlayedHour(hour, tape, tuple(played))
