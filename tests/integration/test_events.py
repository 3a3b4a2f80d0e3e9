"""Events in order and none lost, also when a transaction commits late."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from data_bridge.database import Database
from trainer.ledger.events import AT_ONCE, Cursor, EventKind, LoggedEvent, claim_to_notify, forget_events, tell


async def say(source: Any, word: str) -> None:
    await tell(source, EventKind.RUN, {"state": word}, model="m", run_id="r")


def words(events: list[LoggedEvent]) -> list[str]:
    return [str(event.data["state"]) for event in events]


async def test_events_come_in_the_order_of_their_ids_and_each_once(database: Database) -> None:
    cursor = await Cursor.at_the_end(database)
    for word in ("one", "two", "three"):
        await say(database.pool, word)
    assert words(await cursor.advance(database)) == ["one", "two", "three"]
    assert await cursor.advance(database) == []


async def after_a_gap(cursor: Cursor, database: Database) -> list[LoggedEvent]:
    """The next events. Other tests write to the same server: a transaction of theirs may still bring the missing id."""
    while not (found := await cursor.advance(database)):
        await asyncio.sleep(0)
    return list(found)


async def test_an_event_that_commits_late_is_waited_for(database: Database) -> None:
    cursor = await Cursor.at_the_end(database)
    async with database.pool.acquire() as late:
        transaction = late.transaction()
        await transaction.start()
        await say(late, "late")
        await say(database.pool, "early")
        assert await cursor.advance(database) == []
        assert await cursor.advance(database) == []
        await transaction.commit()
    assert words(await cursor.advance(database)) == ["late", "early"]


async def test_the_late_one_may_have_the_higher_number(database: Database) -> None:
    """Then no transaction that has ended tells of it, and no snapshot either."""
    cursor = await Cursor.at_the_end(database)
    async with database.pool.acquire() as early, database.pool.acquire() as late:
        one, other = early.transaction(), late.transaction()
        await one.start()
        await early.execute("SELECT pg_current_xact_id()")
        await other.start()
        await say(late, "late")
        await say(early, "early")
        await one.commit()
        assert await cursor.advance(database) == []
        assert await cursor.advance(database) == []
        await other.commit()
    assert words(await after_a_gap(cursor, database)) == ["late", "early"]


async def test_an_id_that_was_rolled_back_is_passed_over(database: Database) -> None:
    cursor = await Cursor.at_the_end(database)
    async with database.pool.acquire() as undone:
        transaction = undone.transaction()
        await transaction.start()
        await say(undone, "undone")
        await say(database.pool, "kept")
        assert await cursor.advance(database) == []
        await transaction.rollback()
    assert words(await after_a_gap(cursor, database)) == ["kept"]


async def test_somebodys_long_transaction_does_not_hold_up_events(database: Database) -> None:
    cursor = await Cursor.at_the_end(database)
    async with database.pool.acquire() as long:
        transaction = long.transaction()
        await transaction.start()
        await long.execute("SELECT pg_current_xact_id()")
        await say(database.pool, "meanwhile")
        assert words(await cursor.advance(database)) == ["meanwhile"]
        await transaction.rollback()


async def test_a_cursor_that_starts_while_an_event_is_missing_still_gets_it(database: Database) -> None:
    async with database.pool.acquire() as late:
        transaction = late.transaction()
        await transaction.start()
        await say(late, "late")
        await say(database.pool, "early")
        cursor = await Cursor.at_the_end(database)
        first = await cursor.advance(database)
        assert "early" not in words(first) or "late" in words(first)
        await transaction.commit()
    assert words([*first, *await cursor.advance(database)]) == ["late", "early"]


async def test_many_writers_at_once_lose_and_double_nothing(database: Database) -> None:
    cursor, seen, writing = await Cursor.at_the_end(database), list[LoggedEvent](), asyncio.Event()

    async def write(number: int) -> None:
        for place in range(20):
            async with database.pool.acquire() as connection, connection.transaction():
                await say(connection, f"{number}-{place}")
                await connection.execute("SELECT pg_sleep($1)", 0.001 * ((number + place) % 5))

    async def read() -> None:
        while not writing.is_set():
            seen.extend(await cursor.advance(database))
            await asyncio.sleep(0)

    reading = asyncio.create_task(read())
    await asyncio.gather(*(write(number) for number in range(6)))
    writing.set()
    await reading
    seen.extend(await cursor.advance(database))
    assert sorted(words(seen)) == sorted(f"{number}-{place}" for number in range(6) for place in range(20))
    assert [event.event_id for event in seen] == sorted({event.event_id for event in seen})


async def test_more_events_than_one_query_reads_all_come(database: Database) -> None:
    await say(database.pool, "first")
    cursor = Cursor(0)
    for number in range(AT_ONCE):
        await say(database.pool, str(number))
    found = [*await cursor.advance(database), *await cursor.advance(database)]
    assert len(found) == AT_ONCE + 1


async def test_old_events_are_forgotten_and_a_cursor_goes_on(database: Database) -> None:
    cursor = await Cursor.at_the_end(database)
    await say(database.pool, "old")
    await database.pool.execute("UPDATE hindsight.events SET at = now() - interval '31 days'")
    await say(database.pool, "new")
    assert await forget_events(database, timedelta(days=30)) == 1
    assert words(await after_a_gap(cursor, database)) == ["new"]


async def test_an_event_is_handed_to_one_notifier_only(database: Database) -> None:
    for word in "abcdef":
        await say(database.pool, word)
    await tell(database.pool, EventKind.PROGRESS, {"state": "no news"}, model="m")
    found = await asyncio.gather(*(claim_to_notify(database) for _ in range(5)))
    assert sorted(word for part in found for word in words(part)) == list("abcdef")
    assert await claim_to_notify(database) == []
