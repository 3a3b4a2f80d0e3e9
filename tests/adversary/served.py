"""The real serve command in a process of its own, for tests that attack it over real sockets.

Forked from a server that has imported torch; ``tests/e2e/test_serve.py`` starts the script itself.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.fakes.trainer_process import start
from tests.tiny_model import shared_tiny_model

KEY = "serve-key-of-the-adversary-tests"
ASK: list[Any] = [{"role": "user", "content": "hello"}]
QUESTION: dict[str, Any] = {"model": "hindsight", "messages": ASK, "max_tokens": 2}
START = ["--port", "0", "--threads", "1"]
CHAT = "/v1/chat/completions"
SOON = 20.0
"""Seconds: long enough for a busy machine, and far below what a connection was held for before, which is for ever."""


@dataclass(frozen=True)
class Served:
    process: ForkServerProcess
    port: int
    output: Path

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def post(
        self, content: bytes | None = None, headers: dict[str, str] | None = None, **change: Any
    ) -> httpx.Response:
        body = json.dumps(QUESTION | change).encode() if content is None else content
        sent = {"Content-Type": "application/json"} | (headers or {})
        return httpx.post(self.url + CHAT, content=body, headers=sent, timeout=300)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=SOON)

    def megabytes(self) -> float:
        return float(psutil.Process(self.pid).memory_info().rss) / 1e6

    def seconds_to_health(self) -> float:
        started = time.monotonic()
        answer = httpx.get(f"{self.url}/health", timeout=SOON)
        assert answer.json()["status"] == "ok"
        return time.monotonic() - started

    def ended(self, number: int, seconds: float) -> tuple[int | None, str]:
        """The exit code after the signal, None if it runs on, and what it said after its first line."""
        os.kill(self.pid, number)
        self.process.join(seconds)
        return self.process.exitcode, self.output.read_text().partition("\n")[2]


@contextmanager
def serving(
    factory: pytest.TempPathFactory,
    *flags: str,
    files: int | None = None,
    key: str = "",
    ignoring: Sequence[int] = (),
) -> Iterator[Served]:
    """The command on the tiny model; ``files`` and ``ignoring`` as of ``trainer_process.start``."""
    home = factory.mktemp("home")
    tiny = shared_tiny_model(factory)
    output = factory.mktemp("said") / "output.txt"
    process = start(
        ["--home", str(home), "--base-model", str(tiny), *START, *flags],
        {"HOME": str(home)} | ({"HINDSIGHT_SERVE_KEY": key} if key else {}),
        output,
        command="serve",
        ignoring=ignoring,
        folder=home,
        files=files,
    )
    try:
        while process.is_alive() and not (output.exists() and "\n" in output.read_text()):
            time.sleep(0.01)
        said = output.read_text()
        assert said.startswith("Serving "), said
        yield Served(process, int(said.split(":")[-1].split("/")[0]), output)
    finally:
        process.kill()
        process.join()


def error_in(answer: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error
