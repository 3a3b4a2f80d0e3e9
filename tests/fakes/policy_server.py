"""An OpenAI-compatible chat endpoint on a local port that always gives the same reply: a model to play with."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class PolicyServer:
    """``with PolicyServer("BUY $COIN 20%") as server``; what it was asked is in ``server.requests``."""

    def __init__(self, reply: str, *, status: int = 200) -> None:
        self.requests: list[dict[str, Any]] = []
        self.keys: set[str] = set()
        lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    server.requests.append(body)
                    server.keys.add(str(self.headers["Authorization"]))
                token = {"token": "token_id:5", "logprob": -0.5, "bytes": None, "top_logprobs": []}
                choice = {
                    "index": 0,
                    "message": {"role": "assistant", "content": reply},
                    "finish_reason": "stop",
                    "logprobs": {"content": [token]},
                }
                answer = {"id": "1", "object": "chat.completion", "created": 0, "model": body["model"]}
                answer["choices"] = [choice]
                data = json.dumps(answer if status == 200 else {"error": {"message": "no"}}).encode()
                self.send_response(status)
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
