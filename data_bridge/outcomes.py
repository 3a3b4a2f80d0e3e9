"""What happened in a closed window, written to ``market_outcomes`` and read from there.

Outcomes are written in one transaction and may be written any number of times. A market that already has a row is
corrected in place; a value that a later call does not know (None) keeps its old value, so that a late call with half of
the facts loses nothing. But a change in per cent that belongs to another price is set to NULL: the reader computes it
from the prices. An unresolved prediction market is written as unresolved.

The game's columns are narrow: the maximum of ``changePercent`` is ±999.99. A larger move is stored as NULL if there are
prices, from which the reader computes it; without prices it is capped at the limit. Stored prices have two decimals, so
the change is computed from the exact ones. Rows may also come from the game, which does not fix the format of its news.
"""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from data_bridge.database import Database
from data_bridge.decode import Row, Undecodable, finite, number_of, parse_json
from data_bridge.errors import ConfigurationError
from data_bridge.facts import record_facts
from data_bridge.models import NewsEvent, PredictionOutcome, StockOutcome, WindowOutcomes
from data_bridge.window_ids import end_of, normalise

if TYPE_CHECKING:
    from data_bridge.migrate import Connection

logger = logging.getLogger(__name__)

_MAX_CHANGE = Decimal("999.99")
_MAX_PRICE = Decimal("99999999.99")
_MAX_VOLUME = Decimal("9999999999999.99")
_MAX_NAME_LENGTH = 20

# Any spelling of the window's id starts with its day and hour; some rows have a space for the T.
_EXISTING = """
SELECT "id", "stockTicker", "predictionMarketId" FROM "market_outcomes"
WHERE "windowId" LIKE $1 OR "windowId" LIKE $2
ORDER BY "createdAt", "id"
"""
_CORRECT = """
UPDATE "market_outcomes" SET {changes}
WHERE "id" = $1 AND ({differences})
"""
_ADD = """
INSERT INTO "market_outcomes" ("id", "windowId", {columns}, "createdAt") VALUES ($1, $2, {places})
"""

OUTCOME_COLUMNS = """
  "windowId", "stockTicker", "startPrice"::float8, "endPrice"::float8, "changePercent"::float8, sentiment,
  "newsEvents"::text, "predictionMarketId", question, outcome, "finalProbability"::float8, volume::float8
"""

_UNRESOLVED = frozenset({"", "unresolved", "pending", "open", "unknown", "null", "none"})
_HEADLINE_KEYS = ("headline", "title", "event", "text", "content", "description", "summary")
_MOMENT_KEYS = ("timestamp", "publishedAt", "createdAt", "time", "date")
_ANY = msgspec.json.Decoder()

V = TypeVar("V")


async def record_outcomes(
    database: Database, window_id: str, outcomes: WindowOutcomes, *, hours: int = 1, now: datetime | None = None
) -> int:
    """Write the ground truth of ``window_id``; returns how many rows were added or changed (0 for a repetition).

    ConfigurationError if the id is not valid, or if the window has not ended: its outcome is not known before.
    """
    canonical = normalise(window_id)
    if canonical is None:
        raise ConfigurationError(f"{window_id!r} is not a window id: write YYYY-MM-DDTHH:00.")
    now = now or datetime.now(UTC)
    if end_of(canonical, hours) > now:
        raise ConfigurationError(f"Window {canonical} has not ended yet: its outcomes are not known.")
    rows = [("stockTicker", _name(stock.ticker, "ticker"), _stock_columns(stock)) for stock in outcomes.stocks]
    rows += [("predictionMarketId", market.market_id, _prediction_columns(market)) for market in outcomes.predictions]

    async with database.pool.acquire() as connection, connection.transaction():
        # Two concurrent trackers would both find nothing and both insert: a lock serialises them, also with a pooler.
        await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", f"outcomes:{canonical}")
        day_and_hour = canonical[:13]
        existing = await connection.fetch(_EXISTING, f"{day_and_hour}:%", f"{day_and_hour.replace('T', ' ')}:%")
        written = 0
        for key, name, columns in rows:
            known = [row["id"] for row in existing if row[key] == name]
            if known:
                for row_id in known:
                    written += await _correct(connection, row_id, columns)
            else:
                await _add(connection, canonical, f"{key}:{name}", {key: name, **columns}, now)
                written += 1
    return written + await record_facts(database, canonical, outcomes.facts, hours=hours, now=now)


