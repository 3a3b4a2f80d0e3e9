"""What an agent did, read off its actions, and what the game's own prices made of it.

Only the decision itself is taken from a row: what was bought or sold, and how much of the balance it was worth. What a
row says of the result (prices, P&L, balances, success) is a claim of whoever wrote it, and no result here is computed
from one. ``contradiction`` compares the claims with the game's prices: a row whose books cannot be true is left out.

Games name their actions and parameters differently (``BUY``, ``OPEN_LONG``, ``TRADE`` with a ``side``); what cannot be
read stays unknown and is never assumed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any

from data_bridge.models import Action, AgentTrajectory, PredictionOutcome, StockOutcome, WindowOutcomes

NOT_TRADES = frozenset(
    {
        *("HOLD", "WAIT", "PASS", "SKIP", "NONE", "NOOP", "NO_OP", "NO_ACTION", "NO_TRADE", "DO_NOTHING", "OBSERVE"),
        *("POST", "CREATE_POST", "LIKE_POST", "UNLIKE_POST", "SHARE_POST", "REPOST"),
        *("COMMENT", "CREATE_COMMENT", "COMMENT_ON_POST", "REPLY", "REPLY_TO_COMMENT", "RESPOND"),
        *(
            "DM",
            "SEND_DM",
            "MESSAGE",
            "SEND_MESSAGE",
            "GROUP_MESSAGE",
            "SEND_GROUP_MESSAGE",
            "JOIN_GROUP",
            "LEAVE_CHAT",
        ),
        *("FOLLOW", "FOLLOW_USER", "UNFOLLOW", "UNFOLLOW_USER"),
    }
)
"""The actions of the game and of the simulated market that stake nothing. Any other that is no trade is not known."""

FAR_FACTOR = 10.0
"""A price ten times beyond both the first and the last one of the window was never quoted: the market would have had
to multiply tenfold within the hour and come back."""

WITHIN_THE_HOUR = 0.25
"""What a stake may make or lose beyond the market's move from start to end: prices in between, fees, rounding."""

BET_RETURN = 99.0
"""The largest return of a bet: a share bought at one per cent that wins."""

SMALL_CHANGE = 1.0
"""Money that is never a contradiction."""

_FOR = frozenset({"BUY", "LONG", "YES", "UP"})
_AGAINST = frozenset({"SELL", "SHORT", "NO", "DOWN"})
_CLOSING = frozenset({"CLOSE", "CANCEL", "EXIT"})
_TRADING = (
    _FOR | _AGAINST | _CLOSING | {"TRADE", "TRADING", "OPEN", "BET", "ORDER", "SWAP", "PERP", "POSITION", "SHARES"}
)
_TICKER = ("ticker", "stockTicker", "symbol", "stock", "asset")
_MARKET = ("marketId", "market_id", "predictionMarketId", "questionId", "market")
_SIDE = ("side", "direction", "outcome", "prediction", "position")
_PERCENT = ("percent", "percentage", "sizePercent", "size_percent")
_SHARE = ("fraction", "share")
_MONEY = ("amount", "value", "usd", "cost", "collateral")
_PRICE = ("price", "executionPrice", "entryPrice", "avgPrice", "fillPrice")
_RESOLVED_YES = ("YES", "TRUE")
_RESOLVED_NO = ("NO", "FALSE")
_MAX_NUMBER = 1e15  # an agent's number beyond this is as meaningless as NaN
_MAX_LEVERAGE = 1_000.0
_BETWEEN_WORDS = re.compile(r"[^A-Z]+")
_MAX_NAME = 200  # characters: no action or market has a longer name, and none is remembered whole
_MAX_DIGITS = 40  # characters of a number that is written as text


class Deed(StrEnum):
    """What kind of thing an action is."""

    FAILED = "failed"
    """Its own row says that nothing came of it; believed, since nobody gains by saying so."""
    NO_TRADE = "no_trade"
    """One of ``NOT_TRADES``."""
    STAKE = "stake"
    CLOSE = "close"
    """Ends a position or an order."""
    UNCLEAR = "unclear"
    """A trade whose market, direction or market's outcome is not known."""
    UNKNOWN = "unknown"
    """No action of this game, whatever its row says of its success."""


@dataclass(frozen=True, slots=True)
class Stake:
    """One stake that an agent took. ``direction`` is +1 for the market (long, yes), -1 against it."""

    market: str
    """As the game's table spells it."""
    is_bet: bool
    """Whether it is on a prediction market."""
    direction: int
    share: float | None
    """Share of the balance, if the decision names one: what share an amount of money was is only claimed."""
    move: float
    """The market's return over the window by the game's prices; for a bet +1 if YES was right and -1 if NO was."""

    @property
    def gain(self) -> float:
        """Return of the stake over the window, as a fraction; a bet wins or loses at even odds."""
        return self.direction * self.move

    @property
    def result(self) -> str:
        """What came of it, in words."""
        if self.is_bet:
            return f"resolved {'YES' if self.move > 0 else 'NO'}: {'right' if self.gain > 0 else 'wrong'}"
        return f"price {self.move:+.2%} over the window, so the stake came to {self.gain:+.2%} by its end"


