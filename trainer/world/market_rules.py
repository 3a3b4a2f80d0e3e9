"""The rules of the simulated market, for the machinery that all worlds share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

from data_bridge.database import Database
from data_bridge.models import Action, ChatMessage
from data_bridge.outcomes import record_outcomes
from data_bridge.window_ids import GRACE, end_of
from trainer.evidence import UNSEEN_TICKERS
from trainer.world import states
from trainer.world.actions import BUY, HOLD, NO, SELL, YES, ActionError, Decision
from trainer.world.arms import markets_of
from trainer.world.exchange import Book, Exchange, Tape, fill_price, instrument, marks
from trainer.world.grammar import FamilyName
from trainer.world.guard import DEFAULT_LIMITS, TradingLimits, check, judge_reply
from trainer.world.headlines import direction_of
from trainer.world.market import EDITION, Hour, Market, StageName, outcomes_of
from trainer.world.observation import Observation, Offer, messages_for, observe
from trainer.world.questions import Question, questions

INVALID = "INVALID"
"""The action type of a reply that is not an action."""

_TYPES = {BUY: "BUY", SELL: "SELL", YES: "BUY_YES", NO: "BUY_NO", HOLD: "HOLD"}


@dataclass(frozen=True, slots=True)
class MarketRules:
    """See ``rules.WorldRules``."""

    name: ClassVar[str] = "market"
    edition: ClassVar[str] = EDITION
    roles: ClassVar[tuple[str, ...]] = ("momentum trader", "contrarian", "news trader", "market maker", "analyst")
    balances: ClassVar[tuple[float, ...]] = (9_000.0, 10_000.0, 11_000.0)
    limits: ClassVar[TradingLimits] = DEFAULT_LIMITS
    measure: ClassVar[str] = "P&L"
    unseen_names: ClassVar[str] = UNSEEN_TICKERS
    tape_type: ClassVar[type[Tape]] = Tape

    def world(self, seed: int, luck: float, stage: str, decisions: int) -> Market:
        return Market(seed, luck, cast("StageName", stage), decisions)

    def easier(self, world: Any) -> dict[str, Any]:
        return markets_of(world)

    def table(self, hour: Hour) -> Exchange:
        return Exchange(hour)

    def quotes_of(self, tape: Tape, step: int) -> dict[str, float]:
        return tape.quotes[step]

    def fills_of(self, tape: Tape, step: int) -> dict[str, float]:
        return tape.fills[step]

    def observe(self, hour: Hour, step: int, quotes: Mapping[str, float], book: Book) -> Observation:
        return observe(hour, step, quotes)

    def messages(self, seen: Observation, stage: StageName) -> list[ChatMessage]:
        return messages_for(seen, stage)

    def state_of(self, seen: Observation) -> str:
        return states.state_of(seen)

    def questions(self, number: int, words: FamilyName, names: FamilyName, seed: int = 0) -> Sequence[Question]:
        return questions(number, words, names, seed)

    def choices(self, seen: Observation, limits: TradingLimits) -> Sequence[Decision]:
        return [sized(offer, limits) for offer in seen.offers]

    def readings(self, seen: Observation, limits: TradingLimits) -> Sequence[tuple[Decision, Decision]]:
        found: list[tuple[Decision, Decision]] = []
        for market, said in readings(seen).items():
            up, down = (YES, NO) if market.startswith("#") else (BUY, SELL)
            both = sized(Offer(up, market), limits), sized(Offer(down, market), limits)
            found.append(both if said > 0 else (both[1], both[0]))
        return found

    def allowed(self, seen: Observation, book: Book, gain: float, limits: TradingLimits) -> Sequence[Decision]:
        full = self.choices(seen, limits)
        smallest = [replace(decision, percent=min(1, decision.percent)) for decision in full]  # reduces any position
        for sizes in (full, smallest):
            if own := [one for one in sizes if check(one, seen, book, gain, limits) is None]:
                return own
        return full

    def judge_reply(
        self, reply: str, seen: Observation, book: Book, gain: float, limits: TradingLimits
    ) -> tuple[Decision | None, ActionError | None]:
        return judge_reply(reply, seen, book, gain, limits)

    def follows(self, decision: Decision, seen: Observation) -> bool | None:
        said = readings(seen)
        return said.get(decision.market) == decision.direction if said else None

    def book(self, balance: float, lifetime_pnl: float) -> Book:
        return Book(balance, lifetime_pnl)

    def begun(self, book: Book, hour: Hour) -> Book:
        return book.next_window()

    def gain(self, book: Book, quotes: Mapping[str, float]) -> float:
        return book.gain(marks(quotes))

    def result(
        self, decision: Decision, seen: Observation, fills: Mapping[str, float], own: Decision | None = None
    ) -> float | None:
        return fill_price(decision, fills) if decision.market else None

    def after(self, book: Book, decision: Decision, seen: Observation, result: float | None) -> Book:
        return book if result is None else book.filled(decision, result)

    def settled(self, book: Book, tape: Tape) -> Book:
        return book.settled(tape.settlement)

    def worth(self, decision: Decision, result: float | None, book: Book, tape: Tape) -> float:
        if result is None:
            return 0.0
        position = Book(book.balance, 0.0).filled(decision, result).positions[instrument(decision)]
        return position.gain(tape.settlement[instrument(decision)])

    def forbids_exploring(
        self, book: Book, gain: float, starting_balance: float, limits: TradingLimits, *, is_last: bool
    ) -> bool:
        return states.forbids_exploring(book, gain, starting_balance, limits, is_last=is_last)

    def is_far_from_risk(self, book: Book, starting_balance: float) -> bool:
        return states.is_far_from_risk(book, starting_balance)

    def action_type(self, decision: Decision) -> str:
        return _TYPES[decision.verb]

    def action(
        self, decision: Decision | None, error: ActionError | None, result: float | None, book: Book, hour: Hour
    ) -> Action:
        return action_of(decision, error, result, book.stake, hour)

    def state(self, role: str, seen: Observation, book: Book, gain: float) -> Mapping[str, Any]:
        return {
            "agentBalance": round(book.balance + book.realised, 2),
            "agentPnL": round(book.lifetime_pnl + gain, 2),
            "openPositions": len(book.positions),
            "activeMarkets": len(seen.quotes) + len(seen.questions),
            "role": role,
        }

    def shown(self, seen: Observation) -> tuple[str, Mapping[str, Any], str]:
        prices: dict[str, float] = {quote.symbol: quote.price for quote in seen.quotes}
        prices |= {question.label: question.yes_price for question in seen.questions}
        return "MARKET", {"prices": prices, "news": list(seen.headlines)}, "prices and news"

    def ending(self, book: Book) -> tuple[float | None, float | None]:
        return book.balance, book.lifetime_pnl

    async def record_truth(self, database: Database, played: Any) -> None:
        closing, window_id = played.tape.closing, played.hour.window_id
        truth = outcomes_of(played.hour, closing, closing)
        await record_outcomes(database, window_id, truth, now=end_of(window_id, 1) + GRACE / 2)


def sized(offer: Offer, limits: TradingLimits) -> Decision:
    """The offer at the maximum size that is allowed."""
    if offer.verb == HOLD:
        return Decision(HOLD)
    share = limits.bet if offer.verb in (YES, NO) else limits.order
    return Decision(offer.verb, offer.market, round(share * 100))


def readings(seen: Observation) -> dict[str, int]:
    """What the news says about open markets: the direction by name; markets of which it says nothing are left out."""
    subjects = [(quote.symbol, quote.symbol) for quote in seen.quotes]
    subjects += [(question.label, question.question) for question in seen.questions]
    found: dict[str, int] = {}
    for text in seen.headlines:
        for market, subject in subjects:
            if said := direction_of(text, subject):
                found[market] = said
    return found


def action_of(
    decision: Decision | None, error: ActionError | None, price: float | None, stake: float, hour: Hour
) -> Action:
    """The action in the game's terms. A failed one keeps what it tried, and why it failed."""
    if decision is None:
        return Action(action_type=INVALID, success=False, error=str(error))
    parameters: dict[str, Any] = {}
    if decision.verb in (YES, NO):
        known = {market.label: market for market in hour.predictions}
        market_id = known[decision.market].market_id if decision.market in known else decision.market
        parameters = {"marketId": market_id, "side": decision.verb}
    elif decision.market:
        parameters = {"ticker": decision.market.removeprefix("$"), "side": decision.verb}
    if decision.market:
        parameters |= {"percent": decision.percent, "amount": round(decision.percent / 100 * stake, 2)}
    return Action(
        action_type=_TYPES[decision.verb],
        parameters=parameters,
        success=error is None,
        result={"price": price} if price is not None else None,
        error=None if error is None else str(error),
    )