async def _correct(connection: Connection, row_id: str, columns: dict[str, Any]) -> int:
    facts = {name: value for name, value in columns.items() if value is not None}
    if not facts:
        return 0
    places = {name: f"${place}{_cast(name)}" for place, name in enumerate(facts, 2)}
    changes = [f'"{name}" = {place}' for name, place in places.items()]
    differences = {name: f'"{name}" IS DISTINCT FROM {place}' for name, place in places.items()}
    other_price = " OR ".join(differences[name] for name in ("startPrice", "endPrice") if name in facts)
    if other_price and "changePercent" not in facts:
        changes.append(f'"changePercent" = CASE WHEN {other_price} THEN NULL ELSE "changePercent" END')
    statement = _CORRECT.format(changes=", ".join(changes), differences=" OR ".join(differences.values()))
    result = await connection.execute(statement, row_id, *facts.values())
    return int(result.rpartition(" ")[2])


async def _add(connection: Connection, window_id: str, market: str, columns: dict[str, Any], now: datetime) -> None:
    names = ", ".join(f'"{name}"' for name in columns)
    places = ", ".join(f"${place}{_cast(name)}" for place, name in enumerate([*columns, "createdAt"], 3))
    written_at = now.astimezone(UTC).replace(tzinfo=None)
    row_id = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{window_id}/{market}"))
    statement = _ADD.format(columns=names, places=places)
    await connection.execute(statement, row_id, window_id, *columns.values(), written_at)


def _cast(column: str) -> str:
    """Explicit types where Postgres would guess; a price is compared as it will be stored, rounded."""
    kinds = {"startPrice": "numeric(10,2)", "endPrice": "numeric(10,2)", "changePercent": "numeric(5,2)"}
    kinds |= {"finalProbability": "numeric(5,4)", "volume": "numeric(15,2)", "newsEvents": "jsonb"}
    return f"::{kinds[column]}" if column in kinds else ""


def _stock_columns(stock: StockOutcome) -> dict[str, Any]:
    exact = (_decimal(stock.start_price), _decimal(stock.end_price))
    start, end = (_within(price, _MAX_PRICE, stock.ticker) for price in exact)
    change = _decimal(stock.change_percent)
    if change is None and exact[0] and exact[1] is not None:
        change = (exact[1] - exact[0]) / exact[0] * 100
    return {
        "startPrice": start,
        "endPrice": end,
        "changePercent": _storable_change(change, start, end, stock.ticker),
        "sentiment": _name(stock.sentiment, "sentiment"),
        "newsEvents": msgspec.json.encode([_news_json(event) for event in stock.news]).decode() if stock.news else None,
    }


def _storable_change(change: Decimal | None, start: Decimal | None, end: Decimal | None, ticker: str) -> Decimal | None:
    if change is None or abs(change) <= _MAX_CHANGE:
        return change
    if start is not None and end is not None and round(start, 2) > 0:
        return None
    logger.warning("%s moved by %.0f %%, more than the column holds: capped at the limit", ticker, change)
    return _MAX_CHANGE.copy_sign(change)


def _prediction_columns(market: PredictionOutcome) -> dict[str, Any]:
    probability = _decimal(market.final_probability)
    return {
        "question": market.question,
        "outcome": _name(market.outcome, "outcome"),
        "finalProbability": None if probability is None else min(max(probability, Decimal(0)), Decimal(1)),
        "volume": _within(_decimal(market.volume), _MAX_VOLUME, market.market_id),
    }


def _news_json(event: NewsEvent) -> dict[str, Any]:
    return {key: value for key, value in msgspec.structs.asdict(event).items() if value is not None}


