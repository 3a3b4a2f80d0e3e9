"""What an agent can know at a decision: the prices and the news up to that minute, and what can be done now.

An observation holds nothing of what happens later, and nothing of the planted truth. It is the same for every
agent of the window; what an agent owns is in its book.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trainer.world.actions import BUY, HOLD, NO, SELL, YES
from trainer.world.market import Hour


@dataclass(frozen=True, slots=True)
class Quote:
    """The price of a ticker now."""

    symbol: str
    price: float


@dataclass(frozen=True, slots=True)
class Question:
    """An open prediction market and what a YES costs now."""

    label: str
    question: str
    yes_price: float


@dataclass(frozen=True, slots=True)
class Offer:
    """One thing that can be done now: a verb and the market it is for (none for HOLD)."""

    verb: str
    market: str = ""

    def __str__(self) -> str:
        return f"{self.verb} {self.market}".rstrip()


@dataclass(frozen=True, slots=True)
class Observation:
    window_id: str
    step: int
    minute: float
    quotes: tuple[Quote, ...]
    questions: tuple[Question, ...]
    headlines: tuple[str, ...]
    """Everything published so far, oldest first."""
    offers: tuple[Offer, ...]

    def price(self, market: str) -> float | None:
        """The price of a ticker, or of a YES, by the name an action uses."""
        for quote in self.quotes:
            if quote.symbol == market:
                return quote.price
        return next((question.yes_price for question in self.questions if question.label == market), None)


def observe(hour: Hour, step: int, prices: Mapping[str, float]) -> Observation:
    """What can be known at decision ``step`` of ``hour``, where ``prices`` are the prices on the exchange now."""
    minute = hour.minutes[step]
    quotes = tuple(Quote(ticker.symbol, prices[ticker.symbol]) for ticker in hour.tickers)
    questions = tuple(
        Question(market.label, market.question, prices[market.label])
        for market in hour.predictions
        if step < market.open_steps
    )
    offers = [Offer(verb, quote.symbol) for quote in quotes for verb in (BUY, SELL)]
    offers += [Offer(verb, question.label) for question in questions for verb in (YES, NO)]
    if hour.stage.may_hold:
        offers.append(Offer(HOLD))
    told = tuple(news.headline for news in hour.news if news.minute <= minute)
    return Observation(hour.window_id, step, minute, quotes, questions, told, tuple(offers))
