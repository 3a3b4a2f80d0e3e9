"""The market: hours generated from a seed, the same on any machine.

Every ticker has a hidden direction for the hour. The news reveals it; ``luck`` decides how closely the price follows
it: the move after the first decision is ``(1 - luck) · signal + luck · noise``.

Hours come in pairs with opposite news and equal noise. So up and down are balanced over any sequence of hours, and what
agents that follow the news gain by chance in one hour they lose in the other: at luck 1 following the news is worth
nothing over a pair, not only in the limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from data_bridge.models import MarketOutcomes, NewsEvent, PredictionOutcome, StockOutcome
from data_bridge.window_ids import start_of
from trainer.world import headlines
from trainer.world.chance import between, shuffled, unit

SYMBOLS = ("$COIN", "$NOVA", "$ORCA", "$MINT", "$BOLT", "$FERN")
MIN_MOVE, MAX_MOVE = 0.02, 0.05

StageName = Literal["one", "several"]


@dataclass(frozen=True, slots=True)
class Stage:
    """The size of the market: worlds have stages from easy to hard."""

    name: StageName
    tickers: int
    predictions: int
    may_hold: bool
    """With one ticker and a clear headline, HOLD is not offered: the only question is up or down."""


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


@dataclass(frozen=True, slots=True)
class Ticker:
    """One stock's hour without the agents: prices at the start, at each decision, and at the end."""

    symbol: str
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

    def hour(self, window_id: str) -> Hour:
        """The hour of ``window_id``: a pure function of this world and the id."""
        stage = STAGES[self.stage]
        number = int(start_of(window_id).timestamp()) // 3600
        pair, mirror = number // 2, (1 if number % 2 == 0 else -1)
        minutes = decision_minutes(self.decisions)
        symbols = SYMBOLS[:1] if stage.tickers == 1 else shuffled(SYMBOLS, self.seed, "symbols", number)
        tickers = tuple(
            self._ticker(symbol, slot, pair, mirror, number, len(minutes))
            for slot, symbol in enumerate(symbols[: stage.tickers])
        )
        predictions = tuple(
            self._prediction(slot, window_id, pair, mirror, number, len(minutes)) for slot in range(stage.predictions)
        )
        return Hour(window_id, stage, minutes, tickers, predictions, self._news(tickers, predictions, minutes, number))

    def _ticker(self, symbol: str, slot: int, pair: int, mirror: int, number: int, steps: int) -> Ticker:
        key = (self.seed, "ticker", pair, slot)
        direction = mirror * (1 if unit(*key, "direction") < 0.5 else -1)
        signal = direction * between(MIN_MOVE, MAX_MOVE, *key, "signal")
        noise_sign = 1 if unit(*key, "noise sign") < 0.5 else -1
        noise = noise_sign * between(MIN_MOVE, MAX_MOVE, *key, "noise")
        move = (1 - self.luck) * signal + self.luck * noise

        start = round(between(40, 400, self.seed, "price", number, slot), 2)
        before_news = self.luck * between(-0.005, 0.005, *key, "before")
        first = start * (1 + before_news)
        steps_taken = [between(0.5, 1.5, *key, "pace", step) for step in range(steps)]
        shares = [sum(steps_taken[:step]) / sum(steps_taken) for step in range(steps)]
        prices = tuple(round(first * (1 + move * share), 2) for share in shares)
        return Ticker(symbol, start, prices, round(first * (1 + move), 2), direction)

    def _prediction(
        self, slot: int, window_id: str, pair: int, mirror: int, number: int, steps: int
    ) -> PredictionMarket:
        key = (self.seed, "prediction", pair, slot)
        direction = mirror * (1 if unit(*key, "direction") < 0.5 else -1)
        chance = unit(*key, "luck") if mirror > 0 else 1 - unit(*key, "luck")
        hint_comes_true = chance >= self.luck / 2
        events = shuffled(headlines.EVENTS, self.seed, "events", number)
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
    ) -> tuple[News, ...]:
        """One headline per decision, two minutes before it: each subject in turn, in an order specific to the hour."""
        everything: list[Ticker | PredictionMarket] = [*tickers, *predictions]
        subjects = shuffled(everything, self.seed, "subjects", number)
        news: list[News] = []
        for step, minute in enumerate(minutes):
            subject = subjects[step % len(subjects)]
            key = (self.seed, "headline", number, step)
            if isinstance(subject, Ticker):
                text, name = headlines.headline(subject.symbol, subject.direction, *key), subject.symbol
            else:
                text, name = headlines.hint(subject.question, subject.direction, *key), subject.label
            news.append(News(minute - 2, text, name, subject.direction))
        return tuple(news)


def decision_minutes(decisions: int) -> tuple[float, ...]:
    """Decisions spread evenly over the hour, the first early enough to profit from the news."""
    return tuple(4 + 50 * step / decisions for step in range(decisions))


def moment(window_id: str, minute: float) -> datetime:
    """``minute`` of the window, as a time."""
    return start_of(window_id) + timedelta(minutes=minute)


def outcomes_of(hour: Hour, closing: dict[str, float], yes_closing: dict[str, float]) -> MarketOutcomes:
    """The ground truth of a played hour, as the game writes it."""
    stocks = tuple(
        StockOutcome(
            ticker=ticker.symbol.removeprefix("$"),
            start_price=ticker.start_price,
            end_price=closing[ticker.symbol],
            change_percent=round((closing[ticker.symbol] / ticker.start_price - 1) * 100, 2),
            sentiment="bullish" if ticker.direction > 0 else "bearish",
            news=tuple(
                NewsEvent(
                    headline=news.headline,
                    timestamp=moment(hour.window_id, news.minute),
                    sentiment="positive" if news.direction > 0 else "negative",
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
    return MarketOutcomes(stocks=stocks, predictions=predictions)
