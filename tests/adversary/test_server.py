"""serve.py under attack by requests: what a page in a browser may not do, and what is not answered as asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.adversary.served import ASK, CHAT, KEY, QUESTION, Served, error_in, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory) as served:
        yield served


def answer_to(server: Served, request: bytes) -> str:
    with server.connect() as connection:
        connection.sendall(request)
        return connection.recv(65_536).decode()


# Pages in a browser


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8808", "127.0.0.1.evil.example", "localhost.evil.example", "[::2]:80", "@"]
)
def test_a_rebound_name_gets_no_answer_from_any_route(server: Served, host: str) -> None:
    named = {"Host": host}
    answers = [httpx.get(server.url + path, headers=named) for path in ("/health", "/v1/models")]
    for answer in (*answers, server.post(headers=named)):
        assert answer.status_code == 421
        assert "--allowed-hosts" in error_in(answer)["message"]
        assert "step0" not in answer.text


def test_a_request_without_a_host_gets_no_answer(server: Served) -> None:
    assert answer_to(server, b"GET /v1/models HTTP/1.0\r\n\r\n").startswith("HTTP/1.1 421 ")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:99", "[::1]:8808", "localhost."])
def test_a_loopback_name_is_answered(server: Served, host: str) -> None:
    assert httpx.get(f"{server.url}/health", headers={"Host": host}).status_code == 200


def test_a_name_that_the_owner_allows_is_answered(tmp_path_factory: pytest.TempPathFactory) -> None:
    with serving(tmp_path_factory, "--allowed-hosts", "agents.internal, models.internal") as served:
        statuses = [
            httpx.get(f"{served.url}/health", headers={"Host": host}).status_code
            for host in ("agents.internal", "Models.Internal:443", "evil.internal")
        ]
    assert statuses == [200, 200, 421]


def test_on_every_address_an_address_is_answered_and_a_name_must_be_allowed(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with serving(tmp_path_factory, "--host", "0.0.0.0", key=KEY) as served:
        statuses = [
            httpx.get(f"{served.url}/health", headers={"Host": host}).status_code
            for host in ("10.1.2.3:8808", "[fd00::1]", "evil.example")
        ]
    assert statuses == [200, 200, 421]


@pytest.mark.parametrize(
    "kind", ["text/plain", "text/plain;charset=UTF-8", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
def test_what_a_form_can_send_is_refused(server: Served, kind: str) -> None:
    answer = server.post(headers={"Content-Type": kind})
    assert answer.status_code == 415
    assert "application/json" in error_in(answer)["message"]


def test_a_body_without_a_content_type_is_refused(server: Served) -> None:
    answer = httpx.post(server.url + CHAT, content=json.dumps(QUESTION).encode())
    assert answer.status_code == 415


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://127.0.0.1.evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_a_page_of_another_origin_is_refused(server: Served, headers: dict[str, str]) -> None:
    answer = server.post(headers=headers)
    assert answer.status_code == 403
    error_in(answer)


def test_the_servers_own_origin_and_a_charset_are_answered(server: Served) -> None:
    own = {"Origin": server.url, "Sec-Fetch-Site": "same-origin", "Content-Type": "Application/JSON; charset=utf-8"}
    assert server.post(headers=own).status_code == 200


# Requests that would be answered with something else than was asked for


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("top_k", 5),
        ("min_p", 0.1),
        ("repetition_penalty", 1.2),
        ("length_penalty", 2.0),
        ("stop_token_ids", [2]),
        ("ignore_eos", True),
        ("min_tokens", 4),
        ("chat_template", "{{ 1 }}"),
        ("guided_choice", ["BUY"]),
        ("reasoning_effort", "high"),
        ("tool_choice", "required"),
        ("function_call", {"name": "buy"}),
        ("audio", {"voice": "alloy"}),
    ],
)
def test_a_field_that_would_be_ignored_is_refused_by_its_name(server: Served, field: str, value: Any) -> None:
    answer = server.post(**{field: value})
    assert answer.status_code == 400
    error = error_in(answer)
    assert error["param"] == field
    assert field in error["message"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("top_p", 0.5),
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("response_format", {"type": "json_object"}),
        ("logit_bias", {"1": 5}),
        ("presence_penalty", 1),
    ],
)
def test_what_was_refused_before_is_now_refused_by_its_name(server: Served, field: str, value: Any) -> None:
    answer = server.post(**{field: value})
    assert (answer.status_code, error_in(answer)["param"]) == (400, field)


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([{"role": "tool", "tool_call_id": "1", "content": "42"}], "messages.0.role"),
        ([{"role": "function", "name": "f", "content": "42"}], "messages.0.role"),
        ([{"role": "developer", "content": "be brief"}, *ASK], "messages.0.role"),
        (
            [*ASK, {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function"}]}],
            "messages.1.tool_calls",
        ),
        ([*ASK, {"role": "assistant", "content": "", "function_call": {"name": "f"}}], "messages.1.function_call"),
        ([*ASK, {"role": "user", "content": "42", "tool_call_id": "1"}], "messages.1.tool_call_id"),
        ([{"role": "user", "content": None}], "messages.0.content"),
        ([{"role": "user", "content": [{"type": "image_url", "text": "a picture"}]}], "messages.0.content"),
        ([{"role": "user", "content": "word " * 5000}], "messages"),
    ],
)
def test_messages_that_the_model_would_not_see_are_refused_by_their_place(
    server: Served, messages: list[Any], param: str
) -> None:
    answer = server.post(messages=messages)
    assert (answer.status_code, error_in(answer)["param"]) == (400, param)


def test_a_value_that_asks_for_nothing_is_answered(server: Served) -> None:
    nothing: dict[str, Any] = {
        "top_p": 1,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "tools": [],
        "tool_choice": "auto",
    }
    notes: dict[str, Any] = {
        "metadata": {"run": "1"},
        "store": False,
        "response_format": {"type": "text"},
        "logit_bias": None,
    }
    played_back: dict[str, Any] = {
        "role": "assistant",
        "content": "hi",
        "refusal": None,
        "annotations": [],
        "tool_calls": None,
    }
    parts = {"role": "user", "content": [{"type": "text", "text": "hello"}]}
    assert server.post(messages=[*ASK, played_back, parts], **nothing, **notes).status_code == 200


def test_one_model_can_be_asked_for(server: Served) -> None:
    found = httpx.get(f"{server.url}/v1/models/hindsight@step0")
    assert found.json() == {"id": "hindsight@step0", "object": "model", "created": 0, "owned_by": "hindsight"}
    for name in ("gpt-4", "hindsight@step9", "a/b", "hindsight@step0/"):
        answer = httpx.get(f"{server.url}/v1/models/{name}")
        assert (answer.status_code, error_in(answer)["param"]) == (404, "model")


def test_an_error_repeats_neither_a_long_name_nor_a_secret(tmp_path_factory: pytest.TempPathFactory) -> None:
    with serving(tmp_path_factory, key=KEY) as served:
        proven = {"Authorization": f"Bearer {KEY}"}
        told = [
            served.post(headers=proven, model="m" * 1_000_000),
            served.post(json.dumps(QUESTION | {"x" * 1_000_000: 1}).encode(), proven),
            served.post(headers=proven, model=KEY),
            served.post(headers={"Authorization": f"Bearer {KEY}x"}),
        ]
        for answer in told:
            assert len(answer.content) < 1_000
            assert KEY not in answer.text
        assert [answer.status_code for answer in told] == [400, 400, 404, 401]


def test_a_body_of_many_small_faults_is_refused_without_a_list_of_them(server: Served) -> None:
    server.post(temperature=-1)
    before = peak_megabytes(server)
    answer = server.post(b'{"model":"hindsight","messages":[' + b"{}," * 600_000 + b"{}]}")
    assert (answer.status_code, error_in(answer)["param"]) == (400, "messages")
    assert len(answer.content) < 1_000
    assert peak_megabytes(server) - before < 200


def peak_megabytes(served: Served) -> float:
    status = Path(f"/proc/{served.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1e3