def _decimal(number: float | None) -> Decimal | None:
    return Decimal(str(number)) if number is not None and math.isfinite(number) else None


def _within(number: Decimal | None, largest: Decimal, market: str) -> Decimal | None:
    if number is not None and abs(number) > largest:
        logger.warning("%s has a figure of %s, more than the column holds: left unknown", market, number)
        return None
    return number


def _name(text: str | None, what: str) -> str | None:
    if text is not None and len(text) > _MAX_NAME_LENGTH:
        raise ConfigurationError(f"The {what} {text!r} is longer than the {_MAX_NAME_LENGTH} characters of its column.")
    return text


def outcomes_of(rows: Iterable[Row]) -> WindowOutcomes:
    """The ground truth from one window's rows of ``market_outcomes``, oldest first: later rows correct earlier ones."""
    stocks: dict[str, StockOutcome] = {}
    predictions: dict[str, PredictionOutcome] = {}
    for row in rows:
        if row["stockTicker"]:
            stocks[row["stockTicker"]] = _stock(row)
        elif row["predictionMarketId"]:
            predictions[row["predictionMarketId"]] = _prediction(row)
    return WindowOutcomes(
        tuple(stocks[ticker] for ticker in sorted(stocks)),
        tuple(predictions[market] for market in sorted(predictions)),
    )


def _stock(row: Row) -> StockOutcome:
    start, end, change = finite(row["startPrice"]), finite(row["endPrice"]), finite(row["changePercent"])
    if change is None and start and end is not None:
        change = round((end - start) / start * 100, 4)
    return StockOutcome(
        row["stockTicker"], start, end, change, sentiment=row["sentiment"], news=decode_news(row["newsEvents"])
    )


def _prediction(row: Row) -> PredictionOutcome:
    outcome: str | None = row["outcome"]
    return PredictionOutcome(
        row["predictionMarketId"],
        question=row["question"],
        outcome=None if outcome is None or outcome.strip().lower() in _UNRESOLVED else outcome,
        final_probability=finite(row["finalProbability"]),
        volume=finite(row["volume"]),
    )


def decode_news(text: str | None) -> tuple[NewsEvent, ...]:
    """The headlines of ``newsEvents``, whose format the game does not fix: texts, objects, or an object of them."""
    if not text:
        return ()
    try:
        parsed = _ANY.decode(text)
    except (ValueError, RecursionError):
        try:
            parsed = parse_json(text)
        except Undecodable:
            return ()
    if isinstance(parsed, dict):
        inner = next((parsed[key] for key in ("events", "news", "newsEvents", "items") if key in parsed), None)
        parsed = inner if isinstance(inner, list) else [parsed]
    if not isinstance(parsed, list):
        parsed = [parsed]
    return tuple([event for item in parsed if (event := _news_event(item)) is not None])


def _news_event(item: Any) -> NewsEvent | None:
    if isinstance(item, str):
        return NewsEvent(item.strip()) if item.strip() else None
    if not isinstance(item, dict):
        return None
    headline = _first(item, _HEADLINE_KEYS, _stripped)
    if headline is None:
        return None
    sentiment = item.get("sentiment")
    return NewsEvent(
        headline,
        timestamp=_first(item, _MOMENT_KEYS, _moment),
        sentiment=sentiment if isinstance(sentiment, str) else None,
    )


def _first(item: dict[str, Any], keys: tuple[str, ...], read: Callable[[Any], V | None]) -> V | None:
    """The value of the first of ``keys`` that ``read`` can convert."""
    for key in keys:
        if key in item and (found := read(item[key])) is not None:
            return found
    return None


def _stripped(value: Any) -> str | None:
    return value.strip() or None if isinstance(value, str) else None


def _moment(value: Any) -> datetime | None:
    """A time as JavaScript writes it (milliseconds, or ISO 8601) as aware UTC."""
    try:
        if isinstance(value, str):
            moment = datetime.fromisoformat(value)
            return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        milliseconds = number_of(value)
        return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None
