"""A model behind an endpoint whose replies to one question differ: so many of each, with their log-probabilities."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from tests.fakes.chat_endpoint import ChatEndpoint, completion


class VotingServer(ChatEndpoint):
    """``votes``: replies in the order in which they are given, the last one again and again."""

    def __init__(self, *votes: str, logprob: float = -0.05, status: int = 200) -> None:
        self.votes, self.logprob, self.status = votes, logprob, status
        self.requests: list[dict[str, Any]] = []
        self.keys: set[str] = set()
        self._lock = threading.Lock()
        super().__init__()

    def answer(self, body: dict[str, Any], headers: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        with self._lock:
            self.requests.append(body)
            self.keys.add(str(headers.get("Authorization")))
        if self.status != 200:
            return self.status, {"error": {"message": "no"}}
        return 200, completion(body["model"], [self._choice(place) for place in range(body.get("n", 1))])

    def _choice(self, place: int) -> dict[str, Any]:
        token = {"token": "token_id:5", "logprob": self.logprob, "bytes": None, "top_logprobs": []}
        return {
            "index": place,
            "message": {"role": "assistant", "content": self.votes[min(place, len(self.votes) - 1)]},
            "finish_reason": "stop",
            "logprobs": {"content": [token]},
        }
