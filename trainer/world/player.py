"""Plays hours: all agents of a window side by side, decision by decision. In memory; ``play`` stores them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from data_bridge.models import ChatMessage
from trainer.lesson import Lesson
from trainer.world.actions import ActionError, Decision
from trainer.world.agents import DEFAULT_EXPLORATION, Agent, AgentAnswer, Ask, Exploration
from trainer.world.exchange import Book, Exchange, Tape, fill_price, marks
from trainer.world.guard import DEFAULT_LIMITS, TradingLimits, judge_reply
from trainer.world.market import Hour, Market
from trainer.world.observation import Observation, messages_for, observe
from trainer.world.states import forbids_exploring, is_far_from_risk, state_of, thinness


@dataclass(frozen=True, slots=True)
class PlayedStep:
    """One decision of one agent at the time it was made, and the result from the exchange or the guard."""

    seen: Observation
    messages: Sequence[ChatMessage]
    answer: AgentAnswer
    decision: Decision | None
    """The decision in the reply, if it can be parsed; blocked or not."""
    error: ActionError | None
    book: Book
    """Before the decision."""
    gain: float
    """The agent's profit in the window before the decision."""
    price: float | None
    """The price at which the order was filled."""
    lessons: tuple[Lesson, ...] = ()
    """What the prompt showed of earlier hours."""


class PutLessons(Protocol):
    """Puts lessons into an agent's prompt."""

    async def put(
        self, messages: Sequence[ChatMessage], seen: Observation, agent: Agent
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
    after: Book

    @property
    def pnl(self) -> float:
        return self.after.lifetime_pnl - self.steps[0].book.lifetime_pnl


@dataclass(frozen=True, slots=True)
class PlayedHour:
    hour: Hour
    tape: Tape
    agents: tuple[AgentHour, ...]


@dataclass(frozen=True)
class Player:
    """A world with its agents. Keeps their accounts from window to window."""

    market: Market
    cast: Sequence[Agent]
    exploration: Exploration = DEFAULT_EXPLORATION
    limits: TradingLimits = DEFAULT_LIMITS
    markets: Mapping[str, Market] = field(default_factory=dict)
    """The windows that are played in another market than ``market``: those of a curriculum."""
    lessons: PutLessons | None = None

    @cached_property
    def _books(self) -> dict[str, Book]:
        return {agent.agent_id: Book(agent.starting_balance, 0.0) for agent in self.cast}

    def resume(self, books: Mapping[str, Book]) -> None:
        """Continue with the books of agents that have played before."""
        self._books.update(books)

    async def play(
        self, window_ids: Sequence[str], *, first_index: int = 0, lookahead: int = 0
    ) -> AsyncGenerator[PlayedHour, None]:
        """Play the windows in order. The first decisions of ``lookahead`` more windows are requested in advance.

        A first decision does not depend on earlier windows, so a model that batches can answer those of several
        windows together; the accounts are still updated strictly in order.
        """
        asked: deque[tuple[Hour, int, asyncio.Task[list[_Asked]]]] = deque()
        upcoming = iter(enumerate(window_ids, start=first_index))
        try:
            while True:
                while len(asked) <= self._ahead(lookahead) and (following := next(upcoming, None)) is not None:
                    index, window_id = following
                    hour = self._market(window_id).hour(window_id)
                    answers = self._ask(observe(hour, 0, Exchange(hour).quotes(0)), index, self._barred(hour, 0))
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

    def _market(self, window_id: str) -> Market:
        return self.markets.get(window_id, self.market)

    def _ahead(self, lookahead: int) -> int:
        """How many windows may be asked ahead: none while the result of the last could bar an agent from exploring."""
        if not self.exploration.is_careful:
            return lookahead
        books = ((self._books[agent.agent_id], agent.starting_balance) for agent in self.cast)
        return lookahead if all(is_far_from_risk(*one) for one in books) else 0

    def _barred(self, hour: Hour, step: int, books: Sequence[Book] = (), gains: Sequence[float] = ()) -> set[int]:
        """The places of agents that must not explore at this decision; without ``books``, at the start of the hour."""
        if not self.exploration.is_careful:
            return set()
        held = books or [self._books[agent.agent_id].next_window() for agent in self.cast]
        found = zip(self.cast, held, gains or [0.0] * len(held), strict=True)
        is_last = step == len(hour.minutes) - 1
        return {
            place
            for place, (agent, book, gain) in enumerate(found)
            if forbids_exploring(book, gain, agent.starting_balance, self.limits, is_last=is_last)
        }

    async def _ask(self, seen: Observation, window_index: int, barred: Collection[int]) -> list[_Asked]:
        """One answer per agent, in the cast's order, all requested concurrently."""
        market, exploration = self._market(seen.window_id), self.exploration
        messages = messages_for(seen, market.stage)
        decision = (market.seed, seen.window_id, seen.step)
        known = exploration.known_states
        share = 1.0 if known is None else thinness(state_of(seen), known)
        explorers = exploration.explorers(len(self.cast), window_index, *decision, share=share, barred=barred)

        async def ask(place: int, agent: Agent) -> _Asked:
            key = (*decision, agent.index)
            own, lessons = messages, tuple[Lesson, ...]()
            if self.lessons is not None:
                own, lessons = await self.lessons.put(messages, seen, agent)
            asked = Ask(own, seen, explorers.get(place), self.exploration, self.limits, key)
            return _Asked(own, await agent.policy.answer(asked), lessons)

        return list(await asyncio.gather(*(ask(place, agent) for place, agent in enumerate(self.cast))))

    async def _play_hour(self, hour: Hour, index: int, first_answers: list[_Asked]) -> PlayedHour:
        exchange = Exchange(hour)
        books = [self._books[agent.agent_id].next_window() for agent in self.cast]
        steps: list[list[PlayedStep]] = [[] for _ in self.cast]
        for step in range(len(hour.minutes)):
            quotes = exchange.quotes(step)
            seen = observe(hour, step, quotes)
            gains = [book.gain(marks(quotes)) for book in books]
            barred = self._barred(hour, step, books, gains)
            asked = first_answers if step == 0 else await self._ask(seen, index, barred)
            read = [
                judge_reply(one.answer.text, seen, book, gain, self.limits)
                for one, book, gain in zip(asked, books, gains, strict=True)
            ]
            fills = exchange.clear(step, [None if error else decision for decision, error in read])
            for number, (decision, error) in enumerate(read):
                order = decision if decision is not None and decision.market and error is None else None
                price = fill_price(order, fills) if order is not None else None
                own, before = asked[number], (books[number], gains[number])
                steps[number].append(
                    PlayedStep(seen, own.messages, own.answer, decision, error, *before, price, own.lessons)
                )
                if error is not None:
                    books[number] = books[number].with_error()
                elif order is not None and price is not None:
                    books[number] = books[number].filled(order, price)
        tape = exchange.close()
        played: list[AgentHour] = []
        for agent, book, taken in zip(self.cast, books, steps, strict=True):
            after = book.settled(tape.settlement)
            self._books[agent.agent_id] = after
            played.append(AgentHour(agent, tuple(taken), after))
        return PlayedHour(hour, tape, tuple(played))
