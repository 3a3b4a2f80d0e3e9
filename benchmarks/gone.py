"""Every stage of the real commands killed for good, or silent, in turn: how long until exit 4, and what it names.

    python benchmarks/gone.py                      # about 14 minutes, most of it waiting
    python benchmarks/gone.py --stages play judge  # those whose names contain one of the words

With the default ``--gone-after`` (45 s) unless another is given; each on a Postgres of its own with a log of 24 windows
(play makes its own), a tiny model, and local servers in the place of the judge and of W&B. Seconds count from the blow
until the process has ended. The limit is a minute. ``tests/integration/test_gone_for_good.py`` also resumes each run.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data_bridge.database import open_database
from data_bridge.migrate import apply
from tests.builders import NOW
from tests.builders_judge import API_KEY
from tests.fakes.judge_server import JudgeServer, Request, Response, honest
from tests.fakes.own_postgres import OwnPostgres
from tests.fakes.wandb_server import WandbServer, silent_from, wandb_server
from tests.tiny_model import tiny_model_directory
from tests.trainer_command import ON_LOG, insert_windows

ROOT = Path(__file__).resolve().parents[1]
WINDOWS, LIMIT, HELD = 24, 60.0, 3600.0
WANDB_KEY = "test-key-of-wandb"
PLAYING = (
    *("--simulate", "on", "--iterations", "1", "--windows-per-iteration", "2", "--agents", "4"),
    *("--explore", "answers", "--eval-windows", "2", "--eval-samples", "2", "--eval-questions", "0"),
)


class Scene:
    """One command with a database and a home of its own."""

    def __init__(self, folder: Path, base_model: Path, flags: tuple[str, ...]) -> None:
        self.postgres = OwnPostgres(folder / "postgres")
        self.home, self._output, self._base, self._flags = folder / "home", folder / "output.txt", base_model, flags

    async def fill(self, windows: int) -> None:
        async with open_database(self.postgres.url, self.home) as database:
            await apply(database.pool)
            await insert_windows(database, windows)

    def start(self, script: str, *flags: str) -> subprocess.Popen[bytes]:
        keys = {"JUDGE_API_KEY": API_KEY, "JUDGE_PRICE": "1/10", "WANDB_API_KEY": WANDB_KEY, "HF_HUB_OFFLINE": "1"}
        with self._output.open("wb") as output:
            return subprocess.Popen(
                [sys.executable, str(ROOT / "scripts" / script), "--home", str(self.home), *flags, *self._flags],
                env={**os.environ, **keys, "DATABASE_URL": self.postgres.url},
                stdout=output,
                stderr=output,
                cwd=ROOT,
            )

    def training(self, *flags: str) -> subprocess.Popen[bytes]:
        cpu = ("--base-model", str(self._base), "--backend", "cpu", "--threads", "1", "--lora-rank", "2")
        return self.start("train_mmo.py", *cpu, "--no-promote", "--stop-on", "off", *ON_LOG, *flags)

    def training_at(self, server: WandbServer, *flags: str) -> subprocess.Popen[bytes]:
        remote = ("--base-model", str(self._base), "--backend", "serverless", "--wandb-base-url", server.url)
        return self.start("train_mmo.py", *remote, "--no-promote", *ON_LOG, *flags)

    def until(self, happened: Callable[[], object], process: subprocess.Popen[bytes]) -> None:
        while not happened():
            if process.poll() is not None:
                raise SystemExit(f"it ended before it was struck:\n{self.said[-2000:]}")
            time.sleep(0.02)

    @property
    def said(self) -> str:
        return self._output.read_text(errors="replace")


@dataclass(frozen=True)
class Struck:
    """A command whose stage is gone since ``at``."""

    process: subprocess.Popen[bytes]
    at: float


Stage = Callable[[Scene], AbstractContextManager[Struck]]


def _asked(server: JudgeServer) -> tuple[str, ...]:
    where = ("--judge-model", "judge", "--judge-base-url", server.base_url, "--judge-concurrency", "2")
    return (*where, "--judge-order-rule", "all")


def _strikes(strike: Callable[[], None], server: JudgeServer, times: list[float]) -> Callable[[Request], Response]:
    """An honest judge; at its fifth request something happens, once."""
    struck = threading.Lock()

    def behave(request: Request) -> Response:
        if len(server.requests) > 4 and struck.acquire(blocking=False):
            strike()
            times.append(time.monotonic())
        return honest(delay=0.2)(request)

    return behave


def _postgres(how: str, script: str) -> Stage:
    """Postgres while groups are judged."""

    @contextmanager
    def stage(scene: Scene) -> Iterator[Struck]:
        times: list[float] = []
        with JudgeServer() as server:
            server.otherwise = _strikes(getattr(scene.postgres, how), server, times)
            if script == "train_mmo.py":
                process = scene.training(*_asked(server))
            else:
                process = scene.start(script, "--until", NOW.isoformat(), *_asked(server))
            scene.until(lambda: times, process)
            yield Struck(process, times[0])
        if how == "fall_silent":
            scene.postgres.speak_again()

    return stage


@contextmanager
def _postgres_beside_a_job(scene: Scene) -> Iterator[Struck]:
    with wandb_server(training_seconds=HELD) as server:
        process = scene.training_at(server)
        scene.until(lambda: server.count("GET", "events") > 2, process)
        scene.postgres.kill()
        yield Struck(process, time.monotonic())


@contextmanager
def _judge_killed(scene: Scene) -> Iterator[Struck]:
    with JudgeServer(otherwise=honest(delay=0.2)) as server:
        process = scene.training(*_asked(server))
        scene.until(lambda: len(server.requests) > 4, process)
    yield Struck(process, time.monotonic())


@contextmanager
def _judge_silent(scene: Scene) -> Iterator[Struck]:
    with JudgeServer() as server:
        server.otherwise = lambda request: honest(delay=0.2 if len(server.requests) <= 4 else HELD)(request)
        process = scene.training(*_asked(server))
        scene.until(lambda: len(server.requests) > 4, process)
        server.was_probed.clear()
        scene.until(server.was_probed.is_set, process)
        server.is_silent.set()
        yield Struck(process, time.monotonic())


@contextmanager
def _no_cluster(scene: Scene) -> Iterator[Struck]:
    process = scene.training("--workers", "1", "--ray-address", "127.0.0.1:1")
    scene.until(lambda: [*scene.home.glob("workers/*.log")], process)  # the job is open, and somebody looks for Ray
    yield Struck(process, time.monotonic())


@contextmanager
def _raylets(scene: Scene) -> Iterator[Struck]:
    """Ray's own daemon on this machine, killed whenever it appears."""
    times: list[float] = []
    with JudgeServer(otherwise=honest(delay=1.0)) as server:
        process = scene.training("--workers", "2", *_asked(server))

        def kill() -> None:
            while process.poll() is None:
                for one in _children(process, "raylet"):
                    one.kill()
                    times.append(time.monotonic())
                time.sleep(0.05)

        killing = threading.Thread(target=kill)
        killing.start()
        scene.until(lambda: times, process)
        yield Struck(process, times[0])
        killing.join()


