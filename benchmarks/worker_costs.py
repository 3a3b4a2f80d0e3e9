"""What workers cost: memory with one very large window, and CPU beside the same work in one process.

    python benchmarks/worker_costs.py --memory --trajectories 60000   # of driver and workers, above what they import
    python benchmarks/worker_costs.py --overhead                      # --workers 1 over one process, as a ratio, for
                                                                      # a week of 100 agents: 4,200 judge calls

Memory is the resident set, sampled ten times a second, minus that of a process that only imports the same modules.
CPU is that of the driver and its worker, with their imports; Ray's own daemons are printed beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data_bridge.database import open_database
from data_bridge.embedded import EmbeddedServer
from tests.builders import NOW, hours_before, insert_window
from tests.fakes.judge_server import JudgeServer

ROOT = Path(__file__).resolve().parents[1]
LIMIT_MB, LIMIT_RATIO = 250.0, 1.10
TURNS = 2
_IMPORTS = {
    "driver": "import trainer.cli.judge_windows, trainer.run.judge_windows, trainer.judge.open, data_bridge.database",
    "worker": "import ray, trainer.workers.worker",
}


def imported_mb(part: str) -> float:
    """The resident set of a process that has only imported what this part imports."""
    code = f"{_IMPORTS[part]}; import psutil; print(psutil.Process().memory_info().rss)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return int(done.stdout) / 1e6


def import_seconds(part: str) -> float:
    """The CPU time of importing what this part imports: paid once, whatever the size of the work."""
    code = f"{_IMPORTS[part]}; import time; print(time.process_time())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return float(done.stdout)


@dataclass
class Watched:
    """One command, with the memory and CPU time of its processes by part."""

    command: list[str]
    environ: dict[str, str]
    samples: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    cpu: dict[tuple[str, int], float] = field(default_factory=dict)

    def run(self) -> None:
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(self.command, env=self.environ, stdout=output, stderr=output, cwd=ROOT)
            while process.poll() is None:
                self._look(psutil.Process(process.pid))
                time.sleep(0.1)
            if process.returncode != 0:
                output.seek(0)
                raise SystemExit(output.read().decode()[-2000:])

    def _look(self, driver: psutil.Process) -> None:
        try:
            for one in (driver, *driver.children(recursive=True)):
                self._note(one, "driver" if one.pid == driver.pid else _part(one))
        except psutil.Error:
            return  # it ended while it was looked at

    def _note(self, one: psutil.Process, part: str) -> None:
        with one.oneshot():
            times = one.cpu_times()
            self.cpu[part, one.pid] = times.user + times.system
            self.samples[part].append(one.memory_info().rss / 1e6)

    def cpu_of(self, *parts: str) -> float:
        return sum(seconds for (part, _), seconds in self.cpu.items() if part in parts)


def _part(process: psutil.Process) -> str:
    return "worker" if "ray::RayWorker" in " ".join(process.cmdline()) else "ray"


def command(home: Path, *flags: str) -> list[str]:
    common = ["--until", NOW.isoformat(), "--home", str(home), "--json", "--held-out-share", "0", "--lookback", "60d"]
    return [sys.executable, str(ROOT / "scripts" / "judge_windows.py"), *common, *flags]


def memory(url: str, home: Path, trajectories: int) -> bool:
    asyncio.run(fill(url, home, 1, trajectories))
    watched = Watched(command(home, "--judge", "outcome", "--workers", "2"), {**os.environ, "DATABASE_URL": url})
    watched.run()
    good = True
    for part in ("driver", "worker"):
        base = imported_mb(part)
        above = [sample - base for sample in watched.samples[part]]
        half = len(above) // 2
        print(f"{part}: {max(above):.0f} MB above its imports (at most {LIMIT_MB:.0f}); ", end="")
        print(f"largest in the first half {max(above[:half]):.0f}, in the second {max(above[half:]):.0f}")
        good = good and max(above) <= LIMIT_MB
    return good


def overhead(url: str, home: Path, windows: int, agents: int) -> bool:
    """The same log in one process and by a worker, in turn, so that other work on the machine falls on both."""
    asyncio.run(fill(url, home, windows, agents))
    spent, beside = {0: 0.0, 1: 0.0}, 0.0
    for workers in (0, 1) * TURNS:
        with JudgeServer() as server:
            flags = ["--judge-model", "judge", "--judge-base-url", server.base_url, "--judge-order-rule", "all"]
            environ = {**os.environ, "DATABASE_URL": url, "JUDGE_API_KEY": "k"}
            watched = Watched(command(home, *flags, *(["--workers", "1"] if workers else [])), environ)
            watched.run()
            calls = len(server.requests)
        spent[workers] += watched.cpu_of("driver", "worker")
        driver, worker, ray = (watched.cpu_of(part) for part in ("driver", "worker", "ray"))
        print(f"{workers} workers, {windows} windows, {calls} calls:", end=" ")
        print(f"{driver:.2f} s of the driver and {worker:.2f} s of the worker; {ray:.1f} s of Ray", flush=True)
        beside += ray
        asyncio.run(forget_verdicts(url, home))
    fixed, ratio = TURNS * import_seconds("worker"), spent[1] / spent[0]
    print(f"ratio {ratio:.3f} (at most {LIMIT_RATIO}); ", end="")
    print(f"{(spent[1] - fixed) / spent[0]:.3f} without the {fixed / TURNS:.1f} s of a worker's imports, ", end="")
    print(f"{(spent[1] + beside) / spent[0]:.3f} with all that Ray starts")
    return ratio <= LIMIT_RATIO


async def fill(url: str, home: Path, windows: int, agents: int) -> None:
    async with open_database(url, home, migrate=True) as database:
        for window_id in hours_before(number=windows):
            await insert_window(database.pool, window_id, agents=agents)


async def forget_verdicts(url: str, home: Path) -> None:
    async with open_database(url, home) as database:
        await database.pool.execute("TRUNCATE hindsight.verdicts, hindsight.order_decisions, hindsight.judge_calls")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--overhead", action="store_true")
    parser.add_argument("--trajectories", type=int, default=60_000)
    parser.add_argument("--windows", type=int, default=168, help="of --overhead (a week)")
    parser.add_argument("--agents", type=int, default=100, help="of --overhead, in each window")
    chosen = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="costs-"))
    server = EmbeddedServer(home / "postgres", options={"fsync": "off", "max_connections": "100"})
    server.start()
    try:
        good = not chosen.memory or memory(server.url(), home, chosen.trajectories)
        return 0 if good and (not chosen.overhead or overhead(server.url(), home, chosen.windows, chosen.agents)) else 1
    finally:
        server.stop()
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