@dataclass(frozen=True, slots=True)
class Reading:
    """What one action did."""

    deed: Deed
    market: str | None = None
    """The market of a stake or of what was closed, where it is one of the window's."""
    stake: Stake | None = None
    unknown: str | None = None
    """Why nothing is known of what came of it."""

    @property
    def result(self) -> str | None:
        """What came of it by the game's prices, in words; None if there is nothing to say."""
        return self.unknown if self.stake is None else self.stake.result


def read_action(action: Action, outcomes: WindowOutcomes) -> Reading:
    """What ``action`` did, and what the window's prices made of it."""
    if action.is_pending or action.failure is not None:
        return Reading(Deed.FAILED)
    if action.kind in NOT_TRADES:
        return Reading(Deed.NO_TRADE)
    words, side = _words(action.kind[:_MAX_NAME]), _words((_text(action.parameters, _SIDE) or "")[:_MAX_NAME])
    market = _market(action.parameters, outcomes)
    name = None if market is None else market.ticker if isinstance(market, StockOutcome) else market.market_id
    if (words | side) & _CLOSING:
        return Reading(Deed.CLOSE, name)
    direction = _direction(side) or _direction(words)  # a parameter says it more exactly than the action's name
    if not words & _TRADING:
        return Reading(Deed.UNKNOWN, unknown="not known: the game has no such action")
    if direction is None:
        return Reading(Deed.UNCLEAR, name, unknown="not known: for or against which market is not said")
    if market is None or name is None:
        return Reading(Deed.UNCLEAR, unknown="not known: the game has no outcome of this market")
    share = _share(action.parameters)
    if isinstance(market, PredictionOutcome):
        return _bet(market, direction, share)
    return _in_stock(market, direction, share)


def choice_of(action: Action) -> str | None:
    """What ``action`` chooses in one spelling, without its size: ``BUY COIN``, ``NO m1``, ``HOLD``; None if unclear.

    Two actions with the same choice are right or wrong together.
    """
    if action.is_pending:
        return None
    if action.kind in NOT_TRADES:
        return action.kind
    words, side = _words(action.kind[:_MAX_NAME]), _words((_text(action.parameters, _SIDE) or "")[:_MAX_NAME])
    ticker, market = _text(action.parameters, _TICKER), _text(action.parameters, _MARKET)
    name = _ticker((ticker or market or "")[:_MAX_NAME])
    if (words | side) & _CLOSING:
        return f"CLOSE {name}".strip()
    direction = _direction(side) or _direction(words)
    if direction is None or not name or not words & _TRADING:
        return None
    verbs = ("BUY", "SELL") if ticker is not None else ("YES", "NO")
    return f"{verbs[0] if direction > 0 else verbs[1]} {name}"


def readings_of(actions: Iterable[Action], outcomes: WindowOutcomes) -> list[Reading]:
    """What each action did, in order."""
    return [read_action(action, outcomes) for action in actions]


def net_stakes(readings: Sequence[Reading], unsized: float) -> list[Stake] | None:
    """What is left of the stakes at the end of the window: one for each market, together at most the whole balance.

    A stake whose share is not known counts as ``unsized``. None if it cannot be told: a trade is unclear, or what was
    closed is not said.
    """
    shares: dict[str, float] = {}
    last: dict[str, Stake] = {}
    for reading in readings:
        if reading.deed is Deed.UNCLEAR or (reading.deed is Deed.CLOSE and reading.market is None and shares):
            return None
        if reading.deed is Deed.CLOSE and reading.market is not None:
            shares.pop(reading.market, None)
        if (stake := reading.stake) is not None:
            size = unsized if stake.share is None else stake.share
            shares[stake.market] = shares.get(stake.market, 0.0) + stake.direction * size
            last[stake.market] = stake
    whole = max(1.0, sum(abs(share) for share in shares.values()))
    return [
        replace(last[market], direction=1 if share > 0 else -1, share=abs(share) / whole)
        for market, share in shares.items()
        if share
    ]


_EVEN = 0.1
"""The share of the balance that a stake counts for in ``gain_of`` if its decision names none."""


def gain_of(trajectory: AgentTrajectory, outcomes: WindowOutcomes) -> float | None:
    """What the decisions gained by the window's prices, as a share of the balance; None if it cannot be told."""
    held = net_stakes(readings_of(trajectory.actions, outcomes), _EVEN)
    return None if held is None else sum((stake.share or 0.0) * stake.gain for stake in held)


def claimed_price(action: Action) -> float | None:
    """The price at which the row says that its order was filled."""
    price = _number(action.result, _PRICE) if isinstance(action.result, Mapping) else None
    return price or None


