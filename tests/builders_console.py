"""Consoles for tests: in this process over a real database, or as the command in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx

from data_bridge.database import Database
from tests.builders import NOW
from tests.builders_lessons import WordEmbedder
from trainer.cli.listening import serve_until_asked
from trainer.config.console import ConsoleCommand
from trainer.config.settings import settings_from
from trainer.console.app import make_app
from trainer.console.door import Entrance
from trainer.console.keys import KeyPair, Keys
from trainer.console.live import Hub
from trainer.console.log_check import LogCheck
from trainer.console.services import Services
from trainer.hosting.connections import server_config
from trainer.lesson import Embedder
from trainer.run.advice import AdvisorOfConsole
from trainer.run.check_report import CheckReport, check_log
from trainer.run.lesson_desk import LessonDesk
from trainer.run.policy_desk import PolicyDesk
from trainer.run.score import RewardScorer

ROOT = Path(__file__).parents[1]
FULL, READ = "the-full-key-of-these-tests", "the-read-key-of-these-tests"
FAKE_TRAINING = f"{sys.executable} -m tests.fakes.console_training"


def services_of(
    database: Database, home: Path, *, embedder: Callable[[], Embedder] | None = None, **values: Any
) -> Services:
    settings = settings_from(ConsoleCommand, home=home, **values)

    async def check() -> CheckReport:
        return await check_log(database, settings.windows, settings.groups, settings.judge)

    advisor = AdvisorOfConsole(database, settings.model.model, settings.advice, settings.promotion, settings.secrets)
    return Services(
        database=database,
        hub=Hub(database),
        home=home,
        model=settings.model.model,
        command=settings,
        gate=settings.gate,
        addresses=settings.promotion,
        check=LogCheck(check),
        scorer=lambda: RewardScorer(database, settings.judge, settings.secrets, settings.windows, settings.groups),
        advisor=advisor,
        close_advisor=advisor.close,
        wanted_precision=settings.advice.advice_precision,
        lessons=LessonDesk(database, settings.lessons.game, settings.kept, embedder or WordEmbedder),
        policy=PolicyDesk(
            database, settings.policy, settings.limits, embedder or WordEmbedder, model=settings.model.model
        ),
    )


def door_of(home: Path, *, patience: float = 1000.0, hosts: Sequence[str] = (), prefix: str = "") -> Entrance:
    return Entrance.of(Keys(home, KeyPair(FULL, READ)), hosts, prefix, patience=patience)


@dataclass(frozen=True)
class Opened:
    """A console that listens on a port of this process."""

    services: Services
    door: Entrance
    url: str

    def client(self, key: str | None = FULL, **options: Any) -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx.AsyncClient(base_url=self.url, headers=headers | options.pop("headers", {}), **options)


@asynccontextmanager
async def opened_console(
    database: Database,
    home: Path,
    *,
    door: Entrance | None = None,
    poll: float = 0.05,
    patience: float = 60.0,
    proxy: str | None = None,
    **values: Any,
) -> AsyncIterator[Opened]:
    """``patience``: seconds that a client may keep the server waiting. ``proxy``: whose headers are believed."""
    services, door = services_of(database, home, **values), door or door_of(home)
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    app, started = make_app(services, door, poll=timedelta(seconds=poll)), asyncio.Event()
    config = server_config(app, connections=500, patience=patience, too_late=b"{}", grace=1, proxy=proxy)
    stop = asyncio.Event()
    serving = asyncio.create_task(
        serve_until_asked(config, listening, started.set, stop=stop, stopping=services.hub.close)
    )
    waiting = asyncio.create_task(started.wait())
    try:
        await asyncio.wait((serving, waiting), return_when=asyncio.FIRST_COMPLETED)
        assert started.is_set(), "the console ended"
        yield Opened(services, door, f"http://127.0.0.1:{listening.getsockname()[1]}")
    finally:
        waiting.cancel()
        stop.set()
        await serving


class ConsoleProcess:
    """``scripts/console.py`` on one database and home, as a user starts it."""

    def __init__(
        self, database_url: str, home: Path, *flags: str, port: int = 0, environment: Mapping[str, str] | None = None
    ) -> None:
        self.home, self.port, self.link = home, port or _free_port(), ""
        self._argv = ["--home", str(home), "--port", str(self.port), *flags]
        self._environment = {**os.environ, "DATABASE_URL": database_url, "HINDSIGHT_UNTIL": NOW.isoformat()}
        self._environment |= dict(environment or {})
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def keys(self) -> KeyPair:
        return KeyPair(**json.loads((self.home / "console" / "keys.json").read_text()))

    def start(self) -> None:
        """Returns when requests are answered."""
        self._process = subprocess.Popen(
            [sys.executable, str(ROOT / "scripts" / "console.py"), *self._argv],
            cwd=ROOT,
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            found = re.search(r"http://\S+/login\?code=\S+", line)
            if found:
                self.link = found[0]
                return
        raise AssertionError(f"the console ended with {self._process.wait()}")

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        return self._process.wait(60)

    def __enter__(self) -> ConsoleProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
