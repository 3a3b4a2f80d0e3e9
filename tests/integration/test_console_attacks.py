"""The console under attack: guessed keys, keys that ended, names in paths, foreign proxies, slow clients, its log."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from data_bridge.database import Database
from tests.builders_console import FULL, READ, Opened, door_of, opened_console, services_of
from tests.builders_report_run import RUN, record_run
from trainer.console.app import OPERATIONS, make_app
from trainer.console.door import COOKIE, Entrance
from trainer.console.keys import Keys, Permission, key_file, make_keys
from trainer.ledger.events import EventKind, tell

API = "/api/v1"
OWN = "http://127.0.0.1:8899"
FORM = {"content-type": "application/x-www-form-urlencoded", "origin": OWN}


@pytest.fixture
async def console(database: Database, tmp_path: Path) -> AsyncIterator[Opened]:
    async with opened_console(database, tmp_path) as opened:
        yield opened


def client_of(database: Database, home: Path, door: Entrance) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(make_app(services_of(database, home), door)), base_url=OWN)


# Keys


async def test_after_too_many_wrong_keys_not_even_the_right_one_is_looked_at_for_a_while(
    database: Database, tmp_path: Path
) -> None:
    door = door_of(tmp_path, patience=1)
    login = {"cookie": f"{COOKIE}={door.keys.session(Permission.FULL)}"}
    async with client_of(database, tmp_path, door) as client:

        async def status(**headers: str) -> int:
            return (await client.get(f"{API}/training/status", headers=headers)).status_code

        assert [await status(authorization="Bearer guess") for _ in range(10)] == [401] * 10
        assert await status(authorization=f"Bearer {FULL}") == 429, "else a guesser is not slowed down at all"
        assert (await client.post("/login", content=f"key={FULL}", headers=FORM)).status_code == 429
        assert (await client.post(f"{API}/ingest/facts", headers={"authorization": "Bearer hsi_x"})).status_code == 429
        assert await status(**login) == 200, "who is logged in stays so"


async def test_links_that_any_page_can_open_do_not_lock_keys_out(database: Database, tmp_path: Path) -> None:
    async with client_of(database, tmp_path, door_of(tmp_path, patience=1)) as client:
        codes = [(await client.get("/login", params={"code": "x"})).status_code for _ in range(12)]
        assert codes == [401] * 10 + [429] * 2
        answer = await client.get(f"{API}/training/status", headers={"authorization": f"Bearer {FULL}"})
        assert answer.status_code == 200


async def test_a_stream_ends_with_the_key_that_opened_it(database: Database, tmp_path: Path) -> None:
    keys, _ = Keys.open(tmp_path, None, None)
    door = Entrance.of(keys, (), patience=1000)
    async with (
        opened_console(database, tmp_path, door=door) as console,
        console.client(keys.pair().read, timeout=30) as client,
        client.stream("GET", f"{API}/events", params={"after": 0}) as answer,
    ):
        lines = answer.aiter_lines()
        await tell(database.pool, EventKind.STEP, {"step": 1}, model="hindsight", run_id="r")
        while not (await anext(lines)).startswith("data: "):
            continue
        make_keys(tmp_path)
        await tell(database.pool, EventKind.STEP, {"step": 2}, model="hindsight", run_id="r")
        rest = [line async for line in lines if line.startswith("data: ")]
    assert rest == []


async def test_whoever_has_no_key_is_not_told_where_the_keys_are(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys, _ = Keys.open(tmp_path, None, None)
    key_file(tmp_path).chmod(0o644)
    async with client_of(database, tmp_path, Entrance.of(keys, (), patience=1000)) as client:
        keys._read_at = -1
        for answer in (
            await client.get(f"{API}/training/status", headers={"authorization": "Bearer x"}),
            await client.get(f"{API}/training/status", headers={"cookie": f"{COOKIE}=a.b.c.d"}),
            await client.post("/login", content="key=x", headers=FORM),
        ):
            assert answer.status_code == 503
            assert str(tmp_path) not in answer.text
    assert "can be read by others" in caplog.text


async def test_no_key_reaches_the_log_the_ledger_or_an_answer(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    keys, _ = Keys.open(tmp_path, None, None)
    pair, heard = keys.pair(), list[str]()
    async with opened_console(database, tmp_path, door=Entrance.of(keys, (), patience=1000)) as console:
        async with console.client(pair.full) as client:
            made = (await client.post(f"{API}/ingest/keys", json={"kind": "agent", "owner": "a"})).json()["key"]
            for path in ("/training/status", "/audit", "/ingest/keys", f"/runs/{pair.full}", f"/patterns?model={made}"):
                heard.append((await client.get(f"{API}{path}")).text)
            heard.append((await client.post(f"{API}/training/stop", json={"reason": pair.read})).text)
            heard.append((await client.get("/system")).text)
        async with console.client(f"{pair.full}x") as stranger:
            heard.append((await stranger.get(f"{API}/training/status")).text)
        async with console.client(made) as agent:
            row = {"trajectoryId": made, "startTime": "2026-01-01T00:00Z", "endTime": "2026-01-01T00:00Z"}
            body = {"trajectories": [row | {"stepsJson": "[]"}]}
            assert (await agent.post(f"{API}/ingest/trajectories", json=body)).status_code == 200
    stored = await database.pool.fetch("SELECT a::text FROM hindsight.audit a")
    keys_stored = await database.pool.fetch("SELECT k::text FROM hindsight.ingest_keys k")
    logged = "\n".join(one.getMessage() for one in caplog.records if not one.name.startswith(("httpx", "httpcore")))
    said = "\n".join([*heard, logged])
    assert pair.full not in said
    assert made not in str([*stored, *keys_stored])
    assert made not in logged
    assert pair.full not in str(stored)


# Names, paths and pages


@pytest.mark.parametrize(
    "path",
    [
        "/runs/..%2f..%2fconsole%2fkeys.json",
        "/runs/..%2f..%2fconsole%2fkeys.json/report",
        f"{API}/runs/..%2f..%2fetc%2fpasswd",
        f"{API}/runs/%00",
        f"{API}/runs/x'%20OR%201=1--",
        "/static/..%2f..%2fkeys.py",
        "/static/../keys.py",
        "/static/%2e%2e/app.py",
        "/static//etc/passwd",
        "/static/vendor/..%5c..%5ckeys.py",
    ],
)
async def test_no_path_leads_out(console: Opened, path: str) -> None:
    async with console.client() as client:
        request = client.build_request("GET", console.url)
        request.url = httpx.URL(console.url).copy_with(raw_path=path.encode())
        answer = await client.send(request)
    assert answer.status_code in (404, 422), answer.text
    assert "root:" not in answer.text
    assert "def " not in answer.text


NASTY = ["'; DROP TABLE hindsight.runs; --", "%", "\x00", "\ud800", "x" * 5000, "<svg onload=alert(1)>", "../..", "🦆"]


async def test_no_filter_of_any_call_or_page_fails_or_is_taken_for_sql_or_markup(
    console: Opened, database: Database, tmp_path: Path
) -> None:
    await record_run(database, tmp_path)
    calls = [
        (f"{API}{one.path}", name)
        for one in OPERATIONS
        if one.method == "GET" and "{" not in one.path and one.path != "/events"
        for name in one.query.model_fields
    ]
    pages = [(page, "model") for page in ("/", "/runs", "/releases", "/patterns")]
    asked = [*calls, *pages, ("/rewards", "agent"), ("/rewards", "role"), ("/", "said")]
    async with console.client(timeout=60) as client:
        for value in NASTY:
            for path, name in asked:
                raw = f"{path}?{name}=".encode() + _quoted(value.encode("utf-8", "surrogatepass"))
                answer = await client.get(httpx.URL(console.url).copy_with(raw_path=raw))
                assert answer.status_code in (200, 404, 422), f"{path}?{name}={value!r}: {answer.text}"
                assert "<svg onload" not in answer.text
    assert await database.pool.fetchval("SELECT count(*) FROM hindsight.runs") == 1


def _quoted(text: bytes) -> bytes:
    return b"".join(b"%%%02X" % byte for byte in text)


@pytest.mark.parametrize("model", ["../x", "a b", "x;rm", "<b>"])
async def test_a_form_starts_no_model_that_the_api_would_not(console: Opened, database: Database, model: str) -> None:
    headers = {"content-type": "application/x-www-form-urlencoded", "origin": console.url}
    async with console.client() as client:
        answer = await client.post("/start", params={"model": model}, content="", headers=headers)
    assert answer.status_code == 422
    assert await database.pool.fetchval("SELECT count(*) FROM hindsight.commands") == 0


async def test_every_page_refuses_to_be_framed_and_to_be_read_by_others(console: Opened) -> None:
    async with console.client() as client:
        for path in ("/", "/login", "/system", f"/runs/{RUN}/report", "/static/console.js", "/nothing", f"{API}/runs"):
            headers = (await client.get(path)).headers
            assert headers["x-frame-options"] == "DENY", path
            assert "frame-ancestors 'none'" in headers["content-security-policy"], path
            assert headers["cross-origin-opener-policy"] == "same-origin", path
            assert headers["cross-origin-resource-policy"] == "same-origin", path
            assert "access-control-allow-origin" not in headers, path
            assert "server" not in headers, path


async def test_a_team_cannot_be_named_into_another(console: Opened) -> None:
    async with console.client() as client:
        answer = await client.post(f"{API}/ingest/keys", json={"kind": "team", "owner": "reds/ann"})
    assert answer.status_code == 422
    assert "has no slash" in answer.json()["error"]["message"]


# Behind a proxy


@pytest.mark.parametrize(("proxy", "is_believed"), [("127.0.0.1", True), ("10.1.2.3", False), (None, False)])
async def test_only_the_named_proxy_says_who_calls_and_how(
    database: Database, tmp_path: Path, proxy: str | None, is_believed: bool
) -> None:
    forwarded = {"x-forwarded-proto": "https", "x-forwarded-for": "203.0.113.7", "host": "console.example"}
    door = door_of(tmp_path, hosts=("console.example",), prefix="/hindsight")
    async with (
        opened_console(database, tmp_path, door=door, proxy=proxy) as console,
        console.client(None, headers=forwarded | {"content-type": FORM["content-type"]}) as client,
    ):
        own, other = ("https", "http") if is_believed else ("http", "https")
        wrong = await client.post(
            "/hindsight/login", content=f"key={READ}", headers={"origin": f"{other}://console.example"}
        )
        assert wrong.status_code == 403
        answer = await client.post(
            "/hindsight/login", content=f"key={READ}", headers={"origin": f"{own}://console.example"}
        )
        assert answer.status_code == 303
        assert ("secure" in answer.headers["set-cookie"].lower()) is is_believed
        noted = await database.pool.fetchval("SELECT address FROM hindsight.audit")
        assert noted == ("203.0.113.7" if is_believed else "127.0.0.1")


async def test_under_a_path_errors_too_know_the_path(database: Database, tmp_path: Path) -> None:
    async with client_of(database, tmp_path, door_of(tmp_path, prefix="/hindsight")) as client:
        assert (await client.get("/hindsight")).headers["location"] == "/hindsight/login?to=%2F"
        for path, headers in (("/hindsight/nothing", {}), ("/hindsight/", {"host": "evil.example"})):
            page = await client.get(path, headers={"accept": "text/html", **headers})
            assert page.status_code in (404, 421)
            assert 'href="/hindsight/static/console.css"' in page.text
            assert 'href="/hindsight/"' in page.text
        assert (await client.get("/hindsightful/login")).status_code == 404


# Clients that hold a connection


async def is_closed(address: str, opening: bytes) -> bytes:
    """What the server says before it closes a connection that sends ``opening`` and no more."""
    host, port = address.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(opening)
    try:
        return await asyncio.wait_for(reader.read(), 30)
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("opening", "said"),
    [
        (b"", b""),
        (b"GET /login HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ", b"408"),
        (b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-www-form-urlencoded\r\n"
         b"Content-Length: 100\r\n\r\nkey=", b"408"),
    ],
)  # fmt: skip
async def test_a_client_that_sends_no_more_is_let_go(
    database: Database, tmp_path: Path, opening: bytes, said: bytes
) -> None:
    async with opened_console(database, tmp_path, patience=0.3) as console:
        assert said in await is_closed(console.url, opening)
        async with console.client() as client:
            assert (await client.get("/health")).status_code == 200


async def test_a_stream_that_nobody_reads_is_let_go_and_others_go_on(database: Database, tmp_path: Path) -> None:
    async with opened_console(database, tmp_path, patience=0.3) as console:
        host, port = console.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
        request = f"GET {API}/events?after=0 HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {FULL}\r\n\r\n"
        writer.write(request.encode())
        hub = console.services.hub
        async with asyncio.timeout(60):
            while b"events follow" not in await reader.readuntil(b"\n"):
                continue
            assert hub.streams == 1
            large = json.dumps({"reason": "x" * 100_000})
            await database.pool.execute(
                "INSERT INTO hindsight.events (transaction, kind, data)"
                " SELECT pg_current_xact_id(), 'collapse', $1::jsonb FROM generate_series(1, 300)",
                large,
            )
            while hub.streams:  # ends when the server gives up on the reader
                await asyncio.sleep(0.02)
        async with console.client(timeout=30) as client:
            assert (await client.get("/health")).status_code == 200
        writer.close()


async def test_a_header_without_end_is_refused(console: Opened) -> None:
    answer = await is_closed(console.url, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 100_000)
    assert answer.startswith(b"HTTP/1.1 400")


async def test_a_form_that_is_too_large_or_strange_is_refused(console: Opened) -> None:
    headers: dict[str, Any] = {"content-type": FORM["content-type"], "origin": console.url}
    async with console.client(None) as client:
        for content, status in ((b"key=" + b"x" * 100_000, 413), (b"&".join([b"a=1"] * 100), 400), (b"\xff\xfe", 400)):
            assert (await client.post("/login", content=content, headers=headers)).status_code == status
        answer = await client.post("/login", content="{}", headers=headers | {"content-type": "application/json"})
        assert answer.status_code == 415
