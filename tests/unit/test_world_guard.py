"""Whatever a model says, no agent ends up with what it cannot afford, and no window crashes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_bridge.window_ids import windows_from
from trainer.world.actions import BUY, HOLD, NO, SELL, YES, ActionError, Decision, parse
from trainer.world.agents import NO_EXPLORATION, Agent, AgentAnswer, Ask
from trainer.world.exchange import Book, Exchange
from trainer.world.guard import DEFAULT_LIMITS, TradingLimits, check
from trainer.world.market import Market
from trainer.world.observation import Observation, observe
from trainer.world.player import Player
from trainer.world.vocabulary import TICKERS


@dataclass
class Parrot:
    """Says what it was told to say, one line a decision."""

    lines: list[str]
    said: int = 0

    async def answer(self, ask: Ask) -> AgentAnswer:
        self.said += 1
        return AgentAnswer(self.lines[(self.said - 1) % len(self.lines)], "parrot", 1.0, 1)


def agent(policy: Parrot, balance: float = 10_000.0) -> Agent:
    return Agent("1", 0, "parrot-1", "analyst", balance, policy)


markets = st.sampled_from([*TICKERS["trained"], *TICKERS["unseen"], "$NOPE", "#1", "#2", "#99"])
sizes = st.one_of(st.integers(-5, 130), st.sampled_from([1, 2, 10, 19, 20, 21, 40, 100]))
verbs = st.sampled_from([BUY, SELL, YES, NO])
orders = st.builds(lambda verb, market, size: f"{verb} {market} {size}%", verbs, markets, sizes)
known_oddities = ["", HOLD, "BUY", "BUY $COIN 20%\nSELL $COIN 20%", "\x00", "\ud83d"]
odd = st.one_of(st.text(max_size=40), st.sampled_from(known_oddities))


HOURS = windows_from("2026-03-02T00:00", 2)
traded = st.sampled_from([ticker.symbol for ticker in Market(11, stage="several").hour(HOURS[0]).tickers])
large = st.sampled_from([20, 40, 60, 80, 100])
greedy = st.builds(lambda verb, market, size: f"{verb} {market} {size}%", st.sampled_from([BUY, SELL]), traded, large)
any_limits = st.builds(
    TradingLimits, order=st.floats(0, 1), bet=st.floats(0, 1), position=st.floats(0, 3), loss=st.floats(0, 1)
)


def play_and_check(replies: list[str], balance: float, limits: TradingLimits, luck: float) -> None:
    """Play two windows of six decisions with one agent; its books must be sound after every one of them."""

    async def play() -> None:
        market = Market(11, luck, "several", decisions=6)
        player = Player(market, [agent(Parrot(replies), balance)], NO_EXPLORATION, limits)
        async for played in player.play(HOURS):
            life = played.agents[0]
            for step in life.steps:
                book = step.book
                if step.price is not None and step.decision is not None:
                    book = book.filled(step.decision, step.price)
                assert book.committed <= book.balance + 0.01
            assert len(life.steps) == 6
            assert life.after.balance == pytest.approx(life.steps[0].book.balance + life.pnl, abs=0.02)
            assert life.after.errors == sum(step.error is not None for step in life.steps)
            assert not life.after.positions

    asyncio.run(play())


@settings(max_examples=100, deadline=None)
@given(replies=st.lists(st.one_of(orders, odd), min_size=1, max_size=12), balance=st.floats(0, 1e6), limits=any_limits)
def test_no_sequence_of_replies_however_odd_buys_what_cannot_be_afforded_or_crashes_the_window(
    replies: list[str], balance: float, limits: TradingLimits
) -> None:
    play_and_check(replies, balance, limits, luck=0.5)


@settings(max_examples=100, deadline=None)
@given(replies=st.lists(greedy, min_size=2, max_size=12), luck=st.floats(0, 1))
def test_no_sequence_of_large_orders_buys_what_cannot_be_afforded(replies: list[str], luck: float) -> None:
    play_and_check(replies, 10_000.0, TradingLimits(order=1.0, bet=1.0, position=3.0, loss=1.0), luck)


@given(st.text())
def test_any_text_is_a_decision_or_an_error(reply: str) -> None:
    parsed = parse(reply)
    if isinstance(parsed, Decision):
        assert str(parsed) == reply.strip()
    else:
        assert isinstance(parsed, ActionError)
        assert parsed.reason


@given(orders)
def test_a_well_formed_order_reads_back_as_it_was_written(text: str) -> None:
    parsed = parse(text)
    if isinstance(parsed, Decision):
        assert str(parsed) == text
        assert 1 <= parsed.percent <= 100
        assert parsed.market.startswith("#" if parsed.verb in (YES, NO) else "$")


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("", "empty_reply"),
        ("   \n ", "empty_reply"),
        ("BUY $COIN 20%\nSELL $COIN 20%", "not_one_line"),
        ("buy $COIN 20%", "unreadable"),
        ("BUY COIN 20%", "unreadable"),
        ("BUY $COIN 20", "unreadable"),
        ("BUY $COIN 0%", "unreadable"),
        ("BUY $COIN 020%", "unreadable"),
        ("BUY $COIN 101%", "unreadable"),
        ("BUY $COIN 20% now", "unreadable"),
        ("I would BUY $COIN 20%", "unreadable"),
        ("BUY  $COIN 20%", "unreadable"),
        ("YES $COIN 2%", "unreadable"),
        ("BUY #1 2%", "unreadable"),
        ("HOLD $COIN", "unreadable"),
        ("BUY $COIN \N{FULLWIDTH DIGIT TWO}0%", "unreadable"),
    ],
)
def test_a_reply_that_has_to_be_guessed_at_is_an_error(reply: str, reason: str) -> None:
    parsed = parse(reply)
    assert isinstance(parsed, ActionError)
    assert parsed.reason == reason
    assert not parsed.blocked


def seen(step: int = 0, stage: str = "several") -> Observation:
    hour = Market(1, 0.2, "one" if stage == "one" else "several", 3).hour("2026-03-02T00:00")
    return observe(hour, step, Exchange(hour).quotes(step))


def reason(decision: Decision, book: Book, *, gain: float = 0.0, at: Observation | None = None) -> str | None:
    blocked = check(decision, at or seen(), book, gain, DEFAULT_LIMITS)
    assert blocked is None or blocked.blocked
    return None if blocked is None else blocked.reason


def test_each_limit_blocks_with_its_own_reason() -> None:
    book = Book(10_000.0, 0.0)
    ticker = seen().quotes[0].symbol
    assert reason(Decision(BUY, ticker, 20), book) is None
    assert reason(Decision(BUY, "$NOPE", 20), book) == "unknown_market"
    assert reason(Decision(BUY, ticker, 21), book) == "order_limit"
    assert reason(Decision(YES, "#1", 3), book) == "order_limit"
    assert reason(Decision(BUY, ticker, 20), Book(0.0, 0.0)) == "no_balance"
    held = book.filled(Decision(BUY, ticker, 20), 50.0).filled(Decision(BUY, ticker, 20), 50.0)
    assert reason(Decision(BUY, ticker, 1), held) == "position_limit"
    assert reason(Decision(SELL, ticker, 20), held) is None
    assert reason(Decision(BUY, ticker, 10), book, gain=-1_000.0) == "loss_limit"
    assert reason(Decision(SELL, ticker, 20), held, gain=-1_000.0) is None  # making it smaller is allowed


def test_an_order_larger_than_what_is_left_is_blocked() -> None:
    first, second, third = (quote.symbol for quote in seen().quotes)
    book = Book(10_000.0, 0.0)
    for symbol in (first, first, second, second):
        book = book.filled(Decision(SELL, symbol, 20), 40.0)
    assert book.committed == pytest.approx(8_000.0)
    assert reason(Decision(BUY, third, 20), book) is None
    assert reason(Decision(BUY, third, 20), book, gain=-1.0) == "over_balance"


def test_only_what_can_be_done_now_is_offered() -> None:
    first, last = seen(0), seen(2)
    assert {str(offer) for offer in first.offers} >= {"YES #1", "NO #1", "HOLD"}
    assert not {str(offer) for offer in last.offers} & {"YES #1", "NO #1"}  # the question closes before the last
    assert reason(Decision(YES, "#1", 2), Book(1.0, 0.0), at=last) == "unknown_market"
    assert reason(Decision(HOLD), Book(1.0, 0.0), at=seen(stage="one")) == "not_offered"


async def test_a_blocked_order_is_a_failed_action_that_costs_nothing_and_moves_nothing() -> None:
    symbol = seen(stage="one").quotes[0].symbol
    player = Player(Market(1), [agent(Parrot([f"BUY {symbol} 90%"]))], NO_EXPLORATION)
    [played] = [hour async for hour in player.play(["2026-03-02T00:00"])]
    life = played.agents[0]
    assert life.steps[0].error is not None
    assert life.steps[0].error.reason == "order_limit"
    assert life.pnl == 0.0
    assert life.after.errors == 1
    assert played.tape.quotes == played.tape.fills
