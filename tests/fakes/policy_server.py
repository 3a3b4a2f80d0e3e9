"""An OpenAI-compatible chat endpoint on a local port that always gives the same reply: a model to play with."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from tests.fakes.chat_endpoint import ChatEndpoint, completion


class PolicyServer(ChatEndpoint):
    """``with PolicyServer("BUY $TICKER 20%") as server``; what it was asked is in ``server.requests``.

    ``$TICKER`` stands for the first word that it is shown, which is the hour's ticker.
    """

    def __init__(self, reply: str, *, status: int = 200) -> None:
        self.requests: list[dict[str, Any]] = []
        self.keys: set[str] = set()
        self._reply = reply
        self._status = status
        self._lock = threading.Lock()
        super().__init__()

    def answer(self, body: dict[str, Any], headers: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        with self._lock:
            self.requests.append(body)
            self.keys.add(str(headers.get("Authorization")))
        if self._status != 200:
            return self._status, {"error": {"message": "no"}}
        reply = self._reply.replace("$TICKER", body["messages"][-1]["content"].split()[0])
        token = {"token": "token_id:5", "logprob": -0.5, "bytes": None, "top_logprobs": []}
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": reply},
            "finish_reason": "stop",
            "logprobs": {"content": [token]},
        }
        return 200, completion(body["model"], [choice])