@contextmanager
def _job(scene: Scene) -> Iterator[Struck]:
    with wandb_server(training_seconds=HELD) as server:
        process = scene.training_at(server)
        scene.until(lambda: server.count("GET", "events"), process)
    yield Struck(process, time.monotonic())


@contextmanager
def _submission(scene: Scene) -> Iterator[Struck]:
    with wandb_server() as server:
        server.holds = silent_from(lambda route, body: route == "jobs")
        process = scene.training_at(server)
        scene.until(lambda: server.count("POST", "jobs"), process)
        yield Struck(process, time.monotonic())


@contextmanager
def _rank(scene: Scene) -> Iterator[Struck]:
    process = scene.training("--train-workers", "3")
    scene.until(lambda: _children(process, "rank_process"), process)
    os.kill(_children(process, "rank_process")[0].pid, signal.SIGSTOP)
    yield Struck(process, time.monotonic())


@contextmanager
def _play(scene: Scene) -> Iterator[Struck]:
    with wandb_server() as server:
        server.holds = lambda route, body: route == "chat"
        process = scene.training_at(server, *PLAYING)
        scene.until(lambda: server.count("POST", "chat"), process)
    yield Struck(process, time.monotonic())


def _evaluation(*, is_silent: bool) -> Stage:
    @contextmanager
    def stage(scene: Scene) -> Iterator[Struck]:
        asked = threading.Event()

        def is_evaluated(route: str, body: object) -> bool:
            if route == "chat" and isinstance(body, dict) and body["n"] > 1:
                asked.set()
            return asked.is_set() and (is_silent or route == "chat")

        with wandb_server() as server:
            server.holds = is_evaluated
            process = scene.training_at(server, *PLAYING)
            scene.until(asked.is_set, process)
            struck = Struck(process, time.monotonic())
            if is_silent:
                yield struck
        if not is_silent:
            yield Struck(process, time.monotonic())

    return stage


