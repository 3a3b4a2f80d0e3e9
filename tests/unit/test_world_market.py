"""The market is a pure function of its seed, balanced, and follows the news as far as the luck dial lets it."""

from __future__ import annotations

import hashlib
from itertools import pairwise

import msgspec
import pytest

from data_bridge.window_ids import is_closed, last_closed_windows, start_of, windows_from
from trainer.world import headlines
from trainer.world.chance import snowflake
from trainer.world.exchange import Exchange
from trainer.world.market import Market, StageName, outcomes_of
from trainer.world.observation import observe

WEEK = windows_from("2026-03-02T00:00", 168)


def digest(market: Market) -> str:
    hours = [msgspec.to_builtins(market.hour(window_id)) for window_id in WEEK]
    return hashlib.sha256(msgspec.json.encode(hours)).hexdigest()[:16]


def test_a_seed_is_the_same_market_on_every_machine() -> None:
    # Written down once: a change of this value means that logged windows can no longer be replayed.
    assert digest(Market(7, 0.2, "several", 3)) == "015919db2a3e17b9"
    assert digest(Market(7)) == "b0ce1f795e003844"


def test_two_seeds_are_two_markets() -> None:
    assert digest(Market(7)) != digest(Market(8))


@pytest.mark.parametrize("stage", ["one", "several"])
def test_up_and_down_are_balanced_over_every_pair_of_hours(stage: StageName) -> None:
    hours = [Market(3, stage=stage).hour(window_id) for window_id in WEEK]
    for first, second in zip(hours[::2], hours[1::2], strict=True):
        for ticker, mirrored in zip(first.tickers, second.tickers, strict=True):
            assert ticker.direction == -mirrored.direction
    directions = [hour.tickers[0].direction for hour in hours[::2]]
    assert 20 < sum(direction > 0 for direction in directions) < 64  # which of the two comes first is chance


def moves(market: Market) -> list[tuple[int, float]]:
    """Direction of the news, and the move after the first decision, of each ticker and hour."""
    hours = [market.hour(window_id) for window_id in WEEK]
    return [(t.direction, t.end_price / t.step_prices[0] - 1) for hour in hours for t in hour.tickers]


def test_without_luck_every_price_goes_where_the_news_points() -> None:
    assert all(direction * move > 0.015 for direction, move in moves(Market(5, luck=0.0)))


def test_at_a_fifth_of_luck_the_news_still_decides_the_direction() -> None:
    assert all(direction * move > 0 for direction, move in moves(Market(5, luck=0.2)))


def test_in_pure_noise_following_the_news_is_worth_nothing_over_a_pair_of_hours() -> None:
    followed = [direction * move for direction, move in moves(Market(5, luck=1.0))]
    for first, second in zip(followed[::2], followed[1::2], strict=True):
        assert first == pytest.approx(-second, abs=5e-4)  # prices are rounded to cents
    assert max(abs(move) for move in followed) > 0.02


def test_predictions_resolve_as_hinted_without_luck_and_by_a_coin_in_pure_noise() -> None:
    def came_true(luck: float) -> float:
        markets = [m for w in WEEK for m in Market(5, luck, "several").hour(w).predictions]
        return sum(m.resolves_yes == (m.direction > 0) for m in markets) / len(markets)

    assert came_true(0.0) == 1.0
    assert came_true(1.0) == 0.5


@pytest.mark.parametrize("stage", ["one", "several"])
def test_every_headline_says_what_it_is_meant_to_say(stage: StageName) -> None:
    for window_id in WEEK:
        hour = Market(2, stage=stage, decisions=4).hour(window_id)
        subjects = {ticker.symbol: ticker.symbol for ticker in hour.tickers}
        subjects |= {market.label: market.question for market in hour.predictions}
        assert len(hour.news) == len(hour.minutes)
        for news in hour.news:
            assert headlines.direction_of(news.headline, subjects[news.subject]) == news.direction
            others = [text for name, text in subjects.items() if name != news.subject]
            assert all(headlines.direction_of(news.headline, text) == 0 for text in others)


@pytest.mark.parametrize("stage", ["one", "several"])
def test_an_observation_knows_nothing_of_what_comes_later(stage: StageName) -> None:
    hour = Market(4, 0.0, stage, 3).hour(WEEK[10])
    for step in range(3):
        seen = observe(hour, step, Exchange(hour).quotes(step))
        published = [news.headline for news in hour.news if news.minute <= hour.minutes[step]]
        assert list(seen.headlines) == published
        assert len(published) == step + 1
        text = msgspec.json.encode(msgspec.to_builtins(seen)).decode()
        for news in hour.news[step + 1 :]:
            assert news.headline not in text
        for ticker in hour.tickers:
            later = {*ticker.step_prices[step + 1 :], ticker.end_price} - {ticker.step_prices[step]}
            assert not later & {quote.price for quote in seen.quotes}


def test_outcomes_tell_the_prices_the_news_and_the_resolutions() -> None:
    hour = Market(4, 0.2, "several", 4).hour(WEEK[0])
    exchange = Exchange(hour)
    for step in range(4):
        exchange.clear(step, [])
    tape = exchange.close()
    outcomes = outcomes_of(hour, tape.closing, tape.closing)
    assert [stock.ticker for stock in outcomes.stocks] == [t.symbol.removeprefix("$") for t in hour.tickers]
    for stock, ticker in zip(outcomes.stocks, hour.tickers, strict=True):
        assert stock.end_price == ticker.end_price
        assert stock.change_percent == pytest.approx((ticker.end_price / ticker.start_price - 1) * 100, abs=0.006)
    told = [news.headline for stock in outcomes.stocks for news in stock.news]
    assert len(told) + len(hour.predictions) == 4
    assert [p.outcome for p in outcomes.predictions] == ["YES" if m.resolves_yes else "NO" for m in hour.predictions]


def test_ids_of_one_window_never_collide_and_sort_by_time() -> None:
    at = start_of(WEEK[0])
    ids = [snowflake(at, index, 7, index) for index in range(500)]
    assert len(set(ids)) == 500
    later = [int(snowflake(start_of(window_id), 0, 7)) for window_id in WEEK]
    assert all(first < second for first, second in pairwise(later))


def test_the_last_closed_windows_end_with_the_newest_that_is_over_and_past_its_grace() -> None:
    windows = last_closed_windows(3, start_of("2026-03-02T12:00").replace(minute=9))
    assert windows == ("2026-03-02T08:00", "2026-03-02T09:00", "2026-03-02T10:00")
    now = start_of("2026-03-02T12:00").replace(minute=10)
    assert last_closed_windows(1, now) == ("2026-03-02T11:00",)
    assert is_closed("2026-03-02T11:00", 1, now)
