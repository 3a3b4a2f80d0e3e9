"""Outcomes of a closed window: written whole, once, and corrected later."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from decimal import Decimal
from typing import Any

import asyncpg
import pytest

from data_bridge.database import Database
from data_bridge.errors import ConfigurationError
from data_bridge.models import NewsEvent, PredictionOutcome, StockOutcome, WindowOutcomes
from data_bridge.outcomes import record_outcomes
from data_bridge.quality import Rules
from data_bridge.reader import WindowReader
from data_bridge.window_ids import start_of
from tests.builders import insert_trajectory

WINDOW = "2026-03-02T10:00"


async def rows_of(database: Database, window_id: str = WINDOW) -> list[asyncpg.Record]:
    query = 'SELECT * FROM market_outcomes WHERE "windowId" = $1 ORDER BY "stockTicker", "predictionMarketId"'
    return await database.pool.fetch(query, window_id)


def stock(ticker: str = "ACME", start: float | None = 100.0, end: float | None = 110.0, **more: Any) -> WindowOutcomes:
    return WindowOutcomes(stocks=(StockOutcome(ticker, start, end, **more),))


async def test_stocks_news_and_predictions_are_written(database: Database) -> None:
    outcomes = WindowOutcomes(
        stocks=(StockOutcome("ACME", 100.0, 112.5, sentiment="positive", news=(NewsEvent("ACME wins"),)),),
        predictions=(PredictionOutcome("m1", "Up?", "YES", 0.98, 1234.5),),
    )

    assert await record_outcomes(database, WINDOW, outcomes) == 2

    acme, market = await rows_of(database)
    assert (acme["startPrice"], acme["endPrice"], acme["changePercent"]) == (100, Decimal("112.5"), Decimal("12.5"))
    assert acme["newsEvents"] == '[{"headline": "ACME wins"}]'
    assert acme["predictionMarketId"] is None
    assert (market["predictionMarketId"], market["outcome"]) == ("m1", "YES")
    assert market["finalProbability"] == Decimal("0.98")
    assert market["stockTicker"] is None


async def test_a_repetition_changes_nothing(database: Database) -> None:
    await record_outcomes(database, WINDOW, stock(start=3.0, end=3.01))
    before = await rows_of(database)
    assert await record_outcomes(database, WINDOW, stock(start=3.0, end=3.01)) == 0
    assert await rows_of(database) == before


async def test_a_late_correction_takes_the_place_of_the_old_figure(database: Database) -> None:
    await record_outcomes(database, WINDOW, stock(end=110.0))
    assert await record_outcomes(database, WINDOW, stock(end=120.0)) == 1
    (row,) = await rows_of(database)
    assert (row["endPrice"], row["changePercent"]) == (120, 20)


@pytest.mark.parametrize(
    ("correction", "change"), [({"start": None, "end": 80.0}, -20.0), ({"start": 200.0, "end": None}, -45.0)]
)
async def test_a_late_correction_of_one_price_does_not_leave_the_old_percentage(
    database: Database, correction: dict[str, Any], change: float
) -> None:
    await insert_trajectory(database.pool, window_id=WINDOW)  # there is no window without one
    await record_outcomes(database, WINDOW, stock(start=100.0, end=110.0))
    assert await record_outcomes(database, WINDOW, stock(**correction)) == 1
    window = await WindowReader(database, Rules(now=start_of(WINDOW) + timedelta(days=1))).read(WINDOW)
    assert window is not None
    assert [known.change_percent for known in window.outcomes.stocks] == [change]


async def test_one_price_repeated_leaves_the_percentage_as_it_was(database: Database) -> None:
    await record_outcomes(database, WINDOW, stock(start=0.333, end=0.444))
    assert await record_outcomes(database, WINDOW, stock(start=None, end=0.444)) == 0
    (row,) = await rows_of(database)
    assert row["changePercent"] == Decimal("33.33")


async def test_a_row_under_another_spelling_of_the_window_is_corrected_not_doubled(database: Database) -> None:
    await database.pool.execute(
        'INSERT INTO market_outcomes (id, "windowId", "stockTicker", "endPrice") '
        "VALUES ('x', '2026-03-02T10:00:00.000Z', 'ACME', 1)"
    )
    await record_outcomes(database, WINDOW, stock())
    rows = await database.pool.fetch('SELECT id, "endPrice" FROM market_outcomes')
    assert [(row["id"], row["endPrice"]) for row in rows] == [("x", 110)]


async def test_an_unresolved_market_stays_unresolved_until_it_is_resolved_and_then_for_good(database: Database) -> None:
    unresolved = WindowOutcomes(predictions=(PredictionOutcome("m1", "Up?"),))
    resolved = WindowOutcomes(predictions=(PredictionOutcome("m1", "Up?", "NO", 0.0),))

    await record_outcomes(database, WINDOW, unresolved)
    assert [row["outcome"] for row in await rows_of(database)] == [None]
    await record_outcomes(database, WINDOW, resolved)
    await record_outcomes(database, WINDOW, unresolved)
    assert [(row["outcome"], row["finalProbability"]) for row in await rows_of(database)] == [("NO", 0)]


async def test_a_move_of_a_thousand_percent_keeps_its_prices(database: Database) -> None:
    await record_outcomes(database, WINDOW, stock(start=1.0, end=50.0))
    (row,) = await rows_of(database)
    assert (row["startPrice"], row["endPrice"], row["changePercent"]) == (1, 50, None)


async def test_a_correction_to_a_huge_move_does_not_leave_the_old_percentage(database: Database) -> None:
    await record_outcomes(database, WINDOW, stock(start=1.0, end=2.0))
    await record_outcomes(database, WINDOW, stock(start=1.0, end=50.0))
    assert [row["changePercent"] for row in await rows_of(database)] == [None]


async def test_figures_that_no_column_holds_do_not_crash(database: Database) -> None:
    await record_outcomes(database, WINDOW, stock("PCT", None, None, change_percent=-4000.0))
    await record_outcomes(database, WINDOW, stock("NAN", float("nan"), float("inf")))
    await record_outcomes(database, WINDOW, stock("RICH", 1.0, 2e9))
    await record_outcomes(database, WINDOW, stock("TINY", 0.001, 0.5))
    rows = {
        row["stockTicker"]: (row["startPrice"], row["endPrice"], row["changePercent"])
        for row in await rows_of(database)
    }
    assert rows == {
        "NAN": (None, None, None),
        "PCT": (None, None, Decimal("-999.99")),
        "RICH": (1, None, Decimal("999.99")),
        "TINY": (0, Decimal("0.50"), Decimal("999.99")),
    }


async def test_all_or_nothing(database: Database) -> None:
    await database.pool.execute("ALTER TABLE market_outcomes ADD CHECK (\"stockTicker\" <> 'BAD')")
    with pytest.raises(asyncpg.CheckViolationError):
        await record_outcomes(database, WINDOW, WindowOutcomes(stocks=(StockOutcome("ACME"), StockOutcome("BAD"))))
    assert await rows_of(database) == []


async def test_two_trackers_at_once_write_each_market_once(database: Database) -> None:
    outcomes = WindowOutcomes(stocks=tuple(StockOutcome(f"T{n}", 1.0, 2.0) for n in range(5)))
    written = await asyncio.gather(*(record_outcomes(database, WINDOW, outcomes) for _ in range(6)))
    assert sorted(written) == [0, 0, 0, 0, 0, 5]
    assert len(await rows_of(database)) == 5


async def test_a_window_that_has_not_ended_is_refused(database: Database) -> None:
    almost = start_of(WINDOW) + timedelta(minutes=59)
    with pytest.raises(ConfigurationError, match="has not ended"):
        await record_outcomes(database, WINDOW, stock(), now=almost)
    assert await record_outcomes(database, WINDOW, stock(), now=almost + timedelta(minutes=1)) == 1


async def test_a_name_too_long_for_its_column_is_named(database: Database) -> None:
    with pytest.raises(ConfigurationError, match="ticker"):
        await record_outcomes(database, WINDOW, stock("A" * 21))
