"""An OpenAI-compatible endpoint that serves several checkpoints of known skill on the simulated market.

Which one answers is in the request's ``model``; each is a function from what the agent sees to a reply.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from tests.fakes.chat_endpoint import ChatEndpoint, completion
from trainer.world.headlines import direction_of

Answers = Callable[[str], str]


def follows_the_news(seen: str) -> str:
    """BUY or SELL the first ticker as the newest headline about it says."""
    symbol = seen.split()[0]
    said = [direction_of(line.removeprefix("News: "), symbol) for line in seen.splitlines() if line.startswith("News")]
    return f"{'SELL' if (said or [1])[-1] < 0 else 'BUY'} {symbol} 20%"


def against_the_news(seen: str) -> str:
    reply = follows_the_news(seen)
    return reply.replace("BUY", "SELL") if reply.startswith("BUY") else reply.replace("SELL", "BUY")


def babbles(seen: str) -> str:
    return "It depends."


class CheckpointServer(ChatEndpoint):
    """``with CheckpointServer({":step2": follows_the_news}) as server``: a checkpoint is known by how its name ends."""

    def __init__(self, checkpoints: Mapping[str, Answers]) -> None:
        self.asked: Counter[str] = Counter()
        self._checkpoints = checkpoints
        super().__init__()

    def answer(self, body: dict[str, Any], headers: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        self.asked[body["model"]] += 1
        answers = next(answers for end, answers in self._checkpoints.items() if body["model"].endswith(end))
        text = answers(body["messages"][-1]["content"])
        choices: list[dict[str, Any]] = [
            {"index": n, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            for n in range(body.get("n") or 1)
        ]
        return 200, completion(body["model"], choices)
