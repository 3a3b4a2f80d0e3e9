"""A model behind an OpenAI-compatible endpoint: a real local HTTP server that answers as vLLM does."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from data_bridge.errors import BackendError, EndpointGone
from data_bridge.models import ChatMessage
from trainer import probed
from trainer.inference import chat_models
from trainer.inference.chat_models import EndpointModel

ASKED = [ChatMessage(role="user", content="Up?")]


BRIEFLY = timedelta(seconds=1)


class _Server(ThreadingHTTPServer):
    refuses_logprobs = False
    is_broken = False
    daemon_threads = True  # those of requests that are never answered

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.requests: list[dict[str, Any]] = []
        self.probes = 0
        self.replies, self.answers_probes = threading.Event(), threading.Event()
        self.replies.set()
        self.answers_probes.set()


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(body | {"authorization": self.headers["Authorization"]})
        self.server.replies.wait()
        if self.server.is_broken:
            self._answer(401, {"error": {"message": "bad key sk-endpoint-secret"}})
        elif self.server.refuses_logprobs and body.get("logprobs"):
            self._answer(400, {"error": {"message": "logprobs are not supported"}})
        else:
            content = [{"token": f"token_id:{token}", "logprob": -0.5, "top_logprobs": []} for token in (41, 2)]
            choice = {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": "BUY"},
                "logprobs": {"content": content} if body.get("logprobs") else None,
            }
            answer = {"id": "1", "object": "chat.completion", "created": 0, "model": body["model"]}
            self._answer(200, answer | {"choices": [choice] * body["n"]})

    def do_GET(self) -> None:
        assert "Authorization" not in self.headers
        self.server.probes += 1
        if self.server.probes > 2:
            self.server.replies.set()
        self.server.answers_probes.wait()
        self._answer(404, {"error": {"message": "no such route"}})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serving(port: int = 0) -> Iterator[_Server]:
    server = _Server(port)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def server() -> Iterator[_Server]:
    with serving() as server:
        yield server


def model_at(server: _Server, gone_after: timedelta | None = None) -> EndpointModel:
    at, key = f"http://127.0.0.1:{server.server_port}/v1", "sk-endpoint-secret"
    return EndpointModel(at, "trained", key, name="trained@step3", gone_after=gone_after)


async def test_replies_carry_tokens_log_probabilities_and_the_checkpoints_name(server: _Server) -> None:
    model = model_at(server)
    replies = await model.chat(ASKED, n=2, temperature=0.7, max_tokens=9, stop=["\n"], seed=4)
    await model.close()
    assert [(reply.text, reply.token_ids, reply.logprobs, reply.model) for reply in replies] == [
        ("BUY", (41, 2), (-0.5, -0.5), "trained@step3")
    ] * 2
    sent = server.requests[0]
    assert (sent["n"], sent["temperature"], sent["max_tokens"], sent["stop"], sent["seed"]) == (2, 0.7, 9, ["\n"], 4)
    assert sent["authorization"] == "Bearer sk-endpoint-secret"


async def test_an_endpoint_without_log_probabilities_is_asked_once_and_then_without(server: _Server) -> None:
    server.refuses_logprobs = True
    model = model_at(server)
    for _ in range(2):
        (reply,) = await model.chat(ASKED)
        assert (reply.text, reply.token_ids, reply.logprobs) == ("BUY", (), ())
    await model.close()
    assert [bool(request.get("logprobs")) for request in server.requests] == [True, False, False]


async def test_a_refusal_is_a_sentence_without_the_key(server: _Server) -> None:
    server.is_broken = True
    model = model_at(server)
    with pytest.raises(BackendError, match="did not answer") as refused:
        await model.chat(ASKED)
    await model.close()
    assert "sk-endpoint-secret" not in str(refused.value)


async def test_an_endpoint_that_is_gone_ends_with_exit_4_and_names_the_model() -> None:
    with serving() as server:
        model = model_at(server, BRIEFLY)
        await model.chat(ASKED)
    with pytest.raises(EndpointGone, match=r"trained.* has not answered for 1 s") as gone:
        await asyncio.wait_for(model.chat(ASKED), 60)
    await model.close()
    assert gone.value.exit_code == 4


async def test_an_endpoint_that_is_away_for_less_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_models, "_ATTEMPTS", 1)
    monkeypatch.setattr(probed, "EVERY", 0.05)
    with serving() as server:
        port, model = server.server_port, model_at(server, timedelta(minutes=1))
    reply = asyncio.create_task(model.chat(ASKED))
    await asyncio.sleep(0)
    with serving(port):
        assert [one.text for one in await reply] == ["BUY"]
    await model.close()


async def test_a_reply_is_awaited_as_long_as_the_endpoint_answers_probes_and_no_longer(server: _Server) -> None:
    """The third probe lets it reply, later than it may be silent."""
    model = model_at(server, BRIEFLY)
    server.replies.clear()
    assert [one.text for one in await model.chat(ASKED)] == ["BUY"]

    server.replies.clear()
    server.answers_probes.clear()
    server.probes = -99
    with pytest.raises(EndpointGone):
        await asyncio.wait_for(model.chat(ASKED), 60)
    await model.close()
