"""Who is kept out of the console: without a key, with the wrong one, from a foreign page, with a forged login."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from data_bridge.database import Database
from data_bridge.errors import ConfigurationError
from tests.builders_console import FULL, READ, door_of, services_of
from trainer.console.app import OPERATIONS, make_app
from trainer.console.door import COOKIE
from trainer.console.keys import KeyPair, Keys, Permission, key_file, make_keys
from trainer.console.operations import PREFIX

OWN = "http://127.0.0.1:8899"
FORM = {"content-type": "application/x-www-form-urlencoded"}
PARTS = {"run_id": "run-1", "release": "hindsight@step1", "agent_id": "agent-1", "key_id": "abc", "advice_id": "abc"}
PARTS |= {"prompt_id": "p-0123456789abcdef"}


NO_DATABASE: Any = None
"""Whoever is refused does not get so far; a request that did would fail on it, and so would the test."""


@pytest.fixture
async def anybody(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    app = make_app(services_of(NO_DATABASE, tmp_path), door_of(tmp_path, hosts=("console.example",)))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=OWN) as client:
        yield client


@pytest.fixture
async def visitor(database: Database, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(make_app(services_of(database, tmp_path), door_of(tmp_path)))
    async with httpx.AsyncClient(transport=transport, base_url=OWN) as client:
        yield client


def login(role: Permission = Permission.FULL, **options: Any) -> dict[str, str]:
    keys = Keys(Path("nowhere"), KeyPair(FULL, READ))
    return {"cookie": f"{COOKIE}={keys.session(role, **options)}"}


def path_of(operation: Any) -> str:
    return f"{PREFIX}{operation.path.format(**PARTS)}"


CALLS = [pytest.param(one, id=f"{one.method} {one.path}") for one in OPERATIONS]
DEEDS = [pytest.param(one, id=f"{one.method} {one.path}") for one in OPERATIONS if one.acts]
PAGES = ["/", "/runs", "/runs/run-1", "/runs/run-1/report"]


@pytest.mark.parametrize("operation", CALLS)
async def test_no_call_is_answered_without_a_key(anybody: httpx.AsyncClient, operation: Any) -> None:
    answer = await anybody.request(operation.method, path_of(operation), json={} if operation.body else None)
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "no_key"
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("operation", CALLS)
@pytest.mark.parametrize("given", ["Bearer wrong", "Bearer ", f"Basic {FULL}", f"bearer {FULL}x", FULL])
async def test_no_call_is_answered_with_a_wrong_key(anybody: httpx.AsyncClient, operation: Any, given: str) -> None:
    headers = {"authorization": given}
    answer = await anybody.request(
        operation.method, path_of(operation), json={} if operation.body else None, headers=headers
    )
    assert answer.status_code == 401


@pytest.mark.parametrize("operation", DEEDS)
@pytest.mark.parametrize("by", ["key", "login"])
async def test_no_deed_is_done_with_the_read_only_key(anybody: httpx.AsyncClient, operation: Any, by: str) -> None:
    headers = {"authorization": f"Bearer {READ}"} if by == "key" else login(Permission.READ) | {"origin": OWN}
    answer = await anybody.request(operation.method, path_of(operation), json={}, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "not_allowed")


HOSTS = [
    "evil.example",
    "127.0.0.1.evil.example",
    "localhost.evil.example:8899",
    "10.0.0.1",
    "",
    "[::2]:8899",
    "console",
]


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("path", ["/", "/login", f"{PREFIX}/training/status", "/openapi.json", "/static/console.js"])
async def test_a_foreign_host_gets_nothing_even_with_the_key(anybody: httpx.AsyncClient, host: str, path: str) -> None:
    answer = await anybody.get(path, headers={"host": host, "authorization": f"Bearer {FULL}"})
    assert answer.status_code == 421


@pytest.mark.parametrize("host", ["localhost:8899", "127.0.0.1", "[::1]:8899", "console.example", "CONSOLE.example."])
async def test_our_own_names_are_answered(anybody: httpx.AsyncClient, host: str) -> None:
    answer = await anybody.get("/health", headers={"host": host})
    assert answer.status_code == 200


FOREIGN = [
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"origin": "http://127.0.0.1:8900"},
    {"origin": "https://127.0.0.1:8899"},
    {"origin": "http://127.0.0.1:8899.evil.example"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"origin": OWN, "sec-fetch-site": "cross-site"},
    {"origin": "https://evil.example", "sec-fetch-site": "same-origin"},
]


@pytest.mark.parametrize("headers", FOREIGN)
@pytest.mark.parametrize("by", ["key", "login"])
@pytest.mark.parametrize(
    "path", [f"{PREFIX}/training/start", f"{PREFIX}/training/stop", "/start", "/stop", "/login", "/logout"]
)
async def test_an_unsafe_call_from_a_foreign_page_is_refused(
    anybody: httpx.AsyncClient, headers: dict[str, str], by: str, path: str
) -> None:
    who = {"authorization": f"Bearer {FULL}"} if by == "key" else login()
    answer = await anybody.post(path, json={}, headers=headers | who)
    assert answer.status_code == 403


async def test_a_login_without_a_word_of_the_browser_about_its_page_does_no_deed(anybody: httpx.AsyncClient) -> None:
    assert (await anybody.post(f"{PREFIX}/training/start", json={}, headers=login())).status_code == 403
    assert (await anybody.post("/start", content="", headers=FORM | login())).status_code == 403


def forged() -> dict[str, str]:
    until = int(time.time() + 1000)
    said = f"full.{until}.abcdefghijkl"
    other = base64.urlsafe_b64encode(hmac.new(b"guess", said.encode(), hashlib.sha256).digest()).rstrip(b"=").decode()
    good = login()["cookie"].partition("=")[2]
    return {
        "signed by another": f"{said}.{other}",
        "unsigned": f"{said}.",
        "no signature": said,
        "role raised": login(Permission.READ)["cookie"].partition("=")[2].replace("read", "full", 1),
        "longer": good.replace(".", "9.", 2).replace("full9", "full", 1),
        "cut": good[:-1],
        "expired": login(now=time.time() - 8 * 24 * 3600)["cookie"].partition("=")[2],
        "empty": "",
        "dots": "....",
        "the key itself": FULL,
        "of older keys": Keys(Path("nowhere"), KeyPair(FULL, "another-read-key-of-tests")).session(Permission.FULL),
    }


@pytest.mark.parametrize("name", list(forged()))
async def test_a_forged_login_is_no_login(anybody: httpx.AsyncClient, name: str) -> None:
    cookie = {"cookie": f"{COOKIE}={forged()[name]}"}
    assert (await anybody.get(f"{PREFIX}/training/status", headers=cookie)).status_code == 401
    deed = await anybody.post(f"{PREFIX}/training/start", json={}, headers=cookie | {"origin": OWN})
    assert deed.status_code == 401
    page = await anybody.get("/", headers=cookie)
    assert (page.status_code, page.headers["location"]) == (303, "/login?to=%2F")


@pytest.mark.parametrize("path", PAGES)
async def test_a_page_sends_those_without_a_login_to_it_and_back(anybody: httpx.AsyncClient, path: str) -> None:
    answer = await anybody.get(path)
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/login?to=")


async def test_the_key_is_exchanged_for_a_strict_cookie_that_scripts_cannot_read(visitor: httpx.AsyncClient) -> None:
    answer = await visitor.post("/login?to=%2Fruns", content=f"key={READ}", headers=FORM | {"origin": OWN})
    assert (answer.status_code, answer.headers["location"]) == (303, "/runs")
    parts = {part.strip().lower() for part in answer.headers["set-cookie"].split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/"} <= parts
    assert (await visitor.get("/runs")).status_code == 200
    assert (await visitor.post("/start", content="", headers=FORM | {"origin": OWN})).status_code == 403


@pytest.mark.parametrize("to", ["https://evil.example", "//evil.example", "/\\evil.example", "/login?to=/login", "x"])
async def test_logging_in_leads_to_no_other_site(visitor: httpx.AsyncClient, to: str) -> None:
    answer = await visitor.post("/login", params={"to": to}, content=f"key={FULL}", headers=FORM | {"origin": OWN})
    assert answer.headers["location"] == "/"


async def test_a_printed_link_logs_in_once(database: Database, tmp_path: Path) -> None:
    door = door_of(tmp_path)
    transport = httpx.ASGITransport(make_app(services_of(database, tmp_path), door))
    code = door.keys.one_time_code()
    for wanted in (200, 401):
        async with httpx.AsyncClient(transport=transport, base_url=OWN) as client:
            answer = await client.get("/login", params={"code": code})
            assert answer.status_code == wanted
            assert ("set-cookie" in answer.headers) is (wanted == 200)
    old = door.keys.one_time_code(now=time.time() - 3600)
    assert not door.keys.use_code(old)


async def test_guessing_keys_is_slowed_down(database: Database, tmp_path: Path) -> None:
    transport = httpx.ASGITransport(make_app(services_of(database, tmp_path), door_of(tmp_path, patience=1)))
    async with httpx.AsyncClient(transport=transport, base_url=OWN) as client:
        codes = []
        for _ in range(12):
            answer = await client.get(f"{PREFIX}/training/status", headers={"authorization": "Bearer guess"})
            codes.append(answer.status_code)
        assert codes == [401] * 10 + [429] * 2
        assert int(answer.headers["retry-after"]) >= 1


async def test_deeds_have_a_rate(database: Database, tmp_path: Path) -> None:
    transport = httpx.ASGITransport(make_app(services_of(database, tmp_path), door_of(tmp_path, patience=0.05)))
    headers = {"authorization": f"Bearer {FULL}"}
    async with httpx.AsyncClient(transport=transport, base_url=OWN, headers=headers) as client:
        codes = [(await client.post(f"{PREFIX}/training/stop", json={})).status_code for _ in range(5)]
    assert codes == [409, 409, 409, 429, 429]


async def test_every_answer_says_what_a_page_may_load(anybody: httpx.AsyncClient) -> None:
    for path in ("/login", "/static/console.js", f"{PREFIX}/training/status", "/nothing", "/health"):
        headers = (await anybody.get(path)).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'")
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"


async def test_behind_a_proxy_it_answers_under_its_path(database: Database, tmp_path: Path) -> None:
    door = door_of(tmp_path, prefix="/hindsight")
    transport = httpx.ASGITransport(make_app(services_of(database, tmp_path), door))
    async with httpx.AsyncClient(transport=transport, base_url=OWN) as client:
        for path in ("/hindsight/", "/"):  # a proxy may pass the path on, or not
            assert (await client.get(path)).headers["location"] == "/hindsight/login?to=%2F"
        page = (await client.get("/hindsight/login")).text
        assert 'action="/hindsight/login?' in page
        assert 'href="/hindsight/static/console.css"' in page
        answer = await client.post("/hindsight/login", content=f"key={FULL}", headers=FORM | {"origin": OWN})
        assert answer.headers["location"] == "/hindsight/"
        assert "path=/hindsight;" in answer.headers["set-cookie"].lower()
        document = (await client.get("/openapi.json", headers={"authorization": f"Bearer {FULL}"})).json()
        assert document["servers"] == [{"url": "/hindsight/api/v1"}]


# Keys


def test_the_first_start_makes_keys_that_only_their_owner_can_read(tmp_path: Path) -> None:
    os.umask(0o000)
    try:
        keys, is_new = Keys.open(tmp_path / "home", None, None)
    finally:
        os.umask(0o022)
    path = key_file(tmp_path / "home")
    assert is_new
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    again, is_new = Keys.open(tmp_path / "home", None, None)
    assert not is_new
    assert again.pair() == keys.pair()
    assert len(keys.pair().full) >= 40


def test_rotated_keys_end_the_old_ones_and_every_login_at_once(tmp_path: Path) -> None:
    keys, _ = Keys.open(tmp_path, None, None)
    old, session = keys.pair(), keys.session(Permission.FULL)
    assert keys.caller_of_session(session) is not None
    make_keys(tmp_path)
    os.utime(key_file(tmp_path), ns=(1, 1))  # a clock that does not tell the difference would not be noticed
    assert keys.caller_of_key(old.full) is None
    assert keys.caller_of_session(session) is None
    assert keys.caller_of_key(keys.pair().full) is not None


def test_keys_that_others_can_read_are_refused(tmp_path: Path) -> None:
    Keys.open(tmp_path, None, None)
    key_file(tmp_path).chmod(0o644)
    with pytest.raises(ConfigurationError, match="can be read by others"):
        Keys.open(tmp_path, None, None)


def test_a_damaged_key_file_is_one_sentence(tmp_path: Path) -> None:
    Keys.open(tmp_path, None, None)
    for text in ("", "[]", json.dumps({"full": "x"}), "\xff"):
        key_file(tmp_path).write_text(text)
        with pytest.raises(ConfigurationError, match="--rotate-keys"):
            Keys.open(tmp_path, None, None)


@pytest.mark.parametrize(("full", "read"), [("short", None), (None, "x" * 30), ("x" * 30, "x" * 30), ("x" * 30, "y")])
def test_given_keys_must_be_long_and_different(tmp_path: Path, full: str | None, read: str | None) -> None:
    with pytest.raises(ConfigurationError, match="HINDSIGHT_CONSOLE"):
        Keys.open(tmp_path, full, read)
