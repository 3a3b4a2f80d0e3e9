"""kill -9 of workers, raylets, ranks and drivers at random moments of work, hundreds of times; then what it cost.

    python benchmarks/kills.py --kills 200 --seed 1
    python benchmarks/kills.py --kills 20 --windows 100 --training-windows 40

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
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from kills_campaign import Campaign, Moments, Process
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
from tests.fakes.kills import CountingJudge
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
CALLS = 8
"""In flight at most."""
KINDS = sorted({part for shares in SHARES.values() for part in shares})


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
        number = f"kill {len(judge.kills):3} of {self.options.kills}"
        print(f"{time.monotonic() - self.began:6.0f} s  {number}: {what}; {said}", flush=True)

    def environ(self, database: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HINDSIGHT_", "JUDGE_"))}
        ours = {"DATABASE_URL": self.server.url(database), "JUDGE_API_KEY": "k", "RAY_TMPDIR": str(self.home / "ray")}
        return kept | ours | {"HINDSIGHT_WORKER_LEASE": f"{self.options.lease:g}s", "OMP_NUM_THREADS": "1"}

    def flags(self, name: str, cluster: Cluster | None) -> list[str]:
        address = [] if cluster is None else ["--ray-address", cluster.address]
        return [
            *("--until", NOW.isoformat(), "--home", str(self.home / name), "--lookback", "60d"),
            *("--workers", "2", *address, "--judge-base-url", self.judge.base_url),
            *("--judge-concurrency", str(CALLS), "--judge-order-rule", "all", "--held-out-share", "0"),
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
    return good & count_whole(bench.judge, bench.home, time.monotonic() - bench.began, at_once=CALLS)


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
