"""kill -9 for parts of a run with workers, and an endpoint that counts what it is asked again because of it."""

from __future__ import annotations

import json
import random
import subprocess
import time
from dataclasses import dataclass, field

import psutil

from tests.fakes.judge_server import Request, Response, honest

_AFTERMATH = 15.0
"""Seconds after a kill in which what it kills indirectly may still die: workers end with their raylet or driver."""


def question_of(request: Request) -> str:
    """What is paid for once: these trajectories in this order. The ids are new in every prompt."""
    return json.dumps([shown.content for shown in request.shown], sort_keys=True)


@dataclass
class Count:
    """What the endpoint was asked, and when somebody was killed."""

    delay: float
    asked: dict[str, list[float]] = field(default_factory=dict)
    killed: list[tuple[float, str]] = field(default_factory=list)

    def answer(self, request: Request) -> Response:
        self.asked.setdefault(question_of(request), []).append(time.monotonic())
        return honest(delay=self.delay)(request)

    @property
    def calls(self) -> int:
        return sum(len(times) for times in self.asked.values())

    @property
    def repeated(self) -> list[float]:
        """When each question was asked whose answer was not kept: all but the last time."""
        return [moment for times in self.asked.values() for moment in times[:-1]]

    def unexplained(self) -> list[float]:
        """Of those, the ones that were not in flight when something was killed, or dying of it."""
        return [
            asked
            for asked in self.repeated
            if not any(killed - self.delay - 1 <= asked <= killed + _AFTERMATH for killed, _ in self.killed)
        ]


def processes(driver: subprocess.Popen[bytes]) -> dict[str, list[psutil.Process]]:
    """The driver and everything that it started, by part."""
    found: dict[str, list[psutil.Process]] = {"driver": [psutil.Process(driver.pid)]}
    for process in psutil.Process(driver.pid).children(recursive=True):
        try:
            words = " ".join(process.cmdline())
        except psutil.Error:
            continue
        part = next((name for mark, name in _MARKS.items() if mark in words), None)
        if part is not None:
            found.setdefault(part, []).append(process)
    return found


_MARKS = {
    "ray::RayWorker": "worker",
    "raylet/raylet": "raylet",
    "gcs_server": "gcs",
    "trainer.workers.ray_cluster": "placer",
}


def kill(driver: subprocess.Popen[bytes], target: str, chance: random.Random) -> bool:
    """kill -9 one process of this part; False if there is none just now."""
    try:
        there = processes(driver).get(target, [])
        if not there:
            return False
        chance.choice(there).kill()
    except psutil.Error:
        return False
    return True
