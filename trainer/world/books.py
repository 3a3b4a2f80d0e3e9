"""An agent's books: what it owns in the window, what that is worth, what it has made.

Positions live for one window: they are opened against the balance, marked at every decision, and settled when the
window closes. Orders are sized by the *stake*, which is the balance at the start of the window: agents that decide
the same make the same return, whatever their balances are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from trainer.world.actions import BUY, NO, SELL, YES, Decision


def instrument(decision: Decision) -> str:
    """What is held after the order: the ticker itself, or one side of a question."""
    return f"{decision.market}:{decision.verb}" if decision.verb in (YES, NO) else decision.market


@dataclass(frozen=True, slots=True)
class Position:
    """Units held (negative: sold short) and the average price they were entered at."""

    units: float
    entry: float

    @property
    def committed(self) -> float:
        """The money that stands behind it."""
        return abs(self.units) * self.entry

    def gain(self, price: float) -> float:
        return self.units * (price - self.entry)


@dataclass(frozen=True, slots=True)
class Book:
    """The books of one agent in one window. Immutable: an order gives the next book."""

    balance: float
    """At the start of the window."""
    lifetime_pnl: float
    """At the start of the window."""
    positions: Mapping[str, Position] = field(default_factory=dict)
    realised: float = 0.0
    trades: int = 0
    errors: int = 0

    @property
    def stake(self) -> float:
        return max(0.0, self.balance)

    @property
    def committed(self) -> float:
        return sum(position.committed for position in self.positions.values())

    def gain(self, prices: Mapping[str, float]) -> float:
        """What the agent has made in this window, open positions at ``prices``."""
        return self.realised + sum(position.gain(prices[name]) for name, position in self.positions.items())

    def with_error(self) -> Book:
        return replace(self, errors=self.errors + 1)

    def filled(self, decision: Decision, price: float) -> Book:
        """The book after ``decision`` was filled at ``price`` (for NO: the price of a NO)."""
        name = instrument(decision)
        bought = decision.percent / 100 * self.stake / price
        units = -bought if decision.verb == SELL else bought
        held = self.positions.get(name, Position(0.0, price))
        realised = self.realised
        if held.units * units >= 0:
            total = held.units + units
            entry = (held.units * held.entry + units * price) / total if total else price
        else:
            closed = min(abs(held.units), abs(units)) * (1 if held.units > 0 else -1)
            realised += closed * (price - held.entry)
            total = held.units + units
            entry = held.entry if held.units * total > 0 else price
        positions = dict(self.positions)
        positions.pop(name, None)
        if abs(total) * price > 0.005:
            positions[name] = Position(total, entry)
        else:
            realised += total * (price - entry)
        return replace(self, positions=positions, realised=realised, trades=self.trades + 1)

    def settled(self, prices: Mapping[str, float]) -> Book:
        """The book after the window closed at ``prices``: no positions left, balance and lifetime P&L carried on."""
        gain = round(self.gain(prices), 2)
        return replace(
            self,
            balance=round(self.balance + gain, 2),
            lifetime_pnl=round(self.lifetime_pnl + gain, 2),
            positions={},
            realised=0.0,
        )

    def next_window(self) -> Book:
        return replace(self, positions={}, realised=0.0, trades=0, errors=0)


def direction(decision: Decision) -> int:
    """Which way the order pushes the price of its market."""
    return {BUY: 1, SELL: -1, YES: 1, NO: -1}.get(decision.verb, 0)
