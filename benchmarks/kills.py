"""kill -9 of workers, raylets, ranks and drivers at random moments of work, hundreds of times; then what it cost.

    python benchmarks/kills.py --kills 200 --seed 1      # 20 to 25 minutes on two quiet cores
    python benchmarks/kills.py --kills 20                # a few minutes

Three runs, killed and started again until their work is done, with a judge behind real HTTP that counts its calls:

- **judging**: ``judge_windows.py --workers 2`` on a Ray that lives through it all; workers, drivers and what places the
  workers are killed.
- **own Ray**: the same command with a Ray of its own; raylets, the GCS and workers are killed.
- **training**: ``train_mmo --workers 2 --train-workers 3`` with a tiny model; ranks, drivers and workers are killed,
  ranks and drivers in the middle of a step.

Each kill waits until work is under way (a call of the judge, a step), then a random moment longer. When the work of a
run is done before its kills, it starts again with another judge, and more windows to train on.

Printed at the end, and exit code 1 for any violation: calls paid twice beyond those that were in flight, verdicts that
are missing, groups trained twice per use, groups that are neither trained nor left out for a reason.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol

import asyncpg
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from kills_counted import count_judging, count_training, count_whole

from data_bridge.database import Database, open_database
from data_bridge.embedded import EmbeddedServer
from tests.builders import (
    NOW,
    hours_before,
    insert_agents,
    insert_outcomes,
    insert_rows,
    recorder_steps,
    trajectory_row,
)
from tests.fakes.kills import CountingJudge, Parts
from tests.fakes.ray_cluster import Cluster, running_cluster
from tests.fakes.trainer_process import start as start_training
from tests.tiny_model import tiny_model_directory

ROOT = Path(__file__).resolve().parents[1]
SHARES = {
    "judging": {"worker": 80, "driver": 24, "placer": 10},
    "own Ray": {"raylet": 14, "gcs": 6, "worker": 10},
    "training": {"rank": 30, "driver": 20, "worker": 6},
}
"""Who is killed in which run, of 200: what is quickly replaced most often."""
KINDS = sorted({part for shares in SHARES.values() for part in shares})
TO_BEGIN, BETWEEN, IN_STEPS = 90.0, 20.0, 5.0
"""Seconds to wait for work before another part is chosen: in a new life, later, and for a judge's call beside steps,
since all may be judged already."""
LAST_LIFE = 900.0


def spread(kills: int, kinds: Sequence[str], chance: random.Random) -> dict[str, list[str]]:
    """Whom to kill in each run, by SHARES, in an order by chance."""
    all_of_them = [
        (run, part) for run, shares in SHARES.items() for part, n in shares.items() for _ in range(n) if part in kinds
    ]
    chosen = [all_of_them[place * len(all_of_them) // kills] for place in range(kills)]
    parts = {run: [part for one, part in chosen if one == run] for run in SHARES}
    for wanted in parts.values():
        chance.shuffle(wanted)
    return parts


async def insert_named_window(database: Database, window_id: str, *, agents: int, length: int = 1) -> None:
    """A window of one group whose prompts name it, so that no two questions to the judge are the same, several times:
    longer prompts make longer steps."""
    prompt = f"It is hour {window_id} now. " * length
    rows = [
        trajectory_row(
            f"agent-{number}",
            window_id=window_id,
            pnl=10.0 * number,
            steps=recorder_steps(2, pnl=10.0 * number, prompt=prompt, response=f"BUY ACME {number}"),
        )
        for number in range(1, agents + 1)
    ]
    await insert_agents(database.pool, [row["agentId"] for row in rows])
    await insert_rows(database.pool, "trajectories", rows)
    await insert_outcomes(database.pool, window_id)


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


@dataclass
class Bench:
    """What all three runs share."""

    home: Path
    server: EmbeddedServer
    judge: CountingJudge
    options: argparse.Namespace
    chance: random.Random
    began: float = field(default_factory=time.monotonic)

    def say(self, what: str) -> None:
        judge = self.judge
        said = f"{judge.kills[-1].in_flight} calls in flight, {len(judge.calls)} asked, {len(judge.repeated)} repeated"
        print(
            f"{time.monotonic() - self.began:6.0f} s  kill {len(judge.kills):3} of {self.options.kills}: {what}; {said}",
            flush=True,
        )

    def environ(self, database: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HINDSIGHT_", "JUDGE_"))}
        ours = {"DATABASE_URL": self.server.url(database), "JUDGE_API_KEY": "k", "RAY_TMPDIR": str(self.home / "ray")}
        return kept | ours | {"HINDSIGHT_WORKER_LEASE": f"{self.options.lease:g}s", "OMP_NUM_THREADS": "1"}

    def flags(self, name: str, cluster: Cluster | None) -> list[str]:
        address = [] if cluster is None else ["--ray-address", cluster.address]
        return [
            *("--until", NOW.isoformat(), "--home", str(self.home / name), "--lookback", "60d"),
            *("--workers", "2", *address, "--judge-base-url", self.judge.base_url),
            *("--judge-concurrency", "8", "--judge-order-rule", "all", "--held-out-share", "0"),
        ]

    async def create(self, database: str) -> None:
        admin = await asyncpg.connect(self.server.url())
        await admin.execute(f"CREATE DATABASE {database}")
        await admin.close()

    async def judged(self, name: str, database: str, cluster: Cluster | None, wanted: list[str]) -> bool:
        log = self.home / f"{database}.log"

        def start(number: int) -> Process:
            command = [sys.executable, str(ROOT / "scripts" / "judge_windows.py"), "--json"]
            with log.open("ab") as output:
                return subprocess.Popen(
                    [*command, *self.flags(database, cluster), "--judge-model", f"{database}-{number}"],
                    env=self.environ(database),
                    stdout=subprocess.DEVNULL,
                    stderr=output,
                    cwd=ROOT,
                )

        windows = self.options.windows
        await self.create(database)
        async with open_database(self.server.url(database), self.home, migrate=True) as opened:
            for window_id in hours_before(number=windows):
                await insert_named_window(opened, window_id, agents=4)
            moments = Moments(self.judge, opened)
            campaign = Campaign(name, start, moments, self.chance, cluster, log, self.say)
            await campaign.run(wanted)
            print_lives(campaign)
            return await count_judging(opened, name, expected=2 * windows * campaign.rounds)

    async def trained(self, cluster: Cluster, wanted: list[str]) -> bool:
        log, tiny = self.home / "training.log", tiny_model_directory(self.home / "tiny")

        def start(number: int) -> Process:
            argv = [
                *(*self.flags("training", cluster), "--judge-model", f"training-{number}"),
                *("--base-model", str(tiny), "--backend", "cpu", "--threads", "1", "--lora-rank", "2"),
                *("--train-workers", "3", "--groups-per-step", "4", "--min-spread", "0", "--keep-checkpoints", "0"),
                *("--no-promote", "--stop-on", "off", "--undo-on", "off"),
            ]
            return start_training(argv, self.environ("training"), log)

        windows = self.options.training_windows
        await self.create("training")
        async with open_database(self.server.url("training"), self.home, migrate=True) as opened:

            async def add_windows(number: int) -> None:
                for window_id in hours_before(number=number * windows)[:windows]:
                    await insert_named_window(opened, window_id, agents=8, length=8)

            await add_windows(1)
            moments = Moments(self.judge, opened)
            campaign = Campaign("training", start, moments, self.chance, cluster, log, self.say, True, add_windows)
            await campaign.run(wanted)
            print_lives(campaign)
            return await count_training(opened, self.home / "training")


def print_lives(campaign: Campaign) -> None:
    print(f"{campaign.name}: {campaign.lives} lives of the driver, {campaign.rounds} times all of the work;", end=" ")
    print(f"ended by itself with {dict(campaign.endings)}", flush=True)


async def campaigns(bench: Bench, wanted: dict[str, list[str]]) -> bool:
    good = True
    with ExitStack() as stack:
        cluster = stack.enter_context(running_cluster({"RAY_TMPDIR": str(bench.home / "ray")}))
        if wanted["judging"]:
            good &= await bench.judged("judging", "judging", cluster, wanted["judging"])
        if wanted["training"]:
            good &= await bench.trained(cluster, wanted["training"])
    if wanted["own Ray"]:
        good &= await bench.judged("own Ray", "own_ray", None, wanted["own Ray"])
    return good & count_whole(bench.judge, bench.home, time.monotonic() - bench.began)


def left_behind(home: Path) -> list[psutil.Process]:
    """Processes of Ray that outlived those who started them."""
    found = []
    for process in psutil.process_iter():
        try:
            words = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if str(home / "ray") in words:
            found.append(process)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="only these parts are killed")
    parser.add_argument("--windows", type=int, default=400, help="of a round of judging")
    parser.add_argument("--training-windows", type=int, default=80, help="of a round of training")
    parser.add_argument("--delay", type=float, default=0.3, help="seconds of one judge call")
    parser.add_argument("--lease", type=float, default=3.0, help="seconds of a worker's lease")
    parser.add_argument("--keep", action="store_true", help="keep the folder with logs and database, and name it")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    home = Path(tempfile.mkdtemp(prefix="kills-"))
    server = EmbeddedServer(home / "postgres", options={"fsync": "off", "max_connections": "200"})
    server.start()
    try:
        with CountingJudge(options.delay) as judge:
            bench = Bench(home, server, judge, options, chance)
            good = asyncio.run(campaigns(bench, spread(options.kills, options.kinds, chance)))
    finally:
        server.stop()
        for process in left_behind(home):
            process.kill()
        if options.keep:
            print(f"kept: {home}")
        else:
            shutil.rmtree(home, ignore_errors=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
