"""What kind of state a decision is made in: how much is known about it, and whether it is one to experiment in.

Exploration joins the curriculum here. Its share falls as before; with ``--curriculum`` more of it goes where the log is
thin, counted by signature of the state, and none of it to an agent that has too much to lose.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from trainer.world.exchange import Book
from trainer.world.guard import TradingLimits
from trainer.world.observation import Observation

LEAST, MOST = 0.5, 1.5
"""Bounds of how much less or more than usual is explored in a state."""
NEARLY_GONE = 0.25
"""Of its starting balance: an agent with less does not explore."""
HALF_LOST = 0.5
"""Of the loss that the guard allows in a window: an agent that has lost as much does not explore."""


def state_of(seen: Observation) -> str:
    """The signature of a state: which decision among how many tickers, whose news it is, and which way it went."""
    subjects = {quote.symbol: quote.symbol for quote in seen.quotes}
    subjects |= {question.question: question.label for question in seen.questions}
    newest = seen.headlines[-1] if seen.headlines else ""
    named = next((name for text, name in subjects.items() if text in newest), "none")
    trend = next(("up" if quote.is_up else "down" for quote in seen.quotes if quote.symbol == named), "open")
    return f"{len(seen.quotes)} tickers, decision {seen.step + 1}, {named} {trend}"


def thinness(state: str, counts: Mapping[str, int]) -> float:
    """How much more than usual is explored in ``state``, after the log has each state as often as ``counts`` says.

    By one over the root of the count, which is how fast an estimate gets better; 1 on average over what was met.
    """
    total = sum(counts.values())
    if total == 0:
        return 1.0
    usual = sum(count * _worth(count) for count in counts.values()) / total
    return min(MOST, max(LEAST, _worth(counts.get(state, 0)) / usual))


def _worth(count: int) -> float:
    return 1 / math.sqrt(count + 1)


def forbids_exploring(
    book: Book, gain: float, starting_balance: float, limits: TradingLimits, *, is_last: bool
) -> bool:
    """Whether the state is too risky or too urgent for an experiment.

    Risky: the balance is nearly gone, or half of the loss that the guard allows in a window is. Urgent: an open
    position is losing, and this is the last decision that could close it.
    """
    is_gone = book.balance + gain < NEARLY_GONE * starting_balance
    is_losing = gain < 0 and gain <= -HALF_LOST * limits.loss * book.stake
    is_urgent = is_last and bool(book.positions) and gain - book.realised < 0
    return is_gone or is_losing or is_urgent


def is_far_from_risk(book: Book, starting_balance: float) -> bool:
    """Whether a few windows cannot bring the balance to where exploring is forbidden: then they can be asked ahead."""
    return book.balance > 2 * NEARLY_GONE * starting_balance
