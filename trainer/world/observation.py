"""What an agent can know at a decision, and the chat messages that present it to the agent's model.

An observation contains the prices and the news up to that minute, and the current offers. It contains nothing that
happens later, and nothing of the planted truth. It is the same for every agent of the window; what an agent owns is in
its book.

The wording was chosen by measuring the embedded 135M model: a rule of two short sentences, two worked examples up, then
two down, then prices and news in the same layout. Untrained, over all headlines, it then ranks BUY over SELL for good
news against bad with an AUC of 0.87 and hardly prefers either (36 % of its replies are actions at temperature 1, 61 %
at 0.8); with the examples in another order, or with other tickers, it prefers one whatever the news (AUC 0.5 to 0.7).
Training needs both answers to stay likely, so the order is fixed and there is only one ticker.

Everything up to the last message is the same for all agents and all hours of a stage, so that an engine computes it
once; it contains nothing specific to an agent, so that the agents of a window share the rest as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from data_bridge.models import ChatMessage
from trainer.world.actions import BUY, HOLD, NO, SELL, YES, Decision
from trainer.world.market import Hour, StageName


@dataclass(frozen=True, slots=True)
class Quote:
    """The price of a ticker now."""

    symbol: str
    price: float


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
    quotes = tuple(Quote(ticker.symbol, prices[ticker.symbol]) for ticker in hour.tickers)
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


PROMPT_VERSION = "1"
"""Stored with every simulated window: a window that was played with another prompt is not replayed."""

_SYSTEM: dict[StageName, str] = {
    "one": "Good news: BUY. Bad news: SELL.",
    "several": "Good news: BUY. Bad news: SELL. For a question: YES or NO. If unsure: HOLD.",
}

_QUESTION = (OpenQuestion("#1", "port reopens this hour", 0.5),)

_EXAMPLES: dict[StageName, tuple[tuple[tuple[tuple[str, int], ...], str, Decision], ...]] = {
    "one": (
        ((("$COIN", 83),), "Orders at $COIN surge", Decision(BUY, "$COIN", 20)),
        ((("$COIN", 214),), "$COIN wins a big award", Decision(BUY, "$COIN", 20)),
        ((("$COIN", 147),), "Orders at $COIN collapse", Decision(SELL, "$COIN", 20)),
        ((("$COIN", 320),), "$COIN recalls a faulty product", Decision(SELL, "$COIN", 20)),
    ),
    "several": (
        ((("$COIN", 83), ("$NOVA", 214), ("$MINT", 147)), "Orders at $NOVA surge", Decision(BUY, "$NOVA", 20)),
        (
            (("$COIN", 121), ("$NOVA", 52), ("$MINT", 320)),
            "Plans are cancelled: port reopens this hour",
            Decision(NO, "#1", 2),
        ),
        ((("$COIN", 260), ("$NOVA", 91), ("$MINT", 48)), "Orders at $COIN collapse", Decision(SELL, "$COIN", 20)),
    ),
}
"""Prices, news and the right answer. No price occurs twice, or the model would treat it as part of the answer."""


def messages_for(seen: Observation, stage: StageName) -> list[ChatMessage]:
    """The conversation up to the agent's turn to decide on ``seen``."""
    chat = [ChatMessage(role="system", content=_SYSTEM[stage])]
    questions = () if stage == "one" else _QUESTION
    for prices, headline, decision in _EXAMPLES[stage]:
        quotes = tuple(Quote(symbol, price) for symbol, price in prices)
        chat.append(ChatMessage(role="user", content=_layout(quotes, questions, (headline,))))
        chat.append(ChatMessage(role="assistant", content=str(decision)))
    chat.append(ChatMessage(role="user", content=_layout(seen.quotes, seen.questions, seen.headlines)))
    return chat


def _layout(quotes: tuple[Quote, ...], questions: tuple[OpenQuestion, ...], headlines: tuple[str, ...]) -> str:
    lines = [f"{quote.symbol} {quote.price:.0f}" for quote in quotes]
    lines += [f"{question.label} {question.question} YES {question.yes_price:.2f}" for question in questions]
    lines += [f"News: {headline}" for headline in headlines]
    return "\n".join(lines)
