"""kill -9 for parts of a run, and a judge that knows which of its callers died before they could store its answer."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import psutil

from tests.fakes.judge_server import JudgeServer, Request, Response, honest

_AFTERMATH = 20.0
"""Seconds after a kill in which those die whom it kills indirectly: workers end with their raylet, or their driver."""
_STORING = 2.0
"""Seconds between an answer and its verdict in the ledger; a client keeps an idle connection for longer than that."""


@dataclass(slots=True, eq=False)
class Asked:
    """One call of the endpoint."""

    question: str
    """What is paid for once: these trajectories in this order, for this judge. The ids are new in every prompt."""
    received: float
    answered: float | None = None
    closed: float | None = None
    """When the connection that it came by was found closed."""

    @property
    def lost_its_caller(self) -> bool:
        """Whether who asked was gone before the answer came, or before it can have been stored."""
        return self.answered is not None and self.closed is not None and self.closed - self.answered <= _STORING


def question_of(request: Request) -> str:
    return json.dumps([request.body["model"], [shown.content for shown in request.shown]], sort_keys=True)


@dataclass(frozen=True, slots=True)
class Killed:
    moment: float
    part: str
    in_flight: int
    """Calls that the endpoint had not answered yet: what the kill may cost."""


class CountingJudge(JudgeServer):
    """An honest judge, each of whose answers takes ``delay`` seconds; remembers calls, callers and kills."""

    def __init__(self, delay: float) -> None:
        super().__init__(otherwise=honest(delay=delay))
        self.calls: list[Asked] = []
        self.kills: list[Killed] = []
        self._by_connection: dict[asyncio.Task[None] | None, list[Asked]] = {}

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await super()._connected(reader, writer)
        finally:
            closed = time.monotonic()
            for call in self._by_connection.pop(asyncio.current_task(), []):
                call.closed = closed

    async def _answered(self, request: Request) -> Response:
        call = Asked(question_of(request), time.monotonic())
        self.calls.append(call)
        self._by_connection.setdefault(asyncio.current_task(), []).append(call)
        response = await super()._answered(request)
        self.requests.clear()  # prompts of hours would fill the memory
        call.answered = time.monotonic()
        return response

    @property
    def in_flight(self) -> int:
        return sum(call.answered is None and call.closed is None for call in self.calls)

    def note_kill(self, part: str) -> None:
        """Before the kill. A rank asks nothing, so that its death may cost nothing."""
        self.kills.append(Killed(time.monotonic(), part, 0 if part == "rank" else self.in_flight))

    @property
    def questions(self) -> set[str]:
        return {call.question for call in self.calls}

    @property
    def in_flight_at_kills(self) -> int:
        """Calls in flight at all kills together."""
        return sum(kill.in_flight for kill in self.kills)

    @property
    def repeated(self) -> list[Asked]:
        """Calls whose answer was not kept: all of a question but the last."""
        by_question: dict[str, list[Asked]] = {}
        for call in self.calls:
            by_question.setdefault(call.question, []).append(call)
        return [call for calls in by_question.values() for call in calls[:-1]]

    def unexplained(self) -> list[Asked]:
        """Repeated calls that no kill took the caller of: paid twice for nothing."""
        return [call for call in self.repeated if not (call.lost_its_caller and self._follows_a_kill(call))]

    def _follows_a_kill(self, call: Asked) -> bool:
        closed = call.closed or call.received
        return any(kill.moment <= closed and call.received <= kill.moment + _AFTERMATH for kill in self.kills)


_MARKS = {
    "ray::RayWorker": "worker",
    "raylet/raylet": "raylet",
    "gcs_server": "gcs",
    "trainer.workers.ray_cluster": "placer",
    "rank_process": "rank",
}
"""What a part's command line holds."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The processes of a run by part: those that the driver started, and those of a cluster that it uses."""

    driver: int
    cluster: int | None = None

    def there(self, part: str) -> list[psutil.Process]:
        try:
            roots = [psutil.Process(pid) for pid in (self.driver, self.cluster) if pid is not None]
            if part == "driver":
                return roots[:1]
            return [one for one in _below(roots) if _part_of(one) == part]
        except psutil.Error:
            return []

    def kill(
        self, part: str, chance: random.Random, judge: CountingJudge, among: Collection[int] | None = None
    ) -> bool:
        """kill -9 one process of this part (with one of these ids), which ``judge`` notes; False if there is none."""
        there = [one for one in self.there(part) if among is None or one.pid in among]
        if not there:
            return False
        judge.note_kill(part)
        try:
            chance.choice(there).kill()
        except psutil.Error:
            judge.kills.pop()
            return False
        return True


def _part_of(process: psutil.Process) -> str | None:
    try:
        words = " ".join(process.cmdline())
    except psutil.Error:
        return None
    return next((part for mark, part in _MARKS.items() if mark in words), None)


def _below(roots: Iterable[psutil.Process]) -> list[psutil.Process]:
    return [child for root in roots for child in root.children(recursive=True)]
