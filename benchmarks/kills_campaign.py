"""The lives of one command that is killed again and again at moments when it is at work. For ``kills.py``."""

from __future__ import annotations

import asyncio
import random
import subprocess
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol

from data_bridge.database import Database
from tests.fakes.kills import CountingJudge, Parts
from tests.fakes.ray_cluster import Cluster

TO_BEGIN, BETWEEN, IN_STEPS = 90.0, 20.0, 5.0
"""Seconds to wait for work before another part is chosen: in a new life, later, and for a judge's call beside steps,
since all may be judged already."""
LAST_LIFE = 900.0


class Process(Protocol):
    """A driver: a subprocess, or one that was forked from a server with its imports done."""

    @property
    def pid(self) -> int | None: ...


def exit_code(process: Process) -> int | None:
    return process.poll() if isinstance(process, subprocess.Popen) else getattr(process, "exitcode", None)


@dataclass
class Moments:
    """What this life of a driver has under way, by the ledger and the endpoint."""

    judge: CountingJudge
    database: Database
    begun: datetime = datetime.min

    async def begin(self) -> None:
        self.begun = await self.database.pool.fetchval("SELECT clock_timestamp()")

    async def is_stepping(self) -> bool:
        query = "SELECT count(*) FROM hindsight.batches WHERE state IN ('prepared', 'submitted') AND prepared_at > $1"
        return bool(await self.database.pool.fetchval(query, self.begun))

    async def workers(self) -> list[int]:
        """The processes that have claimed a unit; not those of a dead driver, which may ask a little longer."""
        query = (
            "SELECT DISTINCT w.pid FROM hindsight.units AS u JOIN hindsight.unit_jobs AS j USING (job_id)"
            " JOIN hindsight.unit_workers AS w USING (job_id, holder) WHERE u.state = 'taken' AND j.created_at > $1"
        )
        return [row["pid"] for row in await self.database.pool.fetch(query, self.begun)]

    async def is_asking(self, since: float) -> bool:
        return any(call.received > since for call in self.judge.calls[-50:]) and bool(await self.workers())


@dataclass
class Campaign:
    """One run's lives: killed again and again until enough kills were made; then one that may finish."""

    name: str
    start: Callable[[int], Process]
    """The driver of the round with this number, which has a judge of its own."""
    moments: Moments
    chance: random.Random
    cluster: Cluster | None
    log: Path
    say: Callable[[str], None]
    steps: bool = False
    """Whether drivers are killed in the middle of a step, and not of a call."""
    more_work: Callable[[int], Awaitable[None]] | None = None
    """Prepares the round with this number, if that takes more than another judge."""
    rounds: int = 0
    lives: int = 0
    has_begun: bool = False
    """Whether work was seen in this life."""
    endings: Counter[int] = field(default_factory=Counter)

    async def run(self, wanted: list[str]) -> None:
        self.rounds = 1
        driver, missed = await self.begin(), 0
        while wanted:
            part = wanted[0]
            came = await self.at_work(part, driver)
            if (code := exit_code(driver)) is not None:
                driver = await self.ended(code)
                continue
            await asyncio.sleep(self.chance.uniform(0.0, 0.6))
            if came and await self.kill(part, driver):
                wanted.pop(0)
                missed = 0
                self.say(f"{self.name}: {part}")
                if part == "driver":
                    driver = await self.replaced(driver)
                continue
            wanted.sort(key=lambda one: one == part)
            missed += 1
            if missed >= len(set(wanted)):  # no rank is left, or nothing to judge: another life has both
                await self.kill("driver", driver)
                wanted.pop()
                self.say(f"{self.name}: driver, for want of a {part}")
                driver, missed = await self.replaced(driver), 0
        await self.finish(driver)

    async def begin(self) -> Process:
        self.lives += 1
        self.has_begun = False
        await self.moments.begin()
        return self.start(self.rounds)

    async def ended(self, code: int) -> Process:
        """The next life after one that ended by itself: of the next round if the work was done."""
        self.endings[code] += 1
        if code == 0:
            self.rounds += 1
            if self.more_work is not None:
                await self.more_work(self.rounds)
        elif code != 4:  # 4: a unit was killed too often, or Ray did not come back in time; the same command resumes
            raise SystemExit(f"{self.name}: exit code {code}: {self.log.read_text()[-3000:]}")
        return await self.begin()

    async def replaced(self, driver: Process) -> Process:
        while exit_code(driver) is None:
            await asyncio.sleep(0.02)
        return await self.begin()

    def parts(self, driver: Process) -> Parts:
        assert driver.pid is not None
        return Parts(driver.pid, None if self.cluster is None else self.cluster.pid)

    async def kill(self, part: str, driver: Process) -> bool:
        among = await self.moments.workers() if part == "worker" else None
        return self.parts(driver).kill(part, self.chance, self.moments.judge, among)

    async def at_work(self, part: str, driver: Process) -> bool:
        """Wait until ``part`` is; False if the driver ends or it takes too long. One in ten drivers dies unwaited."""
        if part == "driver" and self.chance.random() < 0.1:
            await asyncio.sleep(self.chance.uniform(0.0, 3.0))
            return True
        asked, until = time.monotonic(), time.monotonic() + (BETWEEN if self.has_begun else TO_BEGIN)
        in_step = self.steps and part in ("rank", "driver")
        while exit_code(driver) is None and time.monotonic() < until:
            if await self.moments.is_stepping() if in_step else await self.is_there(part, driver, asked):
                self.has_begun = True
                return True
            if self.steps and await self.moments.is_stepping():
                until = min(until, time.monotonic() + IN_STEPS)
            await asyncio.sleep(0.05)
        return False

    async def is_there(self, part: str, driver: Process, since: float) -> bool:
        """Whether something was asked ``since``, and this part runs: what was killed before may not be back yet."""
        return await self.moments.is_asking(since) and bool(self.parts(driver).there(part))

    async def finish(self, driver: Process) -> None:
        for _ in range(5):
            until = time.monotonic() + LAST_LIFE
            while (code := exit_code(driver)) is None and time.monotonic() < until:
                await asyncio.sleep(0.1)
            if code is None:
                break
            self.endings[code] += 1
            if code == 0:
                return
            driver = await self.begin()
        raise SystemExit(f"{self.name}: the command does not finish: {self.log.read_text()[-3000:]}")
