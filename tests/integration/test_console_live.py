"""The stream: nothing lost or doubled over reconnects and servers, one query a second however many listen."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

from data_bridge.database import Database
from tests.builders_console import ConsoleProcess, Opened, opened_console
from trainer.ledger.events import EventKind, tell


async def say(source: Any, number: int) -> None:
    await tell(source, EventKind.STEP, {"step": number}, model="hindsight", run_id="r")


@asynccontextmanager
async def listening(console: Opened, *, after: int | None = None, last: int | None = None) -> AsyncIterator[Any]:
    """The events of a stream, as they come."""
    headers = {} if last is None else {"last-event-id": str(last)}
    async with (
        console.client(headers=headers, timeout=httpx.Timeout(10, read=30)) as client,
        client.stream("GET", "/api/v1/events", params={} if after is None else {"after": after}) as answer,
    ):
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.aiter_lines()
        await anext(lines)  # the stream has begun

        async def events() -> AsyncIterator[dict[str, Any]]:
            async for line in lines:
                if line.startswith("data: "):
                    yield json.loads(line.removeprefix("data: "))

        yield events()


async def take(events: AsyncIterator[dict[str, Any]], number: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while len(found) < number:
        found.append(await asyncio.wait_for(anext(events), 30))
    return found


async def test_a_stream_that_reconnects_to_any_server_misses_nothing_and_sees_nothing_twice(
    database: Database, tmp_path: Path
) -> None:
    async with opened_console(database, tmp_path) as first, opened_console(database, tmp_path) as second:
        async with listening(first, after=0) as events:
            for number in range(3):
                await say(database.pool, number)
            seen = await take(events, 3)
        for number in range(3, 6):
            await say(database.pool, number)
        async with listening(second, last=seen[-1]["id"]) as events:
            seen += await take(events, 3)
            await say(database.pool, 6)
            seen += await take(events, 1)
    assert [event["data"]["step"] for event in seen] == list(range(7))
    assert [event["kind"] for event in seen] == ["step"] * 7


async def test_a_stream_that_was_away_for_longer_than_memory_is_served_from_the_ledger(
    database: Database, tmp_path: Path
) -> None:
    await database.pool.execute(
        "INSERT INTO hindsight.events (transaction, kind, data)"
        " SELECT pg_current_xact_id(), 'step', jsonb_build_object('step', n) FROM generate_series(1, 1600) AS n"
    )
    async with opened_console(database, tmp_path) as console, listening(console, last=0) as events:
        seen = await take(events, 1600)
    assert [event["data"]["step"] for event in seen] == list(range(1, 1601))


async def test_an_event_that_commits_late_reaches_a_stream_in_its_place(database: Database, tmp_path: Path) -> None:
    async with opened_console(database, tmp_path) as console, listening(console, after=0) as events:
        async with database.pool.acquire() as late:
            transaction = late.transaction()
            await transaction.start()
            await say(late, 1)
            await say(database.pool, 2)
            queries = console.services.hub.queries
            while console.services.hub.queries < queries + 3:
                await asyncio.sleep(0.01)
            await transaction.commit()
        assert [event["data"]["step"] for event in await take(events, 2)] == [1, 2]


async def test_however_many_streams_are_open_the_ledger_is_asked_once_for_all(
    database: Database, tmp_path: Path
) -> None:
    async with opened_console(database, tmp_path, poll=0.2) as console:
        hub = console.services.hub

        async def one(ready: asyncio.Event) -> int:
            async with listening(console, after=0) as events:
                ready.set()
                return len(await take(events, 5))

        readiness = [asyncio.Event() for _ in range(50)]
        streams = [asyncio.create_task(one(ready)) for ready in readiness]
        await asyncio.gather(*(ready.wait() for ready in readiness))
        asked = hub.queries
        for number in range(5):
            await say(database.pool, number)
        assert await asyncio.gather(*streams) == [5] * 50
        assert hub.queries - asked < 50, "polls, not one query for each stream"


async def test_a_position_that_no_stream_gave_is_refused(database: Database, tmp_path: Path) -> None:
    async with opened_console(database, tmp_path) as console, console.client() as client:
        for last in ("x", "-1", "9" * 30, "1.5"):
            answer = await client.get("/api/v1/events", headers={"last-event-id": last})
            assert answer.status_code == 422


def resident_megabytes(pid: int) -> float:
    return float(psutil.Process(pid).memory_info().rss) / 1e6


async def test_two_hundred_open_streams_cost_little_memory_and_one_query_a_second(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    """Memory of the command's own process; queries by what Postgres counts of its statements on the events."""
    with ConsoleProcess(database_url, tmp_path / "home", "--no-train-here") as console:
        headers = {"authorization": f"Bearer {console.keys.full}"}
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=console.url, headers=headers, limits=limits, timeout=60) as client:
            assert (await client.get("/api/v1/training/status")).status_code == 200
            before = resident_megabytes(console.pid)
            heard = asyncio.Queue[int]()

            async def listen(ready: asyncio.Event) -> None:
                async with client.stream("GET", "/api/v1/events", params={"after": 0}) as answer:
                    async for line in answer.aiter_lines():
                        ready.set()
                        if line.startswith("data: "):
                            heard.put_nowait(json.loads(line.removeprefix("data: "))["id"])

            readiness = [asyncio.Event() for _ in range(200)]
            streams = [asyncio.create_task(listen(ready)) for ready in readiness]
            try:
                await asyncio.wait_for(asyncio.gather(*(ready.wait() for ready in readiness)), 120)
                asked, started = await scans(database), time.monotonic()
                for number in range(10):
                    await say(database.pool, number)
                for _ in range(200 * 10):
                    await asyncio.wait_for(heard.get(), 60)
                grown = resident_megabytes(console.pid) - before
                queries, seconds = await scans(database) - asked, time.monotonic() - started
            finally:
                for stream in streams:
                    stream.cancel()
                await asyncio.gather(*streams, return_exceptions=True)
    assert grown < 100, f"{grown:.0f} MB"
    assert queries <= 2 * (seconds + 2), "one poll a second, of at most two scans, however many streams there are"


async def scans(database: Database) -> int:
    """How often the events were looked through."""
    await database.pool.execute("SELECT pg_stat_force_next_flush()")
    query = "SELECT coalesce(seq_scan, 0) + coalesce(idx_scan, 0) FROM pg_stat_all_tables WHERE relname = 'events'"
    return int(await database.pool.fetchval(query))


async def test_a_server_that_stops_ends_its_streams_at_once_and_the_next_goes_on(
    database: Database, tmp_path: Path
) -> None:
    async with opened_console(database, tmp_path) as first, listening(first, after=0) as events:
        await say(database.pool, 1)
        seen = await take(events, 1)
        first.services.hub.close()
        assert [event async for event in events] == []
    await say(database.pool, 2)
    async with opened_console(database, tmp_path) as second, listening(second, last=seen[-1]["id"]) as events:
        assert [event["data"]["step"] for event in await take(events, 1)] == [2]


def test_a_stop_with_an_open_stream_is_a_normal_end(database_url: str, tmp_path: Path) -> None:
    console = ConsoleProcess(database_url, tmp_path / "home", "--no-train-here")
    console.start()
    headers = {"authorization": f"Bearer {console.keys.read}"}
    with httpx.stream("GET", f"{console.url}/api/v1/events", headers=headers, timeout=60) as answer:
        lines = answer.iter_lines()
        next(lines)
        assert console.stop() == 0
        assert [line for line in lines if line.startswith("data: ")] == []
