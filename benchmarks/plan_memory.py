"""What the plan of a large run takes in the driver: peak memory above imports, stage by stage, and the time.

    python benchmarks/plan_memory.py --trajectories 1000000 --windows 1000
    python benchmarks/plan_memory.py --trajectories 300000 --windows 3     # windows of 100,000

The rows are copies of one small trajectory, made in SQL, under the names of as many agents as a window has. A process
of its own plans them as ``train_mmo.py`` does, stores the plan as a run, reads it back as a resumed run does, and cuts
it into units. Peaks are the kernel's (VmHWM, reset before every stage), not samples.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data_bridge.database import open_database
from data_bridge.embedded import EmbeddedServer
from tests.builders import NOW, hours_before, insert_agents, insert_window, recorder_steps
from trainer.config.commands import TrainSettings
from trainer.config.settings import settings_from
from trainer.ledger.runs import Ledger
from trainer.progress import Progress
from trainer.run.session import fingerprint
from trainer.run.train import plan_log, summary_of
from trainer.workers.units import units_of

LIMIT_MB = 200.0
_COPIES = """
INSERT INTO trajectories ({names}) SELECT {values} FROM trajectories AS one, generate_series(3, $1::int) AS n
 WHERE one."agentId" = 'agent-1'
"""
_COPIED = {
    "id": """one."id" || '-' || n""",
    "trajectoryId": """one."trajectoryId" || '-' || n""",
    "agentId": "'agent-' || n",
}


async def fill(url: str, home: Path, windows: int, agents: int) -> None:
    async with open_database(url, home, migrate=True) as database:
        for window_id in hours_before(number=windows):
            await insert_window(database.pool, window_id, agents=2, steps=recorder_steps(1))
        await insert_agents(database.pool, [f"agent-{number}" for number in range(1, agents + 1)])
        columns = await database.pool.fetch(
            "SELECT column_name AS name FROM information_schema.columns WHERE table_name = 'trajectories'"
        )
        names = [row["name"] for row in columns]
        values = ", ".join(_COPIED.get(name, f'one."{name}"') for name in names)
        query = _COPIES.format(names=", ".join(f'"{name}"' for name in names), values=values)
        await database.pool.execute(query, agents, timeout=3600)
        await database.pool.execute("ANALYZE")


def status_mb(name: str) -> float:
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[name].split()[0]) / 1e3


@contextmanager
def stage(name: str, imported: float, peaks: list[float]) -> Iterator[None]:
    Path("/proc/self/clear_refs").write_text("5")
    started = time.monotonic()
    yield
    peaks.append(status_mb("VmHWM") - imported)
    seconds, after = time.monotonic() - started, status_mb("VmRSS") - imported
    print(f"{name:12} peak {peaks[-1]:5.0f} MB above imports, {after:5.0f} MB after it, {seconds:6.1f} s", flush=True)


async def measure(url: str, home: Path) -> bool:
    """As the driver: plan, store, read back, cut into units."""
    imported, peaks = status_mb("VmRSS"), list[float]()
    settings = settings_from(
        TrainSettings, home=home, until=NOW.isoformat(), lookback="60d", judge="outcome", min_windows=1
    )
    async with open_database(url, home) as database:
        ledger = Ledger(database, home)
        with stage("plan", imported, peaks):
            plan = await plan_log(settings, database, ledger)
            print({name: value for name, value in summary_of(plan).items() if name != "judge_tokens"})
        with stage("store", imported, peaks):
            await ledger.start_run(
                "large", model="hindsight", base_model="none", backend="cpu", fingerprint=fingerprint(settings),
                settings={}, plan=plan.outlook.plan,
            )  # fmt: skip
        with stage("read back", imported, peaks):
            await ledger.progress_of("large")
            left = await ledger.open_windows("large")
            assert left == plan.outlook.plan.windows
        with stage("cut", imported, peaks):
            Progress().plan(plan.outlook.windows)
            units = sum(1 for _ in units_of(zip(plan.outlook.windows, plan.outlook.refs, strict=True)))
            print(f"{units} units")
    print(f"imports {imported:.0f} MB; largest peak {max(peaks):.0f} MB above them (at most {LIMIT_MB:.0f})")
    return max(peaks) <= LIMIT_MB


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=1_000_000)
    parser.add_argument("--windows", type=int, default=1_000)
    parser.add_argument("--of", nargs=2, metavar=("URL", "HOME"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.of is not None:
        return 0 if asyncio.run(measure(chosen.of[0], Path(chosen.of[1]))) else 1
    home = Path(tempfile.mkdtemp(prefix="plan-"))
    server = EmbeddedServer(home / "postgres", options={"fsync": "off"})
    server.start()
    try:
        started = time.monotonic()
        asyncio.run(fill(server.url(), home, chosen.windows, chosen.trajectories // chosen.windows))
        print(f"{chosen.trajectories} rows were written in {time.monotonic() - started:.0f} s", flush=True)
        return subprocess.run([sys.executable, __file__, "--of", server.url(), str(home)], check=False).returncode
    finally:
        server.stop()
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