def _children(process: subprocess.Popen[bytes], word: str) -> list[psutil.Process]:
    try:
        children = psutil.Process(process.pid).children(recursive=True)
        return [one for one in children if word in one.name() or any(word in part for part in one.cmdline()[:4])]
    except psutil.Error:
        return []


@dataclass(frozen=True)
class Case:
    stage: Stage
    named: str
    """What the sentence that ends the command must name, as a pattern."""
    windows: int = WINDOWS


_JUDGING = r"stopped while judging window \S+: The database"
_GROUP = r"The judge is gone: group \S+ of window \S+"
_EVALUATING = r"stopped while evaluating \S+: The model \S+"
CASES = {
    "postgres killed in judging": Case(_postgres("kill", "train_mmo.py"), _JUDGING),
    "postgres silent in judging": Case(_postgres("fall_silent", "train_mmo.py"), _JUDGING),
    "postgres killed beside a W&B job": Case(_postgres_beside_a_job, r"stopped while training batch \d+: The database"),
    "postgres killed, judge_windows.py": Case(_postgres("kill", "judge_windows.py"), _JUDGING),
    "postgres silent, judge_windows.py": Case(_postgres("fall_silent", "judge_windows.py"), _JUDGING),
    "judge killed": Case(_judge_killed, _GROUP),
    "judge silent": Case(_judge_silent, _GROUP),
    "workers: no Ray cluster there": Case(_no_cluster, r"Judging waits for window \S+"),
    "workers: raylet killed whenever it appears": Case(_raylets, r"Judging waits for window \S+"),
    "W&B killed while a job is followed": Case(_job, r"training job \S+ for batch \S+"),
    "W&B silent after a submission": Case(_submission, r"the submission for batch \S+"),
    "rank stopped as it starts": Case(_rank, r"--train-workers"),
    "model killed in play": Case(_play, r"stopped while playing day 1 of 1: The model \S+", windows=0),
    "model killed in evaluation": Case(_evaluation(is_silent=False), _EVALUATING, windows=0),
    "model silent in evaluation": Case(_evaluation(is_silent=True), _EVALUATING, windows=0),
}


def measure(name: str, base_model: Path, flags: tuple[str, ...]) -> bool:
    case = CASES[name]
    folder = Path(tempfile.mkdtemp(prefix="gone-"))
    scene = Scene(folder, base_model, flags)
    try:
        asyncio.run(scene.fill(case.windows))
        with case.stage(scene) as struck:
            code = struck.process.wait(600)
            took = time.monotonic() - struck.at
        sentence = next((line for line in reversed(scene.said.splitlines()) if line.startswith("error")), scene.said)
        good = code == 4 and took <= LIMIT and re.search(case.named, sentence) is not None
        print(f"{name}: exit {code} after {took:.1f} s{'' if good else '  <-- not as promised'}\n    {sentence[:300]}")
        return good
    finally:
        scene.postgres.stop()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", nargs="+", default=[""], help="only those whose names contain one of these words")
    parser.add_argument("--gone-after", help="instead of the default")
    chosen = parser.parse_args()
    flags = ("--gone-after", chosen.gone_after) if chosen.gone_after else ()
    wanted = [name for name in CASES if any(word in name for word in chosen.stages)]
    if not wanted:
        parser.error(f"no stage is called so; there are: {', '.join(CASES)}")
    with tempfile.TemporaryDirectory() as folder:
        base_model = tiny_model_directory(Path(folder) / "tiny")
        results = [measure(name, base_model, flags) for name in wanted]
    print(f"{sum(results)} of {len(wanted)} ended with exit 4 within {LIMIT:.0f} s, the unit named")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # also when it is piped
    sys.exit(main())
