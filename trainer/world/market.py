"""The market: hours generated from a seed, the same on any machine.

Every ticker has a regime: rising, quiet or falling. From hour to hour it stays with probability ``PERSISTENCE`` and is
drawn anew otherwise, so neighbouring hours are related, with a lag-1 correlation of exactly that. The news of the hour
tells the regime: good, bad, or pointing nowhere.

``luck`` is the probability that an hour's move has nothing to do with the news; the coin then decides. So with luck 0.2
one hour in ten goes against its news, with luck 1 every second. A quiet hour's move is always the coin's: acting on
news that points nowhere is worth nothing on average.

Prices persist. An hour starts where the last one ended, drawn back a tenth of the way to the ticker's usual price, and
an agent sees whether it went up or down: the outcome of an hour is visible in the next. Agents' orders move the price
within their hour only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import ClassVar, Literal

from data_bridge.models import NewsEvent, PredictionOutcome, StockOutcome, WindowOutcomes
from data_bridge.window_ids import start_of
from trainer.world import headlines
from trainer.world.chance import between, shuffled, unit
from trainer.world.grammar import FamilyName
from trainer.world.regimes import PERSISTENCE as PERSISTENCE
from trainer.world.regimes import QUIET as QUIET
from trainer.world.regimes import SAME_HOURS as SAME_TICKERS_HOURS
from trainer.world.regimes import coin, turn_of
from trainer.world.regimes import regime_of as regime_of
from trainer.world.vocabulary import EVENTS, TICKERS

EDITION = "2"
"""Of the world: its hours and its prompts. Stored with every window; a window of another edition is not replayed."""

MIN_MOVE, MAX_MOVE = 0.02, 0.05

_KEPT = 0.9
"""Of the distance to the usual price, from one hour to the next."""
_REMEMBERED_HOURS = 48
"""Of an older move less than a hundredth would be left."""

StageName = Literal["one", "several"]


@dataclass(frozen=True, slots=True)
class Stage:
    """The size of the market: worlds have stages from easy to hard."""

    name: StageName
    tickers: int
    predictions: int
    may_hold: bool
    """With one ticker HOLD is not offered: the only question is up or down."""


STAGES: dict[StageName, Stage] = {
    "one": Stage("one", tickers=1, predictions=0, may_hold=False),
    "several": Stage("several", tickers=3, predictions=1, may_hold=True),
}


@dataclass(frozen=True, slots=True)
class News:
    """A headline, the minute it is published, and its subject."""

    minute: float
    headline: str
    subject: str
    direction: int
    """What it says of its subject: up (+1), down (-1) or nothing (0)."""


@dataclass(frozen=True, slots=True)
class Ticker:
    """One stock's hour without the agents: prices at the start, at each decision, and at the end."""

    symbol: str
    last_hour_price: float
    """At the start of the hour before."""
    start_price: float
    step_prices: tuple[float, ...]
    end_price: float
    direction: int


@dataclass(frozen=True, slots=True)
class PredictionMarket:
    """A question that is open for all decisions but the last (if there are several) and resolves at the hour's end."""

    market_id: str
    label: str
    question: str
    yes_prices: tuple[float, ...]
    open_steps: int
    resolves_yes: bool
    direction: int


@dataclass(frozen=True, slots=True)
class Hour:
    """Everything that happens in a window, the future included. Agents only ever see an ``Observation`` of it."""

    window_id: str
    stage: Stage
    minutes: tuple[float, ...]
    """When the decisions are made."""
    tickers: tuple[Ticker, ...]
    predictions: tuple[PredictionMarket, ...]
    news: tuple[News, ...]


