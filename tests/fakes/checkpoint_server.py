"""An OpenAI-compatible endpoint that serves several checkpoints of known skill on the simulated market.

Which one answers is in the request's ``model``; each is a function from what the agent sees to a reply.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

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


class CheckpointServer:
    """``with CheckpointServer({":step2": follows_the_news}) as server``: a checkpoint is known by how its name ends."""

    def __init__(self, checkpoints: Mapping[str, Answers]) -> None:
        self.asked: Counter[str] = Counter()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.asked[body["model"]] += 1
                answer = next(answers for end, answers in checkpoints.items() if body["model"].endswith(end))
                text = answer(body["messages"][-1]["content"])
                choices: list[dict[str, Any]] = [
                    {"index": n, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
                    for n in range(body.get("n") or 1)
                ]
                reply = {"id": "1", "object": "chat.completion", "created": 0, "model": body["model"]}
                data = json.dumps(reply | {"choices": choices}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                """Tests are quiet."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.base_url = f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()
