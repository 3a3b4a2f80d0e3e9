"""A model behind an OpenAI-compatible endpoint: a real local HTTP server that answers as vLLM does."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from data_bridge.errors import BackendError
from data_bridge.models import ChatMessage
from trainer.inference.chat_models import EndpointModel

ASKED = [ChatMessage(role="user", content="Up?")]


class _Server(ThreadingHTTPServer):
    refuses_logprobs = False
    is_broken = False
    requests: list[dict[str, Any]]


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(body | {"authorization": self.headers["Authorization"]})
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

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[_Server]:
    server = _Server(("127.0.0.1", 0), _Handler)
    server.requests = []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def model_at(server: _Server) -> EndpointModel:
    return EndpointModel(
        f"http://127.0.0.1:{server.server_port}/v1", "trained", "sk-endpoint-secret", name="trained@step3"
    )


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


async def test_an_endpoint_that_is_gone_ends_with_exit_4_and_names_the_model(server: _Server) -> None:
    model = model_at(server)
    await model.chat(ASKED)
    server.shutdown()
    server.server_close()
    with pytest.raises(BackendError, match=r"trained.* did not answer") as gone:
        await asyncio.wait_for(model.chat(ASKED), 60)
    await model.close()
    assert gone.value.exit_code == 4
