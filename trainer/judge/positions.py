"""What an agent staked on which market, and what came of it: read off its actions and the window's outcomes.

Games name their actions and parameters differently (``BUY``, ``OPEN_LONG``, ``TRADE`` with a ``side``);
what cannot be read is left unknown, never assumed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from data_bridge.models import Action, AgentTrajectory, MarketOutcomes

_FOR = frozenset({"BUY", "LONG", "YES", "UP"})
_AGAINST = frozenset({"SELL", "SHORT", "NO", "DOWN"})
_CLOSING = frozenset({"CLOSE", "CANCEL", "EXIT"})
_TICKER = ("ticker", "stockTicker", "symbol", "stock", "asset")
_MARKET = ("marketId", "market_id", "predictionMarketId", "questionId", "market")
_SIDE = ("side", "direction", "outcome", "prediction", "position")
_AMOUNT = ("amount", "value", "usd", "cost", "collateral", "size")
_PERCENT = ("percent", "percentage", "sizePercent", "size_percent")
_SHARE = ("fraction", "share")
_LARGEST = 1e15  # beyond it, as with NaN, a figure of an agent's means nothing
_PRICE = ("price", "executionPrice", "entryPrice", "avgPrice", "fillPrice")


@dataclass(frozen=True, slots=True)
class Position:
    """One stake that was taken. ``direction`` is +1 for the market (long, yes), -1 against it."""

    market: str
    direction: int
    share: float | None
    """Of the balance the agent started the window with; None if the size cannot be read."""
    gain: float | None
    """Return of the stake by the end of the window, as a fraction; None if it cannot be known."""
    came_of_it: str


def position_of(action: Action, trajectory: AgentTrajectory, outcomes: MarketOutcomes) -> Position | None:
    """The stake that ``action`` took, or None if it took none (it failed, closed one, or was no trade)."""
    words = set(re.split(r"[^A-Z]+", action.kind))
    if action.failure is not None or words & _CLOSING:
        return None
    direction = _direction(words, action.parameters)
    if direction is None:
        return None
    share = _share_of_balance(action.parameters, trajectory.starting_balance)
    market_id = _text(action.parameters, _MARKET)
    ticker = _text(action.parameters, _TICKER)
    if ticker is not None:
        return _in_stock(ticker.lstrip("$").upper(), direction, share, _entry_price(action), outcomes)
    if market_id is not None:
        return _in_prediction(market_id, direction, share, outcomes)
    return None


def positions_of(trajectory: AgentTrajectory, outcomes: MarketOutcomes) -> list[Position]:
    found = (position_of(action, trajectory, outcomes) for action in trajectory.actions)
    return [position for position in found if position is not None]


def _in_stock(
    ticker: str, direction: int, share: float | None, entry: float | None, outcomes: MarketOutcomes
) -> Position:
    stock = next((stock for stock in outcomes.stocks if stock.ticker.lstrip("$").upper() == ticker), None)
    if stock is None:
        return Position(ticker, direction, share, None, "not known: no outcome of this market")
    start = entry or stock.start_price
    move: float | None = None
    if start and stock.end_price is not None:
        move = stock.end_price / start - 1
    elif stock.change_percent is not None:
        move = stock.change_percent / 100
    if move is None:
        return Position(ticker, direction, share, None, "not known: no price at the end of the window")
    since = "since the trade" if entry else "over the window"
    told = f"price {move:+.2%} {since}, so the stake came to {direction * move:+.2%} by its end"
    return Position(ticker, direction, share, direction * move, told)


def _in_prediction(market_id: str, direction: int, share: float | None, outcomes: MarketOutcomes) -> Position:
    market = next((market for market in outcomes.predictions if market.market_id == market_id), None)
    resolved = (market.outcome or "").strip().upper() if market else ""
    if resolved not in ("YES", "NO", "TRUE", "FALSE"):
        return Position(market_id, direction, share, None, "not known: the market is not resolved")
    won = (direction > 0) == (resolved in ("YES", "TRUE"))
    told = f"resolved {resolved}: {'right' if won else 'wrong'}"
    return Position(market_id, direction, share, None, told)


def _direction(words: set[str], parameters: Mapping[str, Any]) -> int | None:
    """``side`` and its kin decide; else the action's name. Buying ``NO`` is a stake against the market."""
    side = (_text(parameters, _SIDE) or "").strip().upper()
    for named in ({side}, words):
        if named & _AGAINST:
            return -1
        if named & _FOR:
            return 1
    return None


def _share_of_balance(parameters: Mapping[str, Any], balance: float | None) -> float | None:
    percent = _number(parameters, _PERCENT)
    if percent is not None:
        return percent / 100
    share = _number(parameters, _SHARE)
    if share is not None:
        return share
    amount = _number(parameters, _AMOUNT)
    return amount / balance if amount is not None and balance is not None and balance > 0 else None


def _entry_price(action: Action) -> float | None:
    result = action.result if isinstance(action.result, Mapping) else {}
    price = _number(result, _PRICE)
    return price if price is not None and price > 0 else None


def _text(values: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    return next((values[name] for name in names if isinstance(values.get(name), str) and values[name].strip()), None)


def _number(values: Mapping[str, Any], names: tuple[str, ...]) -> float | None:
    for name in names:
        value = values.get(name)
        if isinstance(value, str):
            try:
                value = float(value.strip().rstrip("%"))
            except ValueError:
                continue
        if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _LARGEST:
            return abs(float(value))
    return None