def contradiction(trajectory: AgentTrajectory, outcomes: WindowOutcomes) -> str | None:
    """Why the row's books cannot be true by the game's own prices, in one sentence; None if they can.

    A price is checked wherever the market's prices are known; the profit only if everything that could have made it is
    in the row: no position at the start, nothing closed, and every stake with an amount and an outcome. The tolerance
    is wide on purpose, since no result is computed from a claim: an honest row must never be hit.
    """
    low, high = -SMALL_CHANGE, SMALL_CHANGE
    is_complete = trajectory.steps[0].state.open_positions == 0 if trajectory.steps else False
    for step in trajectory.steps:
        if step.action is None:
            continue
        reading = read_action(step.action, outcomes)
        stake = reading.stake
        if stake is None:
            is_complete &= reading.deed in (Deed.FAILED, Deed.NO_TRADE)
            continue
        if not stake.is_bet and (told := _far_price(step.action, stake.market, outcomes)) is not None:
            return told
        money = _number(step.action.parameters, _MONEY)
        if money is None:
            is_complete = False
            continue
        money *= min(max(_number(step.action.parameters, ("leverage",)) or 1.0, 1.0), _MAX_LEVERAGE)
        reach = abs(stake.move) + WITHIN_THE_HOUR
        low -= money * (1.0 if stake.is_bet else reach)
        high += money * (BET_RETURN if stake.is_bet else reach)
    claimed = trajectory.window_pnl
    if not is_complete or claimed is None or low <= claimed <= high:
        return None
    return f"claims a profit of {claimed:.6g}, but its stakes could only make between {low:.6g} and {high:.6g}"


def _far_price(action: Action, ticker: str, outcomes: WindowOutcomes) -> str | None:
    stock = next(stock for stock in outcomes.stocks if stock.ticker == ticker)
    price, known = claimed_price(action), (stock.start_price, stock.end_price)
    if price is None or not all(known):
        return None
    low, high = sorted(one for one in known if one is not None)
    if low / FAR_FACTOR <= price <= high * FAR_FACTOR:
        return None
    return f"claims a price of {price:.6g} for {ticker}, which stood between {low:.6g} and {high:.6g}"


def _in_stock(stock: StockOutcome, direction: int, share: float | None) -> Reading:
    move: float | None = None
    if stock.start_price and stock.end_price is not None:
        move = stock.end_price / stock.start_price - 1
    elif stock.change_percent is not None:
        move = stock.change_percent / 100
    if move is None:
        return Reading(Deed.UNCLEAR, stock.ticker, unknown="not known: no price at the end of the window")
    return Reading(Deed.STAKE, stock.ticker, Stake(stock.ticker, False, direction, share, move))


def _bet(market: PredictionOutcome, direction: int, share: float | None) -> Reading:
    resolved = (market.outcome or "").strip().upper()
    if resolved not in (*_RESOLVED_YES, *_RESOLVED_NO):
        return Reading(Deed.UNCLEAR, market.market_id, unknown="not known: the market is not resolved")
    stake = Stake(market.market_id, True, direction, share, 1.0 if resolved in _RESOLVED_YES else -1.0)
    return Reading(Deed.STAKE, market.market_id, stake)


def _market(parameters: Mapping[str, Any], outcomes: WindowOutcomes) -> StockOutcome | PredictionOutcome | None:
    """The market of this window that the parameters name. A perpetual's ticker may be its market id."""
    for names in (_TICKER, _MARKET):
        name = _text(parameters, names)
        if name is None:
            continue
        ticker = _ticker(name[:_MAX_NAME])
        for stock in outcomes.stocks:
            if _ticker(stock.ticker) == ticker:
                return stock
        for market in outcomes.predictions:
            if market.market_id == name:
                return market
    return None


@lru_cache(maxsize=4096)
def _words(name: str) -> frozenset[str]:
    return frozenset(_BETWEEN_WORDS.split(name.upper()))


@lru_cache(maxsize=4096)
def _ticker(name: str) -> str:
    return name.strip().lstrip("$").upper()


def _direction(words: frozenset[str]) -> int | None:
    """Buying ``NO`` is a stake against the market."""
    if words & _AGAINST:
        return -1
    return 1 if words & _FOR else None


def _share(parameters: Mapping[str, Any]) -> float | None:
    percent = _number(parameters, _PERCENT)
    return percent / 100 if percent is not None else _number(parameters, _SHARE)


def _text(values: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    for name in names:
        value = values.get(name)
        if isinstance(value, str) and value.strip():
            return value
    return None


def _number(values: Mapping[str, Any], names: tuple[str, ...]) -> float | None:
    """The size of the first of these that is a number; texts such as ``"20%"`` are read too."""
    for name in names:
        value = values.get(name)
        if value is None:
            continue
        if isinstance(value, str):
            try:
                value = float(value.strip().rstrip("%")) if len(value) <= _MAX_DIGITS else None
            except ValueError:
                continue
        if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _MAX_NUMBER:
            return abs(float(value))
    return None
