"""The market is a pure function of its seed, its prices persist, and they follow the news except for luck."""

from __future__ import annotations

import hashlib
import math
from functools import cache
from itertools import pairwise
from statistics import correlation, fmean, stdev

import msgspec
import pytest

from data_bridge.window_ids import is_closed, last_closed_windows, start_of, windows_from
from trainer.world import headlines
from trainer.world.chance import snowflake
from trainer.world.exchange import Exchange
from trainer.world.market import PERSISTENCE, QUIET, STAGES, Hour, Market, StageName, outcomes_of, regime_of
from trainer.world.observation import observe
from trainer.world.vocabulary import TICKERS

WEEK = windows_from("2026-03-02T00:00", 168)


def digest(market: Market) -> str:
    hours = [msgspec.to_builtins(market.hour(window_id)) for window_id in WEEK]
    return hashlib.sha256(msgspec.json.encode(hours)).hexdigest()[:16]


def test_a_seed_is_the_same_market_on_every_machine() -> None:
    # Written down once: a change of this value means that logged windows can no longer be replayed.
    assert digest(Market(7, 0.2, "several", 3)) == "029a522eea1645fa"
    assert digest(Market(7)) == "43719390a107b0fa"


def test_two_seeds_are_two_markets() -> None:
    assert digest(Market(7)) != digest(Market(8))


@cache
def hours_of(market: Market, count: int = 10_000) -> tuple[Hour, ...]:
    return tuple(market.hour(window_id) for window_id in windows_from("2026-01-01T00:00", count))


def moves(hours: tuple[Hour, ...]) -> list[tuple[int, float]]:
    """Direction of the news, and the move after the first decision, of each ticker and hour."""
    return [(t.direction, t.end_price / t.step_prices[0] - 1) for hour in hours for t in hour.tickers]


def test_without_luck_every_price_goes_where_the_news_points() -> None:
    pointed = [direction * move for direction, move in moves(hours_of(Market(5, luck=0.0), 500)) if direction]
    assert min(pointed) > 0.015
    assert len(pointed) > 350


@pytest.mark.parametrize(("luck", "least", "most"), [(0.2, 0.08, 0.12), (1.0, 0.48, 0.52)])
def test_luck_is_the_share_of_hours_whose_move_has_nothing_to_do_with_the_news(
    luck: float, least: float, most: float
) -> None:
    """In 0.1.0 there was no luck at 0.2: in none of 24,000 hours did the price go against the news."""
    pointed = [direction * move for direction, move in moves(hours_of(Market(5, luck))) if direction]
    assert least < sum(move < 0 for move in pointed) / len(pointed) < most
    assert min(abs(move) for move in pointed) > 0.015


@pytest.mark.parametrize("luck", [0.2, 1.0])
def test_acting_on_news_that_points_nowhere_is_worth_nothing_on_average(luck: float) -> None:
    bought = [move for direction, move in moves(hours_of(Market(5, luck))) if direction == 0]
    assert 0.13 < len(bought) / 10_000 < 0.17
    assert abs(fmean(bought)) < 2.6 * stdev(bought) / math.sqrt(len(bought))
    assert 0.47 < sum(move > 0 for move in bought) / len(bought) < 0.53


def test_a_regime_lasts_with_the_designed_correlation_and_hours_further_apart_are_less_related() -> None:
    symbol = TICKERS["trained"][0]
    regimes = [regime_of(7, symbol, hour) for hour in range(20_000)]
    assert correlation(regimes[:-1], regimes[1:]) == pytest.approx(PERSISTENCE, abs=0.025)
    assert correlation(regimes[:-2], regimes[2:]) == pytest.approx(PERSISTENCE**2, abs=0.025)
    assert correlation(regimes[:-24], regimes[24:]) == pytest.approx(0.0, abs=0.025)
    other = [regime_of(7, TICKERS["trained"][1], hour) for hour in range(20_000)]
    assert correlation(regimes, other) == pytest.approx(0.0, abs=0.025)
    assert fmean(regimes) == pytest.approx(0.0, abs=0.03)


def test_an_hour_begins_where_the_last_one_ended_drawn_a_tenth_towards_the_usual_price() -> None:
    market, symbol = Market(5), TICKERS["trained"][0]
    hours = [market._ticker(symbol, number, 1) for number in range(400_000, 400_400)]
    usual = math.exp(fmean(math.log(hour.start_price) for hour in hours))
    for before, after in pairwise(hours):
        assert after.last_hour_price == before.start_price
        gap = math.log(after.start_price / before.end_price)
        assert gap == pytest.approx(0.1 * math.log(usual / before.end_price), abs=0.01)


def test_the_ticker_changes_every_third_hour_and_each_is_drawn() -> None:
    symbols = [hour.tickers[0].symbol for hour in hours_of(Market(5), 600)]
    changes = sum(first != second for first, second in pairwise(symbols))
    assert 140 < changes < 200
    assert set(symbols) == set(TICKERS["trained"])


def test_the_outcome_of_an_hour_is_visible_in_the_next() -> None:
    """Otherwise a model could not be helped by a neighbouring hour that it was trained on, and no test could see it."""
    told = []
    for before, after in pairwise(hours_of(Market(5), 2_000)):
        [old], [new] = before.tickers, after.tickers
        if old.symbol == new.symbol:
            seen = observe(after, 0, Exchange(after).quotes(0))
            told.append(seen.quotes[0].is_up == (old.end_price > old.start_price))
    assert sum(told) / len(told) > 0.95


@pytest.mark.parametrize("stage", ["one", "several"])
def test_up_and_down_are_equally_frequent_and_no_hour_tells_its_neighbours_direction(stage: StageName) -> None:
    hours = hours_of(Market(3, stage=stage), 3_000)
    directions = [hour.tickers[0].direction for hour in hours]
    assert directions.count(1) / len(directions) == pytest.approx((1 - QUIET) / 2, abs=0.04)
    assert directions.count(-1) / len(directions) == pytest.approx((1 - QUIET) / 2, abs=0.04)
    opposite = sum(first == -second != 0 for first, second in zip(directions[::2], directions[1::2], strict=True))
    assert opposite / 1_500 < 0.5, "hours do not come in opposite pairs"


def test_agents_play_with_trained_tickers_only() -> None:
    for stage in STAGES:
        hours = hours_of(Market(4, stage=stage), 300)
        assert {ticker.symbol for hour in hours for ticker in hour.tickers} == set(TICKERS["trained"])


def test_predictions_resolve_as_hinted_without_luck_and_by_a_coin_in_pure_noise() -> None:
    def came_true(luck: float) -> float:
        markets = [m for hour in hours_of(Market(5, luck, "several"), 2_000) for m in hour.predictions]
        return sum(m.resolves_yes == (m.direction > 0) for m in markets) / len(markets)

    assert came_true(0.0) == 1.0
    assert came_true(0.2) == pytest.approx(0.9, abs=0.02)
    assert came_true(1.0) == pytest.approx(0.5, abs=0.03)


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
