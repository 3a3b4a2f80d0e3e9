"""The real serve.py in a process of its own, for tests that attack it over real sockets."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.tiny_model import shared_tiny_model

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "serve.py"
KEY = "serve-key-of-the-adversary-tests"
ASK: list[Any] = [{"role": "user", "content": "hello"}]
QUESTION: dict[str, Any] = {"model": "hindsight", "messages": ASK, "max_tokens": 2}
START = ["--port", "0", "--threads", "1"]
CHAT = "/v1/chat/completions"
SOON = 20.0
"""Seconds: long enough for a busy machine, and far below what a connection was held for before, which is for ever."""


@dataclass(frozen=True)
class Served:
    process: subprocess.Popen[str]
    port: int

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
        return float(psutil.Process(self.process.pid).memory_info().rss) / 1e6

    def seconds_to_health(self) -> float:
        started = time.monotonic()
        answer = httpx.get(f"{self.url}/health", timeout=SOON)
        assert answer.json()["status"] == "ok"
        return time.monotonic() - started


@contextmanager
def serving(factory: pytest.TempPathFactory, *flags: str, files: int | None = None, key: str = "") -> Iterator[Served]:
    """The command on the tiny model; ``files``: how many it may have open, with no way to raise that."""
    home = factory.mktemp("home")
    tiny = shared_tiny_model(factory)
    limit = ["prlimit", f"--nofile={files}:{files}"] if files is not None else []
    process = subprocess.Popen(
        [*limit, sys.executable, str(SCRIPT), "--home", str(home), "--base-model", str(tiny), *START, *flags],
        cwd=home,
        env={"PATH": os.environ["PATH"], "HOME": str(home)} | ({"HINDSIGHT_SERVE_KEY": key} if key else {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("Serving "), line + process.stdout.read()
        yield Served(process, int(line.split(":")[-1].split("/")[0]))
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def error_in(answer: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error
