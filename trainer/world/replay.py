"""Replay: a decision of a played window is rebuilt exactly, and a new reply scored against what really happened.

Once the hour is rebuilt, everything here is a pure function, so that two models can be compared on the same
decisions of the same hours. A replayed reply does not move prices: they come from the tape.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import msgspec

from data_bridge.database import Database
from data_bridge.models import AgentTrajectory, ChatMessage
from trainer.ledger.simulation import played_windows
from trainer.world.actions import Decision
from trainer.world.exchange import Book, Tape, fill_price, instrument, marks
from trainer.world.guard import DEFAULT_LIMITS, TradingLimits, judge_reply
from trainer.world.market import EDITION, Hour, Market, StageName
from trainer.world.observation import Observation, messages_for, observe

logger = logging.getLogger(__name__)

NOMINAL_BALANCE = 10_000.0


@dataclass(frozen=True, slots=True)
class SimulatedWindow:
    """A played window as stored: the world that generated it, and its real prices."""

    window_id: str
    market: Market
    tape: Tape
    limits: TradingLimits = DEFAULT_LIMITS

    def hour(self) -> Hour:
        return self.market.hour(self.window_id)


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment at which an agent had to decide: exactly what it saw and owned then."""

    window_id: str
    step: int
    messages: tuple[ChatMessage, ...]
    seen: Observation
    book: Book
    gain: float
    """The agent's profit in the window before the decision."""
    tape: Tape
    limits: TradingLimits


@dataclass(frozen=True, slots=True)
class ReplayScore:
    """The result that a reply at a decision point would have had."""

    decision: Decision | None
    """None if the reply cannot be parsed."""
    is_valid: bool
    """Parsed, and not stopped by the guard."""
    is_blocked: bool
    """Stopped by the safety guard."""
    pnl: float
    """The order's profit by the end of the window, in dollars; 0 for a failed action."""
    error: str | None


async def load_windows(database: Database, window_ids: Iterable[str]) -> dict[str, SimulatedWindow]:
    """The simulated windows among ``window_ids``, ready to replay, without those of another edition of the world."""
    played = await played_windows(database, window_ids)
    others = [row.window_id for row in played if row.edition != EDITION]
    if others:
        logger.warning(
            "%d windows from %s to %s were played in another edition of the simulated market (Hindsight 0.1.0 had the "
            "first, this is edition %s) and cannot be replayed: what another decision would have earned is not known.",
            len(others),
            min(others),
            max(others),
            EDITION,
        )
    return {
        row.window_id: SimulatedWindow(
            row.window_id,
            Market(row.world_seed, row.luck, cast("StageName", row.stage), row.decisions),
            msgspec.json.decode(row.tape, type=Tape),
            msgspec.json.decode(row.limits, type=TradingLimits),
        )
        for row in played
        if row.edition == EDITION
    }


def decision_points(window: SimulatedWindow, trajectory: AgentTrajectory | None = None) -> list[Moment]:
    """The decision points of a window, in order.

    With a logged ``trajectory`` of the window, the agent's book is rebuilt from its replies; without one, it is that of
    an agent with ``NOMINAL_BALANCE`` and no positions.
    """
    hour = window.hour()
    book = Book(NOMINAL_BALANCE, 0.0)
    if trajectory is not None:
        book = Book(trajectory.starting_balance or 0.0, trajectory.steps[0].state.lifetime_pnl or 0.0)
    points: list[Moment] = []
    for step, quotes in enumerate(window.tape.quotes):
        seen = observe(hour, step, quotes)
        gain = book.gain(marks(quotes))
        messages = tuple(messages_for(seen, window.market.stage))
        points.append(Moment(window.window_id, step, messages, seen, book, gain, window.tape, window.limits))
        if trajectory is not None and step < len(trajectory.steps) and (calls := trajectory.steps[step].llm_calls):
            book = _taken(book, points[-1], calls[-1].response)
    return points


def score_reply(point: Moment, reply: str) -> ReplayScore:
    """The result that ``reply`` would have had at ``point``."""
    decision, error = judge_reply(reply, point.seen, point.book, point.gain, point.limits)
    if error is not None:
        return ReplayScore(decision, False, error.blocked, 0.0, str(error))
    if decision is None or not decision.market:
        return ReplayScore(decision, True, False, 0.0, None)
    price = fill_price(decision, point.tape.fills[point.step])
    alone = Book(point.book.balance, 0.0).filled(decision, price)
    position = alone.positions[instrument(decision)]
    return ReplayScore(decision, True, False, position.gain(point.tape.settlement[instrument(decision)]), None)


def _taken(book: Book, point: Moment, reply: str) -> Book:
    decision, error = judge_reply(reply, point.seen, point.book, point.gain, point.limits)
    if error is not None or decision is None:
        return book.with_error()
    if not decision.market:
        return book
    return book.filled(decision, fill_price(decision, point.tape.fills[point.step]))
