"""Agents play side by side, keep their books, and can be replayed exactly."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest

from data_bridge.models import ChatMessage
from data_bridge.window_ids import windows_from
from trainer.types import Completion
from trainer.world.agents import (
    EXPLORER,
    NO_EXPLORATION,
    ChatPolicy,
    Exploration,
    ScriptedPolicy,
    model_cast,
    scripted_cast,
)
from trainer.world.exchange import Book, Exchange
from trainer.world.market import Market, StageName
from trainer.world.observation import messages_for, observe
from trainer.world.player import PlayedHour, Player
from trainer.world.quests.errands import Quests
from trainer.world.replay import SimulatedWindow, decision_points, score_reply
from trainer.world.rules import SimulatedWorld
from trainer.world.worlds import RULES, rules_of

WINDOWS = windows_from("2026-03-02T00:00", 12)

Worlds = type[Market] | type[Quests]
both_worlds = pytest.mark.parametrize("kind", [Market, Quests])


@dataclass
class SlowModel:
    """A chat model that buys what it is shown, takes its time, and says which requests it was given."""

    delay: float = 0.0
    asked: int = 0
    most_at_once: int = 0
    temperatures: tuple[float, ...] = ()
    _now: int = 0

    @property
    def name(self) -> str:
        return "slow@step0"

    async def chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        n: int = 1,
        temperature: float = 1.0,
        max_tokens: int = 64,
        stop: Sequence[str] = (),
        seed: int | None = None,
    ) -> list[Completion]:
        self.asked += 1
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        self.temperatures += (temperature,)
        await asyncio.sleep(self.delay)
        self._now -= 1
        return [
            Completion(f"BUY {str(messages[-1].content).split()[0]} 20%", (1, 2), (-0.1, -0.2), model="slow@step0")
        ] * n

    async def close(self) -> None: ...


async def play(player: Player, windows: Sequence[str] = WINDOWS, lookahead: int = 0) -> list[PlayedHour]:
    return [played async for played in player.play(windows, lookahead=lookahead)]


@both_worlds
async def test_a_hundred_agents_of_a_window_are_asked_at_once(kind: Worlds) -> None:
    model = SlowModel(delay=0.05)
    [played] = await play(
        Player(kind(1), model_cast(120, 1, ChatPolicy(model), RULES[kind.name]), NO_EXPLORATION), WINDOWS[:1]
    )
    assert model.most_at_once == 120
    assert len(played.agents) == 120


@both_worlds
async def test_looking_ahead_asks_about_several_windows_at_once_and_changes_nothing(kind: Worlds) -> None:
    models = SlowModel(delay=0.01), SlowModel(delay=0.01)
    plain, ahead = (Player(kind(1), model_cast(4, 1, ChatPolicy(model), RULES[kind.name])) for model in models)
    one_by_one, together = await play(plain), await play(ahead, lookahead=5)
    assert models[0].most_at_once == 4
    assert models[1].most_at_once == 4 * 6
    assert [[life.pnl for life in hour.agents] for hour in one_by_one] == [
        [life.pnl for life in hour.agents] for hour in together
    ]


@both_worlds
async def test_a_model_that_fails_ends_the_play_and_leaves_no_task_behind(kind: Worlds) -> None:
    class Broken(SlowModel):
        async def chat(self, *_: object, **__: object) -> list[Completion]:
            raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        await play(Player(kind(1), model_cast(3, 1, ChatPolicy(Broken()), RULES[kind.name])), lookahead=3)
    await asyncio.sleep(0)
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


async def test_the_agents_of_a_window_see_the_same_messages_with_nothing_of_their_own() -> None:
    for played in await play(Player(Market(3, decisions=3, stage="several"), scripted_cast(6, 3)), WINDOWS[:4]):
        for step in range(3):
            assert len({str(life.steps[step].messages) for life in played.agents}) == 1


@both_worlds
async def test_all_hours_of_a_day_share_everything_but_the_last_message(kind: Worlds) -> None:
    hours = await play(Player(kind(3), scripted_cast(2, 3, RULES[kind.name])))
    messages = [hour.agents[0].steps[0].messages for hour in hours]
    assert len({str(chat[:-1]) for chat in messages}) == 1
    assert len({str(chat[-1]) for chat in messages}) == len(hours)
    assert sum(len(str(message.content)) for message in messages[0]) < 400  # everything is computed on a CPU


@pytest.mark.parametrize("stage", ["one", "several"])
def test_the_worked_examples_come_in_another_order_every_day(stage: StageName) -> None:
    days = windows_from("2026-03-02T00:00", 5 * 24)[::24]
    chats = []
    for window_id in days:
        hour = Market(3, stage=stage).hour(window_id)
        chats.append(messages_for(observe(hour, 0, Exchange(hour).quotes(0)), stage)[1:-1])
    shown = [[str(reply.content) for reply in chat[1::2]] for chat in chats]
    assert shown[0] == shown[4]
    assert len({str(order) for order in shown}) == 4
    assert len({str(sorted(order)) for order in shown}) == 1


@both_worlds
async def test_books_carry_on_from_window_to_window(kind: Worlds) -> None:
    hours = await play(Player(kind(3, decisions=2), scripted_cast(5, 3, RULES[kind.name])))
    for before, after in pairwise(hours):
        for old, new in zip(before.agents, after.agents, strict=True):
            assert new.steps[0].book.balance == old.after.balance
            assert new.steps[0].book.lifetime_pnl == old.after.lifetime_pnl
            assert new.steps[0].gain == 0.0


async def test_equal_decisions_make_equal_returns_whatever_the_balance() -> None:
    hours = await play(Player(Market(3), model_cast(9, 3, ChatPolicy(SlowModel())), NO_EXPLORATION))
    for hour in hours:
        returns = [life.pnl / life.steps[0].book.balance for life in hour.agents]
        assert max(returns) - min(returns) < 1e-5
    assert len({life.steps[0].book.balance for life in hours[0].agents}) > 1


async def test_orders_move_the_price_a_little_and_against_those_who_trade() -> None:
    market = Market(3, luck=0.0)
    [crowd] = await play(Player(market, model_cast(9, 3, ChatPolicy(SlowModel())), NO_EXPLORATION), WINDOWS[:1])
    symbol = crowd.hour.tickers[0].symbol
    quote, fill = crowd.tape.quotes[0][symbol], crowd.tape.fills[0][symbol]
    assert quote < fill < quote * 1.002


def test_exploration_falls_from_a_third_to_a_twentieth() -> None:
    exploration = Exploration(over_windows=100)
    shares = [exploration.epsilon(window) for window in range(0, 301, 50)]
    assert shares == pytest.approx([0.3, 0.175, 0.05, 0.05, 0.05, 0.05, 0.05])


async def test_a_model_explores_by_temperature_with_tokens_of_its_own() -> None:
    model = SlowModel()
    always = Exploration(start=1.0, end=1.0, hot_temperature=1.5)
    [played] = await play(Player(Market(1), model_cast(4, 1, ChatPolicy(model, 0.7)), always), WINDOWS[:1])
    assert set(model.temperatures) == {1.5}
    hot = SlowModel()
    await play(Player(Market(1), model_cast(4, 1, ChatPolicy(hot, 2.0)), always), WINDOWS[:1])
    assert set(hot.temperatures) == {2.0}, "exploring never means playing safer"
    assert all(life.steps[0].answer.token_ids == (1, 2) for life in played.agents)


async def test_an_answer_the_model_did_not_give_is_never_recorded_as_its_own() -> None:
    model = SlowModel()
    always = Exploration(start=1.0, end=1.0, how="answers")
    hours = await play(Player(Market(1), model_cast(8, 1, ChatPolicy(model)), always), WINDOWS[:6])
    answers = [life.steps[0].answer for hour in hours for life in hour.agents]
    symbols = {hour.hour.tickers[0].symbol for hour in hours}
    assert model.asked == 0
    assert {answer.model for answer in answers} == {EXPLORER}
    assert {answer.token_ids for answer in answers} == {()}
    assert {answer.text for answer in answers} == {
        f"{verb} {symbol} 20%" for verb in ("BUY", "SELL") for symbol in symbols
    }


async def test_a_scripted_agent_follows_the_news_as_often_as_its_skill_says() -> None:
    async def right(skill: float) -> float:
        cast = model_cast(20, 1, ScriptedPolicy(skill))
        hours = await play(Player(Market(1, luck=0.0), cast, NO_EXPLORATION))
        lives = [life for hour in hours if hour.hour.tickers[0].direction for life in hour.agents]
        return sum(life.pnl > 0 for life in lives) / len(lives)

    assert await right(1.0) == 1.0
    assert await right(0.0) == pytest.approx(0.5, abs=0.1)
    assert await right(0.5) == pytest.approx(0.75, abs=0.1)


def window_of(played: PlayedHour, world: SimulatedWorld) -> SimulatedWindow:
    return SimulatedWindow(played.hour.window_id, world, played.tape)


@pytest.mark.parametrize("decisions", [1, 3])
async def test_a_replayed_decision_shows_what_the_agent_saw(decisions: int) -> None:
    market = Market(3, decisions=decisions, stage="several")
    for played in await play(Player(market, scripted_cast(6, 3)), WINDOWS[:4]):
        points = decision_points(window_of(played, market))
        for step, point in enumerate(points):
            logged = played.agents[0].steps[step]
            assert list(point.messages) == list(logged.messages)
            assert point.seen == logged.seen
            assert list(point.messages) == messages_for(point.seen, market.stage)


@both_worlds
async def test_a_replayed_reply_makes_what_it_made_when_it_was_played(kind: Worlds) -> None:
    world = kind(3)
    checked = 0
    for played in await play(Player(world, scripted_cast(6, 3, rules_of(world)))):
        [point] = decision_points(window_of(played, world))
        for life in played.agents:
            scored = score_reply(point, life.steps[0].answer.text)
            own, nominal = (book.balance if kind is Market else 1.0 for book in (life.steps[0].book, point.book))
            assert scored.pnl / nominal == pytest.approx(life.pnl / own, abs=2e-6)
            checked += 1
    assert checked == 72


async def test_a_reply_is_scored_against_what_really_happened() -> None:
    market = Market(3, luck=0.0)
    for played in await play(Player(market, scripted_cast(3, 3)), WINDOWS[:4]):
        [point] = decision_points(window_of(played, market))
        [ticker] = played.hour.tickers
        up, down = f"BUY {ticker.symbol} 20%", f"SELL {ticker.symbol} 20%"
        good, bad = (up, down) if ticker.end_price > ticker.start_price else (down, up)
        assert score_reply(point, good).pnl > 20
        assert score_reply(point, bad).pnl < -20
        half = score_reply(point, good.replace("20%", "10%"))
        assert half.pnl == pytest.approx(score_reply(point, good).pnl / 2, rel=1e-6)
        blocked, unread = score_reply(point, "BUY $NOPE 20%"), score_reply(point, "buy it all")
        assert (blocked.is_valid, blocked.is_blocked, blocked.pnl) == (False, True, 0.0)
        assert (unread.is_valid, unread.is_blocked, unread.pnl) == (False, False, 0.0)
        assert unread.error is not None
        assert unread.error.startswith("unreadable")


def test_a_position_is_averaged_reduced_and_turned() -> None:
    from trainer.world.actions import Decision

    book = Book(10_000.0, 0.0).filled(Decision("BUY", "$COIN", 20), 100.0)
    book = book.filled(Decision("BUY", "$COIN", 20), 200.0)
    assert book.positions["$COIN"].units == pytest.approx(30.0)
    assert book.committed == pytest.approx(4_000.0)
    sold = book.filled(Decision("SELL", "$COIN", 30), 150.0)  # 20 of 30 units
    entry = 4_000.0 / 30
    assert sold.realised == pytest.approx(20 * (150 - entry))
    turned = sold.filled(Decision("SELL", "$COIN", 30), 150.0)
    assert turned.positions["$COIN"].units == pytest.approx(-10.0)
    assert turned.settled({"$COIN": 140.0}).balance == pytest.approx(10_000 + 30 * (150 - entry) + 100, abs=0.01)
