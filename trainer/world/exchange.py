"""The exchange of one window: quotes, one auction per decision that fills all orders, and the agents' accounts.

All orders of a decision are filled together at the price that results from them: it makes no difference who answered
first, and no agent gains by moving the price against the others. The move stays for the rest of the hour. The tape
records what really happened.

An agent's book contains what it owns in the window, what that is worth and its profit. Positions exist for one window:
they are opened against the balance, marked at every decision, and settled when the window closes. Orders are sized by
the *stake*, which is the balance at the start of the window: agents that make the same decisions get the same return,
whatever their balances are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from trainer.world.actions import BUY, HOLD, NO, SELL, YES, Decision
from trainer.world.market import Hour

IMPACT = 0.005
"""How far a market moves if every agent puts its whole stake in the same direction."""


NOMINAL_BALANCE = 10_000.0
"""Of an agent that is only asked."""


class Tape(msgspec.Struct, frozen=True):
    """The prices of a played hour, including the agents' own influence: all that a replay needs besides the hour."""

    quotes: tuple[dict[str, float], ...]
    """At each decision, before its orders."""
    fills: tuple[dict[str, float], ...]
    """At each decision, the prices at which its orders were filled."""
    closing: dict[str, float]
    """At the end of the hour; for a question, the last price of a YES."""
    settlement: dict[str, float]
    """What each instrument was worth when positions were settled."""


class Exchange:
    """Plays one hour's prices forward, decision by decision."""

    def __init__(self, hour: Hour) -> None:
        self.hour = hour
        self._moved: dict[str, float] = {}
        self._quotes: list[dict[str, float]] = []
        self._fills: list[dict[str, float]] = []

    def quotes(self, step: int) -> dict[str, float]:
        """Prices at decision ``step``, before its orders."""
        prices = {ticker.symbol: ticker.step_prices[step] for ticker in self.hour.tickers}
        prices |= {market.label: market.yes_prices[step] for market in self.hour.predictions}
        return {name: self._price(name, price) for name, price in prices.items()}

    def clear(self, step: int, decisions: Sequence[Decision | None]) -> dict[str, float]:
        """Fill the orders of decision ``step`` (None for an agent without one); returns the fill prices."""
        quotes = self.quotes(step)
        flow: dict[str, float] = {}
        for decision in decisions:
            if decision is not None and decision.verb != HOLD:
                flow[decision.market] = flow.get(decision.market, 0.0) + direction(decision) * decision.percent / 100
        for market, net in flow.items():
            self._moved[market] = self._moved.get(market, 0.0) + IMPACT * net / max(1, len(decisions))
        fills = self.quotes(step)
        self._quotes.append(quotes)
        self._fills.append(fills)
        return fills

    def close(self) -> Tape:
        """Close the window; returns the tape, with the final value of every instrument."""
        closing = {ticker.symbol: self._price(ticker.symbol, ticker.end_price) for ticker in self.hour.tickers}
        settlement = dict(closing)
        for market in self.hour.predictions:
            closing[market.label] = self._price(market.label, market.yes_prices[-1])
            settlement[f"{market.label}:{YES}"] = 1.0 if market.resolves_yes else 0.0
            settlement[f"{market.label}:{NO}"] = 0.0 if market.resolves_yes else 1.0
        return Tape(tuple(self._quotes), tuple(self._fills), closing, settlement)

    def _price(self, market: str, price: float) -> float:
        moved = round(price * (1 + self._moved.get(market, 0.0)), 2)
        return min(0.95, max(0.05, moved)) if market.startswith("#") else moved


def fill_price(decision: Decision, fills: Mapping[str, float]) -> float:
    """The price of one unit of what the decision buys or sells."""
    price = fills[decision.market]
    return round(1 - price, 2) if decision.verb == NO else price


def marks(prices: Mapping[str, float]) -> dict[str, float]:
    """The value of one unit of every instrument at ``prices``: tickers, and both sides of each question."""
    valued = dict(prices)
    for market, price in prices.items():
        if market.startswith("#"):
            valued[f"{market}:{YES}"] = price
            valued[f"{market}:{NO}"] = round(1 - price, 2)
    return valued


def direction(decision: Decision) -> int:
    """Which way the order pushes the price of its market."""
    return {BUY: 1, SELL: -1, YES: 1, NO: -1}.get(decision.verb, 0)


def instrument(decision: Decision) -> str:
    """The instrument held after the order: the ticker itself, or one side of a question."""
    return f"{decision.market}:{decision.verb}" if decision.verb in (YES, NO) else decision.market


@dataclass(frozen=True, slots=True)
class Holding:
    """Units held (negative: sold short) and the average price they were entered at."""

    units: float
    entry: float

    @property
    def committed(self) -> float:
        """The money committed to it."""
        return abs(self.units) * self.entry

    def gain(self, price: float) -> float:
        return self.units * (price - self.entry)


@dataclass(frozen=True, slots=True)
class Book:
    """The account of one agent in one window. Immutable: an order returns the next book."""

    balance: float
    """At the start of the window."""
    lifetime_pnl: float
    """At the start of the window."""
    positions: Mapping[str, Holding] = field(default_factory=dict)
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
        """The agent's profit in this window, with open positions at ``prices``."""
        return self.realised + sum(position.gain(prices[name]) for name, position in self.positions.items())

    def with_error(self) -> Book:
        return replace(self, errors=self.errors + 1)

    def filled(self, decision: Decision, price: float) -> Book:
        """The book after ``decision`` was filled at ``price`` (for NO: the price of a NO)."""
        name = instrument(decision)
        bought = decision.percent / 100 * self.stake / price
        units = -bought if decision.verb == SELL else bought
        held = self.positions.get(name, Holding(0.0, price))
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
            positions[name] = Holding(total, entry)
        else:
            realised += total * (price - entry)
        return replace(self, positions=positions, realised=realised, trades=self.trades + 1)

    def settled(self, prices: Mapping[str, float]) -> Book:
        """The book after the window closed at ``prices``: no positions left, balance and lifetime P&L carried over."""
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
