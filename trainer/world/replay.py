"""Replay: a decision of a played window is rebuilt exactly, and a new reply scored against what really happened.

Once the hour is rebuilt, everything here is a pure function, so that two models can be compared on the same
decisions of the same hours. A replayed reply moves no price and changes nobody else's errand: they come from the tape.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import msgspec

from data_bridge.database import Database
from data_bridge.models import AgentTrajectory, ChatMessage
from trainer.ledger.simulation import SimulatedWindowRow, played_windows
from trainer.world.exchange import NOMINAL_BALANCE
from trainer.world.rules import SimulatedWorld, WorldRules
from trainer.world.worlds import rules_of, world_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SimulatedWindow:
    """A played window as stored: the world that generated it, and what really happened."""

    window_id: str
    market: Any
    """The world."""
    tape: Any
    limits: Any = None

    def hour(self) -> Any:
        return self.market.hour(self.window_id)

    @cached_property
    def rules(self) -> WorldRules:
        return rules_of(self.market)


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment at which an agent had to decide: exactly what it saw and owned then."""

    window_id: str
    step: int
    messages: tuple[ChatMessage, ...]
    seen: Any
    book: Any
    gain: float
    """The agent's profit in the window before the decision."""
    tape: Any
    limits: Any
    rules: WorldRules
    own: Any = None
    """What the agent decided, if it could be carried out."""

    def read(self, reply: str) -> Any:
        """The decision in ``reply``, and why it cannot be carried out."""
        return self.rules.judge_reply(reply, self.seen, self.book, self.gain, self.limits)

    def result(self, decision: Any) -> float | None:
        """What a decision would have come to at once."""
        return self.rules.result(decision, self.seen, self.rules.fills_of(self.tape, self.step), self.own)


@dataclass(frozen=True, slots=True)
class ReplayScore:
    """The result that a reply at a decision point would have had."""

    decision: Any
    """None if the reply cannot be parsed."""
    is_valid: bool
    """Parsed, and not stopped by the guard."""
    is_blocked: bool
    """Stopped by the safety guard."""
    pnl: float
    """The decision's profit by the end of the window, in the world's money; 0 for a failed action."""
    error: str | None


async def load_windows(database: Database, window_ids: Iterable[str]) -> dict[str, SimulatedWindow]:
    """The simulated windows among ``window_ids``, ready to replay, without those of another edition of the world."""
    played = await played_windows(database, window_ids)
    worlds = {row.window_id: world_of(row.world_seed, row.luck, row.stage, row.decisions) for row in played}
    others = [row for row in played if row.edition != rules_of(worlds[row.window_id]).edition]
    if others:
        logger.warning(
            "%d windows from %s to %s were played in another edition of the simulated %s (Hindsight 0.1.0 had the "
            "first, this is edition %s) and cannot be replayed: what another decision would have earned is not known.",
            len(others),
            min(row.window_id for row in others),
            max(row.window_id for row in others),
            (world := worlds[others[0].window_id]).name,
            rules_of(world).edition,
        )
    return {row.window_id: _window(row, worlds[row.window_id]) for row in played if row not in others}


def _window(row: SimulatedWindowRow, world: SimulatedWorld) -> SimulatedWindow:
    rules = rules_of(world)
    tape = msgspec.json.decode(row.tape, type=rules.tape_type)
    return SimulatedWindow(row.window_id, world, tape, msgspec.json.decode(row.limits, type=type(rules.limits)))


def decision_points(window: SimulatedWindow, trajectory: AgentTrajectory | None = None) -> list[Moment]:
    """The decision points of a window, in order.

    With a logged ``trajectory`` of the window, the agent's book is rebuilt from its replies; without one, it is that of
    an agent with ``NOMINAL_BALANCE`` and no positions.
    """
    hour, rules = window.hour(), window.rules
    limits = rules.limits if window.limits is None else window.limits
    balance, lifetime = NOMINAL_BALANCE, 0.0
    if trajectory is not None:
        balance = trajectory.starting_balance or 0.0
        lifetime = trajectory.steps[0].state.lifetime_pnl or 0.0
    book = rules.begun(rules.book(balance, lifetime), hour)
    points: list[Moment] = []
    for step in range(len(hour.minutes)):
        quotes = rules.quotes_of(window.tape, step)
        seen, gain = rules.observe(hour, step, quotes, book), rules.gain(book, quotes)
        messages = tuple(rules.messages(seen, window.market.stage))
        point = Moment(window.window_id, step, messages, seen, book, gain, window.tape, limits, rules)
        if trajectory is not None and step < len(trajectory.steps) and (calls := trajectory.steps[step].llm_calls):
            decision, error = point.read(calls[-1].response)
            if error is None:
                point = replace(point, own=decision)
                book = rules.after(book, decision, seen, point.result(decision))
            else:
                book = book.with_error()
        points.append(point)
    return points


def score_reply(point: Moment, reply: str) -> ReplayScore:
    """The result that ``reply`` would have had at ``point``."""
    decision, error = point.read(reply)
    if error is not None:
        return ReplayScore(decision, False, error.blocked, 0.0, str(error))
    worth = point.rules.worth(decision, point.result(decision), point.book, point.tape)
    return ReplayScore(decision, True, False, worth, None)
