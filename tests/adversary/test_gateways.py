"""A gateway, proxy or login page that answers every request with status 200 and something else than was asked for."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from data_bridge.database import Database
from data_bridge.errors import BackendError
from data_bridge.models import ChatMessage
from tests.builders import NOW, hours_before, insert_window
from tests.builders_art import prepared_batch
from tests.fakes.wandb_server import WandbServer, wandb_server
from tests.integration.test_serverless_backend import Ledger, backend_for, opened
from trainer.inference.chat_models import EndpointModel
from trainer.schedule.cron import Summary
from trainer.schedule.notify import notify
from trainer.train.backends.remote_job import Pace

ROOT = Path(__file__).resolve().parents[2]
IMPATIENT = Pace(first_pause=0.02, max_pause=0.1, request=60, patience=0.2, opening=0.2, checkpoint_grace=60)
PAGE = b"<!DOCTYPE html><html><body>Please sign in. <script>alert(1)</script></body></html>"

ANSWERS = {
    "page": ("text/html", PAGE),
    "page called JSON": ("application/json", PAGE),
    "nothing": ("application/json", b""),
    "empty object": ("application/json", b"{}"),
    "null": ("application/json", b"null"),
    "list": ("application/json", b"[]"),
    "error": ("application/json", b'{"error": {"message": "sign in"}}'),
}


class Gateway(ThreadingHTTPServer):
    """Between us and everybody: ``answer`` is a content type and a body."""

    answer = ANSWERS["page"]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Gateway

    def _handle(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        kind, body = self.server.answer
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = _handle

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with Gateway(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def wandb() -> Iterator[WandbServer]:
    with wandb_server() as running:
        yield running


def check_sentence(error: BaseException) -> None:
    said = str(error)
    assert "\n" not in said
    assert "<" not in said
    assert "Error" not in said, "a word of Python's"


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
async def test_at_the_registration(answer: tuple[str, bytes], gateway: Gateway, wandb: WandbServer) -> None:
    gateway.answer = answer
    backend = backend_for(wandb, IMPATIENT, wandb_base_url=gateway.url)
    with pytest.raises(BackendError, match="W&B does not answer about model hindsight") as refused:
        await backend.open()
    assert refused.value.exit_code == 4
    check_sentence(refused.value)


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
async def test_when_the_newest_checkpoint_is_asked_for(
    answer: tuple[str, bytes], gateway: Gateway, wandb: WandbServer
) -> None:
    """Taken for a model without checkpoints, the next one to be seen would be taken for a batch that was never sent."""
    gateway.answer = answer
    async with opened(wandb, IMPATIENT) as backend:
        await backend.train(prepared_batch(), on_submitted=Ledger())
        assert backend._remote is not None
        backend._remote._client.base_url = gateway.url
        with pytest.raises(BackendError, match="W&B does not answer about the newest checkpoint") as refused:
            await backend.current_step()
    check_sentence(refused.value)


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
async def test_at_the_endpoint_of_a_model(answer: tuple[str, bytes], gateway: Gateway) -> None:
    gateway.answer = answer
    model = EndpointModel(gateway.url, "hindsight", "none")
    with pytest.raises(BackendError, match=r"The model hindsight at .* did not answer") as refused:
        await model.chat([ChatMessage(role="user", content="Up?")])
    await model.close()
    assert refused.value.exit_code == 4
    check_sentence(refused.value)


@pytest.mark.parametrize("answer", ["page", "empty object", "error"])
async def test_at_the_judges_endpoint(
    answer: str, gateway: Gateway, database: Database, database_url: str, tmp_path: Path
) -> None:
    gateway.answer = ANSWERS[answer]
    for window_id in hours_before(number=3):
        await insert_window(database.pool, window_id, agents=3)
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, str(ROOT / "scripts" / "judge_windows.py"), "--until", NOW.isoformat()),
        *("--judge-model", "gpt-5-mini", "--judge-base-url", gateway.url, "--judge-attempts", "1"),
        env=os.environ | {"DATABASE_URL": database_url, "HINDSIGHT_HOME": str(tmp_path), "JUDGE_API_KEY": "sk-test"},
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(120):
        _, errors = await running.communicate()
    last = errors.decode().splitlines()[-1]
    assert running.returncode == 4, errors.decode()
    assert last.startswith("error: ")
    assert "Traceback" not in errors.decode()
    assert await database.pool.fetchval("SELECT count(*) FROM hindsight.verdicts") == 0


async def test_at_the_webhook(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A page is not an acceptance; a plain answer is, whatever it is called."""
    monkeypatch.setattr("trainer.schedule.notify._PAUSES", (0.01,))
    summary = Summary("job", "2026-10-18T03:00:00+00:00", "done", 0, "")
    assert not await notify(gateway.url, summary)
    assert "a web page" in caplog.text
    for answer in (("text/html", b"ok"), ("text/plain", b""), ("application/json", b"{}")):
        gateway.answer = answer
        assert await notify(gateway.url, summary)
