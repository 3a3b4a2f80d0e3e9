"""The exchange of one window: quotes, orders filled in one auction a decision, and the tape of what really happened.

All orders of a decision are filled together at the price that they move: who answered first makes no difference,
and nobody gains by moving the price against others of the same moment. The move stays for the rest of the hour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from trainer.world.actions import HOLD, NO, YES, Decision
from trainer.world.books import direction
from trainer.world.market import Hour

IMPACT = 0.005
"""How far a market moves when every agent puts its whole stake the same way."""


class Tape(msgspec.Struct, frozen=True):
    """The prices of a played hour, the agents' own influence included: all that a replay needs beside the hour."""

    quotes: tuple[dict[str, float], ...]
    """At each decision, before its orders."""
    fills: tuple[dict[str, float], ...]
    """At each decision, what its orders were filled at."""
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
        """Fill the orders of decision ``step`` (None for an agent without one); the prices they were filled at."""
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
        """The window is over: the tape, with what every instrument came to."""
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
    """What one unit of what the decision buys or sells costs."""
    price = fills[decision.market]
    return round(1 - price, 2) if decision.verb == NO else price


def marks(prices: Mapping[str, float]) -> dict[str, float]:
    """What one unit of every instrument is worth at ``prices``: tickers, and both sides of each question."""
    valued = dict(prices)
    for market, price in prices.items():
        if market.startswith("#"):
            valued[f"{market}:{YES}"] = price
            valued[f"{market}:{NO}"] = round(1 - price, 2)
    return valued
