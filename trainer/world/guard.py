"""The safety guard: what an agent may not do, whatever its model says.

A blocked order is an action that failed, with the reason; it never reaches the exchange.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.world.actions import HOLD, NO, SELL, YES, ActionError, Decision, blocked, parse
from trainer.world.exchange import Book, instrument
from trainer.world.observation import Observation, Offer


@dataclass(frozen=True, slots=True)
class TradingLimits:
    """In shares of the stake."""

    order: float = 0.20
    bet: float = 0.02
    position: float = 0.40
    loss: float = 0.10
    """An agent that has lost this much in the window may only reduce its positions."""


DEFAULT_LIMITS = TradingLimits()


def judge_reply(
    reply: str, seen: Observation, book: Book, gain: float, limits: TradingLimits
) -> tuple[Decision | None, ActionError | None]:
    """The decision in ``reply``, and the reason if it cannot be executed. Live play and replay both use this."""
    parsed = parse(reply)
    if isinstance(parsed, ActionError):
        return None, parsed
    return parsed, check(parsed, seen, book, gain, limits)


def check(decision: Decision, seen: Observation, book: Book, gain: float, limits: TradingLimits) -> ActionError | None:
    """Why ``decision`` is blocked, or None. ``gain`` is the agent's profit in the window so far."""
    if decision.verb == HOLD:
        return None if Offer(HOLD) in seen.offers else blocked("not_offered", "HOLD is not offered here")
    price = seen.price(decision.market)
    if price is None:
        return blocked("unknown_market", f"{decision.market} is not traded now")
    if Offer(decision.verb, decision.market) not in seen.offers:
        return blocked("not_offered", f"{decision.verb} {decision.market} is not offered now")
    share = decision.percent / 100
    largest = limits.bet if decision.verb in (YES, NO) else limits.order
    if share > largest + 1e-9:
        return blocked("order_limit", f"{decision.percent}% is more than {largest:.0%} of the stake")
    if book.stake <= 0:
        return blocked("no_balance", "there is no balance left to trade with")

    before = _exposure(decision, book)
    after = before + (-share if decision.verb == SELL else share)
    if abs(after) <= abs(before) and before * after >= 0:
        return None  # a smaller position is always allowed
    if gain <= -limits.loss * book.stake:
        return blocked("loss_limit", f"the agent has lost {limits.loss:.0%} of its stake in this window")
    if abs(after) > limits.position + 1e-9:
        return blocked("position_limit", f"the position would be more than {limits.position:.0%} of the stake")
    # Adding the whole order is exact for a position that grows, and conservative for one that changes direction.
    if book.committed + share * book.stake > book.balance + min(0.0, gain) + 1e-6:
        return blocked("over_balance", "the order is larger than what the balance allows")
    return None


def _exposure(decision: Decision, book: Book) -> float:
    """The position in the decision's market, in shares of the stake at entry; negative if short."""
    held = book.positions.get(instrument(decision))
    return 0.0 if held is None else held.units * held.entry / book.stake
