"""kill -9 of workers, of Ray's daemons, of what places the workers and of the driver, at random, hundreds of times.

    python benchmarks/kills.py --kills 200

A judge endpoint counts what it is asked. Printed at the end: questions asked more than once, how many of those had been
in flight when something was killed (the price of a kill), groups without a verdict, and groups with two of one order.
Fails if a question was paid for twice without a kill, or if anything is lost or counted twice.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data_bridge.database import Database, open_database
from data_bridge.embedded import EmbeddedServer
from tests.builders import NOW, hours_before, insert_window
from tests.fakes.judge_server import JudgeServer
from tests.fakes.kills import Count, kill

ROOT = Path(__file__).resolve().parents[1]
TARGETS = ("worker",) * 6 + ("raylet", "gcs", "placer", "driver")
"""Who is killed, by chance; workers more often, as they are in a cluster."""


@dataclass
class Campaign:
    """Lives of one command, killed again and again until enough kills were made; then one that may finish."""

    command: list[str]
    environ: dict[str, str]
    log: Path
    chance: random.Random
    count: Count
    between: tuple[float, float]
    until: float
    """When to stop killing, however many were wanted, so that the rest can finish."""
    lives: int = 0
    endings: Counter[int] = field(default_factory=Counter)

    def start(self) -> subprocess.Popen[bytes]:
        self.lives += 1
        with self.log.open("ab") as output:
            return subprocess.Popen(self.command, env=self.environ, stdout=output, stderr=output, cwd=ROOT)

    async def run(self, kills: int) -> None:
        driver = self.start()
        wanted = len(self.count.killed) + kills
        while len(self.count.killed) < wanted and time.monotonic() < self.until:
            if self.chance.random() < 0.9:  # otherwise also while it starts
                await self.at_work(driver)
            await asyncio.sleep(self.chance.uniform(*self.between))
            if driver.poll() is None:
                target = self.chance.choice(TARGETS)
                if kill(driver, target, self.chance):
                    self.count.killed.append((time.monotonic(), target))
                    if target == "driver":
                        driver.wait()
                        driver = self.start()
            else:
                self.endings[driver.returncode] += 1
                if driver.returncode == 0:
                    break
                driver = self.start()
        await self.finish(driver)

    async def at_work(self, driver: subprocess.Popen[bytes], patience: float = 30.0) -> None:
        """Until the judge is asked something new, or the driver ends."""
        before, until = self.count.calls, time.monotonic() + patience
        while self.count.calls == before and driver.poll() is None and time.monotonic() < until:
            await asyncio.sleep(0.05)

    async def finish(self, driver: subprocess.Popen[bytes]) -> None:
        for _ in range(5):
            code = await asyncio.to_thread(driver.wait, 600)
            self.endings[code] += 1
            if code == 0:
                return
            driver = self.start()
        raise SystemExit(f"the command does not finish: see {self.log}")


async def judging(
    url: str, home: Path, kills: int, windows: int, delay: float, seed: int, lease: float, minutes: float
) -> bool:
    async with open_database(url, home, migrate=True) as database:
        for window_id in hours_before(number=windows):
            await insert_window(database.pool, window_id, agents=8)
        big = hours_before(number=windows + 1)[0]
        await insert_window(database.pool, big, agents=600)
        count = Count(delay)
        with JudgeServer(otherwise=count.answer) as server:
            flags = ["--until", NOW.isoformat(), "--home", str(home), "--lookback", "60d", "--workers", "2", "--json"]
            flags += ["--judge-model", "judge", "--judge-base-url", server.base_url, "--judge-concurrency", "8"]
            flags += ["--judge-order-rule", "all", "--held-out-share", "0"]
            campaign = Campaign(
                [sys.executable, str(ROOT / "scripts" / "judge_windows.py"), *flags],
                {**os.environ, "DATABASE_URL": url, "JUDGE_API_KEY": "k", "HINDSIGHT_WORKER_LEASE": f"{lease:g}s"},
                home / "judging.log",
                random.Random(seed),
                count,
                (0.1, 1.5),
                time.monotonic() + 60 * minutes,
            )
            await campaign.run(kills)
        return await told(database, count, campaign, windows + 75)


async def told(database: Database, count: Count, campaign: Campaign, groups: int) -> bool:
    stored: list[Any] = await database.pool.fetch(
        "SELECT verdict_key, count(*) AS orders, count(DISTINCT order_number) AS distinct_orders"
        " FROM hindsight.verdicts GROUP BY 1"
    )
    killed = Counter(target for _, target in count.killed)
    print(f"{len(count.killed)} kills ({', '.join(f'{n} {t}' for t, n in killed.most_common())})")
    print(f"{campaign.lives} lives of the driver, exit codes {dict(campaign.endings)}")
    print(f"{count.calls} calls for {len(count.asked)} questions: {len(count.repeated)} asked again, ", end="")
    rate = len(count.repeated) / max(1, len(count.killed))
    print(f"{rate:.2f} a kill; not in flight at one: {len(count.unexplained())}")
    missing = groups - len(stored)
    twice = sum(row["orders"] != row["distinct_orders"] for row in stored)
    print(f"{len(stored)} of {groups} groups have a verdict, {twice} more than one of an order; lost: {missing}")
    return not count.unexplained() and not missing and not twice


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--windows", type=int, default=300)
    parser.add_argument("--delay", type=float, default=1.5, help="seconds of one judge call")
    parser.add_argument("--lease", type=float, default=5.0, help="seconds of a worker's lease")
    parser.add_argument("--minutes", type=float, default=60.0, help="stop killing after this long")
    arguments = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="kills-"))
    server = EmbeddedServer(home / "postgres", options={"fsync": "off", "max_connections": "200"})
    server.start()
    try:
        good = await judging(
            server.url(),
            home,
            arguments.kills,
            arguments.windows,
            arguments.delay,
            arguments.seed,
            arguments.lease,
            arguments.minutes,
        )
    finally:
        server.stop()
        shutil.rmtree(home, ignore_errors=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
