"""What an agent can know at a decision, and the chat messages that present it to the agent's model.

An observation contains the prices and the news up to that minute, and the current offers. It contains nothing that
happens later, and nothing of the planted truth. It is the same for every agent of the window; what an agent owns is in
its book.

Nothing in the prompt states how news and orders belong together. Worked examples show it, with words and tickers that
occur nowhere else in the world, each order as often as the other. The wording was chosen by measuring the embedded 135M
model (``benchmarks/reading_news.py``): two worked examples up, then two down, then the price and the news in the same
layout. Any other order of the two makes it prefer BUY whatever the news, by two nats. Which example of a pair comes
first changes from day to day.

Everything up to the last message is the same for all agents and all hours of a day, so that an engine computes it once;
it contains nothing specific to an agent, so that the agents of a window share the rest as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from data_bridge.models import ChatMessage
from data_bridge.window_ids import start_of
from trainer.world.actions import BUY, HOLD, NO, SELL, YES, Decision
from trainer.world.market import Hour, StageName


@dataclass(frozen=True, slots=True)
class Quote:
    """The price of a ticker now, and whether that is more than when the last hour began."""

    symbol: str
    price: float
    is_up: bool


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """An open prediction market and the current price of a YES."""

    label: str
    question: str
    yes_price: float


@dataclass(frozen=True, slots=True)
class Offer:
    """One action that is possible now: a verb and its market (none for HOLD)."""

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
    questions: tuple[OpenQuestion, ...]
    headlines: tuple[str, ...]
    """Everything published so far, oldest first."""
    offers: tuple[Offer, ...]

    def price(self, market: str) -> float | None:
        """The price of a ticker, or of a YES, by the name used in actions."""
        for quote in self.quotes:
            if quote.symbol == market:
                return quote.price
        return next((question.yes_price for question in self.questions if question.label == market), None)


def observe(hour: Hour, step: int, prices: Mapping[str, float]) -> Observation:
    """What can be known at decision ``step`` of ``hour``, where ``prices`` are the prices on the exchange now."""
    minute = hour.minutes[step]
    quotes = tuple(
        Quote(ticker.symbol, prices[ticker.symbol], prices[ticker.symbol] >= ticker.last_hour_price)
        for ticker in hour.tickers
    )
    questions = tuple(
        OpenQuestion(market.label, market.question, prices[market.label])
        for market in hour.predictions
        if step < market.open_steps
    )
    offers = [Offer(verb, quote.symbol) for quote in quotes for verb in (BUY, SELL)]
    offers += [Offer(verb, question.label) for question in questions for verb in (YES, NO)]
    if hour.stage.may_hold:
        offers.append(Offer(HOLD))
    headlines = tuple(news.headline for news in hour.news if news.minute <= minute)
    return Observation(hour.window_id, step, minute, quotes, questions, headlines, tuple(offers))


_SYSTEM: dict[StageName, str] = {
    "one": "Trade the news.",
    "several": "Trade the news: BUY or SELL a ticker, YES or NO for a question, or HOLD.",
}


@dataclass(frozen=True, slots=True)
class WorkedExample:
    """A decision that fits its news."""

    quotes: tuple[Quote, ...]
    headline: str
    decision: Decision


_QUESTION = (OpenQuestion("#1", "ferry departs soon", 0.5),)

EXAMPLES: dict[StageName, tuple[WorkedExample, ...]] = {
    "one": (
        WorkedExample((Quote("$ACME", 83, False),), "Orders at $ACME surge", Decision(BUY, "$ACME", 20)),
        WorkedExample((Quote("$IRIS", 214, True),), "$IRIS gets a big award", Decision(BUY, "$IRIS", 20)),
        WorkedExample((Quote("$ZETA", 147, True),), "Orders at $ZETA collapse", Decision(SELL, "$ZETA", 20)),
        WorkedExample((Quote("$FLUX", 320, False),), "$FLUX gets a big penalty", Decision(SELL, "$FLUX", 20)),
    ),
    "several": (
        WorkedExample(
            (Quote("$ACME", 83, True), Quote("$IRIS", 214, False), Quote("$ZETA", 147, True)),
            "Orders at $IRIS surge",
            Decision(BUY, "$IRIS", 20),
        ),
        WorkedExample(
            (Quote("$FLUX", 56, False), Quote("$ZETA", 121, True), Quote("$ACME", 94, False)),
            "The captain confirms: ferry departs soon",
            Decision(YES, "#1", 2),
        ),
        WorkedExample(
            (Quote("$IRIS", 260, True), Quote("$FLUX", 91, True), Quote("$ACME", 48, False)),
            "Orders at $FLUX collapse",
            Decision(SELL, "$FLUX", 20),
        ),
        WorkedExample(
            (Quote("$ZETA", 320, False), Quote("$IRIS", 172, True), Quote("$FLUX", 67, False)),
            "Plans are cancelled: ferry departs soon",
            Decision(NO, "#1", 2),
        ),
    ),
}
"""Prices, news and an answer. No price occurs twice, or the model would treat it as part of the answer."""

_ORDERS: dict[StageName, tuple[tuple[int, ...], ...]] = {
    "one": ((0, 1, 2, 3), (1, 0, 3, 2), (0, 1, 3, 2), (1, 0, 2, 3)),
    "several": ((0, 1, 2, 3), (1, 2, 3, 0), (2, 3, 0, 1), (3, 0, 1, 2)),
}
"""One for each day, in turn."""


def messages_for(seen: Observation, stage: StageName) -> list[ChatMessage]:
    """The conversation up to the agent's turn to decide on ``seen``."""
    chat = [ChatMessage(role="system", content=_SYSTEM[stage])]
    questions = () if stage == "one" else _QUESTION
    orders = _ORDERS[stage]
    for number in orders[start_of(seen.window_id).toordinal() % len(orders)]:
        example = EXAMPLES[stage][number]
        chat.append(ChatMessage(role="user", content=_layout(example.quotes, questions, (example.headline,))))
        chat.append(ChatMessage(role="assistant", content=str(example.decision)))
    chat.append(ChatMessage(role="user", content=_layout(seen.quotes, seen.questions, seen.headlines)))
    return chat


def _layout(quotes: tuple[Quote, ...], questions: tuple[OpenQuestion, ...], headlines: tuple[str, ...]) -> str:
    lines = [f"{quote.symbol} {'up' if quote.is_up else 'down'} to {quote.price:.0f}" for quote in quotes]
    lines += [f"{question.label} {question.question} YES {question.yes_price:.2f}" for question in questions]
    lines += [f"News: {headline}" for headline in headlines]
    return "\n".join(lines)
