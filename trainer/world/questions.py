"""Questions that a model is asked to find out whether it can read: decision points whose right direction is known.

A question is the prompt of an hour, of the first stage unless another is asked for, from a world of its own that nobody
plays, with trained or unseen words about trained or unseen tickers. Directions are balanced, also against whether the
price went up or down before: neither a preferred order nor a trend answers more than half of them. The same arguments
give the same questions on every machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from itertools import count

from data_bridge.models import ChatMessage
from data_bridge.window_ids import start_of, window_of
from trainer.evidence import TRAINED_WORDS, UNSEEN_TICKERS, UNSEEN_WORDS
from trainer.world.actions import BUY, SELL, Decision
from trainer.world.chance import bits
from trainer.world.exchange import NOMINAL_BALANCE, Book, Exchange
from trainer.world.grammar import FamilyName
from trainer.world.guard import DEFAULT_LIMITS, judge_reply
from trainer.world.headlines import direction_of
from trainer.world.market import Market, StageName
from trainer.world.observation import Observation, messages_for, observe

COLUMNS: Mapping[str, tuple[FamilyName, FamilyName]] = {
    TRAINED_WORDS: ("trained", "trained"),
    UNSEEN_WORDS: ("unseen", "trained"),
    UNSEEN_TICKERS: ("trained", "unseen"),
    "both unseen": ("unseen", "unseen"),
}
"""What can be asked: the families of the words and of the tickers."""

_FIRST_HOUR = start_of("2020-01-01T00:00")


@dataclass(frozen=True, slots=True)
class Question:
    """What a model is shown, and which way the news points."""

    messages: tuple[ChatMessage, ...]
    seen: Observation
    ticker: str
    headline: str
    direction: int
    """Up (+1) or down (-1)."""
    words: FamilyName
    tickers: FamilyName

    def taken(self, reply: str) -> int | None:
        """The direction that ``reply`` takes: up (+1) or down (-1); None if it is not an action that can be taken.

        0 if it does nothing about the market that the question is about.
        """
        decision, error = judge_reply(reply, self.seen, Book(NOMINAL_BALANCE, 0.0), 0.0, DEFAULT_LIMITS)
        if decision is None or error is not None:
            return None
        return decision.direction if decision.market == self.ticker else 0

    def answer(self, direction: int) -> str:
        """The reply that takes ``direction`` at the usual stake."""
        return str(Decision(BUY if direction > 0 else SELL, self.ticker, 20))

    def read(self) -> int:
        """What a reader who knows all words makes of it."""
        return direction_of(self.headline, self.ticker)


def questions(
    number: int, words: FamilyName, tickers: FamilyName, seed: int = 0, stage: StageName = "one"
) -> tuple[Question, ...]:
    """``number`` questions with as many different headlines; exactly balanced if it is divisible by four.

    All are about the news on a ticker: in a later stage, on one of those of the hour.
    """
    market = Market(bits("questions", seed), stage=stage)
    found: dict[str, Question] = {}
    kinds = Counter[tuple[int, bool]]()
    for hours in count():
        if len(found) == number:
            break
        hour = market.hour(window_of(_FIRST_HOUR + timedelta(hours=hours)), words, tickers)
        [news] = hour.news
        seen = observe(hour, 0, Exchange(hour).quotes(0))
        about = next((quote for quote in seen.quotes if quote.symbol == news.subject), None)
        if about is None:
            continue
        kind = (news.direction, about.is_up)
        if news.direction == 0 or news.headline in found or kinds[kind] >= -(-number // 4):
            continue
        kinds[kind] += 1
        messages = tuple(messages_for(seen, market.stage))
        found[news.headline] = Question(messages, seen, about.symbol, news.headline, news.direction, words, tickers)
    return tuple(found.values())