@dataclass(frozen=True, slots=True)
class Market:
    """A world: its seed, its luck, its stage, and the number of decisions per hour."""

    seed: int
    luck: float = 0.2
    stage: StageName = "one"
    decisions: int = 1

    name: ClassVar[str] = "market"

    def hour(self, window_id: str, words: FamilyName = "trained", tickers: FamilyName = "trained") -> Hour:
        """The hour of ``window_id``: a pure function of this world and the id.

        Agents play hours of trained words and tickers. The unseen ones are for questions only.
        """
        stage = STAGES[self.stage]
        number = int(start_of(window_id).timestamp()) // 3600
        minutes = decision_minutes(self.decisions)
        symbols = shuffled(TICKERS[tickers], self.seed, "symbols", number // SAME_TICKERS_HOURS)[: stage.tickers]
        traded = tuple(self._ticker(symbol, number, len(minutes)) for symbol in symbols)
        predictions = tuple(
            self._prediction(slot, window_id, number, len(minutes)) for slot in range(stage.predictions)
        )
        news = self._news(traded, predictions, minutes, number, words)
        return Hour(window_id, stage, minutes, traded, predictions, news)

    def _ticker(self, symbol: str, number: int, steps: int) -> Ticker:
        direction, move = regime_of(self.seed, symbol, number), _move(self.seed, self.luck, symbol, number)
        start = _start_price(self.seed, self.luck, symbol, number)
        paces = [between(0.5, 1.5, self.seed, "pace", symbol, number, step) for step in range(steps)]
        shares = [sum(paces[:step]) / sum(paces) for step in range(steps)]
        prices = tuple(round(start * (1 + move * share), 2) for share in shares)
        last_hour = _start_price(self.seed, self.luck, symbol, number - 1)
        return Ticker(symbol, round(last_hour, 2), round(start, 2), prices, round(start * (1 + move), 2), direction)

    def _prediction(self, slot: int, window_id: str, number: int, steps: int) -> PredictionMarket:
        key = (self.seed, "prediction", number, slot)
        direction = coin(*key, "direction")
        hint_comes_true = unit(*key, "luck") >= self.luck / 2
        events = shuffled(EVENTS, self.seed, "events", number)
        yes_prices = tuple(round(between(0.4, 0.6, *key, "odds", step), 2) for step in range(steps))
        return PredictionMarket(
            market_id=f"pm-{window_id}-{slot + 1}",
            label=f"#{slot + 1}",
            question=events[slot % len(events)],
            yes_prices=yes_prices,
            open_steps=max(1, steps - 1),
            resolves_yes=(direction > 0) == hint_comes_true,
            direction=direction,
        )

    def _news(
        self,
        tickers: tuple[Ticker, ...],
        predictions: tuple[PredictionMarket, ...],
        minutes: tuple[float, ...],
        number: int,
        words: FamilyName,
    ) -> tuple[News, ...]:
        """One headline per decision, two minutes before it: each subject in turn, in an order specific to the hour."""
        everything: list[Ticker | PredictionMarket] = [*tickers, *predictions]
        subjects = shuffled(everything, self.seed, "subjects", number)
        news: list[News] = []
        for step, minute in enumerate(minutes):
            subject = subjects[step % len(subjects)]
            key = (self.seed, "headline", number, step)
            if isinstance(subject, Ticker):
                text, name = headlines.headline(subject.symbol, subject.direction, words, *key), subject.symbol
            else:
                text, name = headlines.hint(subject.question, subject.direction, *key), subject.label
            news.append(News(minute - 2, text, name, subject.direction))
        return tuple(news)


@lru_cache(maxsize=1 << 14)
def _move(seed: int, luck: float, symbol: str, number: int) -> float:
    """How far the price moves in the hour after the first decision, as a share."""
    return turn_of(seed, luck, symbol, number) * between(MIN_MOVE, MAX_MOVE, seed, "move", symbol, number, "size")


@lru_cache(maxsize=1 << 12)
def _start_price(seed: int, luck: float, symbol: str, number: int) -> float:
    usual = between(40, 400, seed, "usual price", symbol)
    moves = (_move(seed, luck, symbol, number - back) for back in range(1, _REMEMBERED_HOURS + 1))
    return usual * math.exp(sum(_KEPT**back * math.log1p(move) for back, move in enumerate(moves, start=1)))


_SENTIMENTS = {1: ("bullish", "positive"), 0: ("neutral", "neutral"), -1: ("bearish", "negative")}
"""Of a stock and of a headline, in the game's words."""


def decision_minutes(decisions: int) -> tuple[float, ...]:
    """Decisions spread evenly over the hour, the first early enough to profit from the news."""
    return tuple(4 + 50 * step / decisions for step in range(decisions))


def moment(window_id: str, minute: float) -> datetime:
    """``minute`` of the window, as a time."""
    return start_of(window_id) + timedelta(minutes=minute)


def outcomes_of(hour: Hour, closing: dict[str, float], yes_closing: dict[str, float]) -> WindowOutcomes:
    """The ground truth of a played hour, as the game writes it."""
    stocks = tuple(
        StockOutcome(
            ticker=ticker.symbol.removeprefix("$"),
            start_price=ticker.start_price,
            end_price=closing[ticker.symbol],
            change_percent=round((closing[ticker.symbol] / ticker.start_price - 1) * 100, 2),
            sentiment=_SENTIMENTS[ticker.direction][0],
            news=tuple(
                NewsEvent(
                    headline=news.headline,
                    timestamp=moment(hour.window_id, news.minute),
                    sentiment=_SENTIMENTS[news.direction][1],
                )
                for news in hour.news
                if news.subject == ticker.symbol
            ),
        )
        for ticker in hour.tickers
    )
    predictions = tuple(
        PredictionOutcome(
            market_id=market.market_id,
            question=f"Will it happen: {market.question}?",
            outcome="YES" if market.resolves_yes else "NO",
            final_probability=yes_closing[market.label],
            volume=0.0,
        )
        for market in hour.predictions
    )
    return WindowOutcomes(stocks=stocks, predictions=predictions)
