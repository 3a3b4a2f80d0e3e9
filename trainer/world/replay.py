"""What if: a decision of a played window rebuilt exactly, and a new reply scored against what really happened.

Once the hour is rebuilt everything here is a pure function, so that two models can be compared on the same
decisions of the same hours. A replayed reply moves no prices: they are those of the tape.
"""

from __future__ import annotations

from dataclasses import dataclass

from data_bridge.models import AgentTrajectory, ChatMessage
from trainer.world.actions import Decision
from trainer.world.books import Book, instrument
from trainer.world.exchange import Tape, fill_price, marks
from trainer.world.guard import DEFAULT_LIMITS, Limits
from trainer.world.market import Hour, Market
from trainer.world.observation import Observation, observe
from trainer.world.player import judge_reply
from trainer.world.prompt import messages_for

NOMINAL_BALANCE = 10_000.0


@dataclass(frozen=True, slots=True)
class SimulatedWindow:
    """A played window as it is remembered: the world that made it, and the prices as they were."""

    window_id: str
    market: Market
    tape: Tape
    limits: Limits = DEFAULT_LIMITS

    def hour(self) -> Hour:
        return self.market.hour(self.window_id)


@dataclass(frozen=True, slots=True)
class DecisionPoint:
    """A moment at which an agent had to decide: exactly what it saw and owned then."""

    window_id: str
    step: int
    messages: tuple[ChatMessage, ...]
    seen: Observation
    book: Book
    gain: float
    """What the agent had made in the window before the decision."""
    tape: Tape
    limits: Limits


@dataclass(frozen=True, slots=True)
class ReplayScore:
    """What a reply at a decision point would have come to."""

    decision: Decision | None
    """None if the reply cannot be read."""
    is_valid: bool
    """Read, and not stopped by the guard."""
    is_blocked: bool
    """Stopped by the safety guard."""
    pnl: float
    """What the order would have made by the end of the window, in dollars; 0 for a failed action."""
    error: str | None


def decision_points(window: SimulatedWindow, trajectory: AgentTrajectory | None = None) -> list[DecisionPoint]:
    """The decision points of a window, in order.

    With a logged ``trajectory`` of the window, the agent's books are rebuilt by taking its replies again; without
    one, they are those of an agent with ``NOMINAL_BALANCE`` and no positions.
    """
    hour = window.hour()
    book = Book(NOMINAL_BALANCE, 0.0)
    if trajectory is not None:
        book = Book(trajectory.starting_balance or 0.0, trajectory.steps[0].state.lifetime_pnl or 0.0)
    points: list[DecisionPoint] = []
    for step, quotes in enumerate(window.tape.quotes):
        seen = observe(hour, step, quotes)
        gain = book.gain(marks(quotes))
        messages = tuple(messages_for(seen, window.market.stage))
        points.append(DecisionPoint(window.window_id, step, messages, seen, book, gain, window.tape, window.limits))
        if trajectory is not None and step < len(trajectory.steps) and (calls := trajectory.steps[step].llm_calls):
            book = _taken(book, points[-1], calls[-1].response)
    return points


def score_reply(point: DecisionPoint, reply: str) -> ReplayScore:
    """What ``reply`` would have come to at ``point``."""
    decision, error = judge_reply(reply, point.seen, point.book, point.gain, point.limits)
    if error is not None:
        return ReplayScore(decision, False, error.blocked, 0.0, str(error))
    if decision is None or not decision.market:
        return ReplayScore(decision, True, False, 0.0, None)
    price = fill_price(decision, point.tape.fills[point.step])
    alone = Book(point.book.balance, 0.0).filled(decision, price)
    position = alone.positions[instrument(decision)]
    return ReplayScore(decision, True, False, position.gain(point.tape.settlement[instrument(decision)]), None)


def _taken(book: Book, point: DecisionPoint, reply: str) -> Book:
    decision, error = judge_reply(reply, point.seen, point.book, point.gain, point.limits)
    if error is not None or decision is None:
        return book.with_error()
    if not decision.market:
        return book
    return book.filled(decision, fill_price(decision, point.tape.fills[point.step]))
