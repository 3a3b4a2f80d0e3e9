"""A host that is cut off the network without a word: how long until others have done its units. Needs root and Linux.

    python benchmarks/cut_off.py

Two hosts as network namespaces with a link between them, a Ray node on each, Postgres and a judge on the first. When
workers on both hold units, the link is taken down: no connection is closed, nothing answers any more. Printed: the
seconds until every unit that the lost host held is done elsewhere, and whether its late commits are refused. Exits with
1 above 20 s or if a late commit is accepted, with 3 where namespaces cannot be made.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data_bridge.database import Database, open_database
from data_bridge.embedded import EmbeddedServer
from tests.builders import NOW, hours_before, insert_window
from tests.fakes.judge_server import JudgeServer, honest
from trainer.ledger.units import UnitClaim, UnitLedger, UnitResult
from trainer.workers.ray_cluster import NETWORK, PRIVATE

ROOT = Path(__file__).resolve().parents[1]
HERE, THERE = "10.99.18.1", "10.99.18.2"
SPACE, LINK, FAR_END = "hindsight-far", "hs-near", "hs-far"
POSTGRES_PORT, JUDGE_PORT, RAY_PORT = 5499, 8499, 6399
LIMIT = 20.0


def run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)


def far_processes() -> set[int]:
    listed = subprocess.run(["ip", "netns", "pids", SPACE], capture_output=True, text=True, check=True)
    return {int(pid) for pid in listed.stdout.split()}


@contextmanager
def two_hosts() -> Iterator[None]:
    """A second host at THERE, linked to this one at HERE."""
    run("ip", "netns", "add", SPACE)
    try:
        run("ip", "link", "add", LINK, "type", "veth", "peer", "name", FAR_END, "netns", SPACE)
        run("ip", "addr", "add", f"{HERE}/24", "dev", LINK)
        run("ip", "link", "set", LINK, "up")
        for words in (f"addr add {THERE}/24 dev {FAR_END}", f"link set {FAR_END} up", "link set lo up"):
            run("ip", "-n", SPACE, *words.split())
        yield
    finally:
        for pid in far_processes():
            subprocess.run(["kill", "-9", str(pid)], check=False)
        subprocess.run(["ip", "link", "del", LINK], check=False, capture_output=True)
        subprocess.run(["ip", "addr", "del", f"{HERE}/24", "dev", "lo"], check=False, capture_output=True)
        subprocess.run(["ip", "netns", "del", SPACE], check=False)


async def forward(port: int, *, to: str | int) -> asyncio.Server:
    """What comes to ``port`` at HERE goes to a Unix socket, or to a port of this machine."""

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except (OSError, asyncio.CancelledError):
            pass  # the link is down, or it is over
        finally:
            writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened = asyncio.open_unix_connection(to) if isinstance(to, str) else asyncio.open_connection("127.0.0.1", to)
        inner_reader, inner_writer = await opened
        await asyncio.gather(pipe(reader, inner_writer), pipe(inner_reader, writer))

    return await asyncio.start_server(connected, HERE, port)


@contextmanager
def ray_nodes(folder: Path) -> Iterator[None]:
    """A Ray node on each host, one worker each."""
    ray = [sys.executable, "-m", "ray.scripts.scripts"]
    environ = {**os.environ, **NETWORK, **PRIVATE, "PYTHONPATH": str(ROOT)}
    common = ["--num-cpus=1", "--object-store-memory=80000000", "--disable-usage-stats", "--block"]
    head = [*ray, "start", "--head", f"--node-ip-address={HERE}", f"--port={RAY_PORT}", "--include-dashboard=false"]
    far = [*ray, "start", f"--address={HERE}:{RAY_PORT}", f"--node-ip-address={THERE}"]
    processes: list[subprocess.Popen[bytes]] = []
    with (folder / "ray.log").open("ab") as log:
        for words in (
            [*head, f"--temp-dir={folder / 'r1'}", *common],
            ["ip", "netns", "exec", SPACE, *far, *common],
        ):
            processes.append(subprocess.Popen(words, env=environ, stdout=log, stderr=log, start_new_session=True))
            time.sleep(8)
    try:
        yield
    finally:
        for process in processes:
            subprocess.run(["kill", "-9", "--", f"-{process.pid}"], check=False, capture_output=True)
            process.wait(20)


async def held_by(database: Database, pids: set[int]) -> list[UnitClaim]:
    """The units that workers with these process ids hold."""
    ledger = UnitLedger(database)
    rows = await database.pool.fetch(
        "SELECT u.job_id, u.number, u.fence FROM hindsight.units u JOIN hindsight.unit_workers w USING (job_id, holder)"
        " WHERE u.state = 'taken' AND w.pid = ANY($1)",
        list(pids),
    )
    return [UnitClaim(row["number"], row["fence"], await ledger.unit(row["job_id"], row["number"])) for row in rows]


async def measure(database: Database, driver: asyncio.subprocess.Process) -> tuple[float, int, int]:
    """Seconds until the lost host's units were done elsewhere, their number, and its late commits that counted."""
    far: set[int] = set()
    claims: list[UnitClaim] = []
    while not claims:
        await asyncio.sleep(0.2)
        if driver.returncode is not None:
            raise RuntimeError("the driver ended before a worker on the far host held a unit")
        far = far_processes()
        claims = await held_by(database, far)
    await asyncio.sleep(1.0)
    claims = await held_by(database, far)
    job_id = await database.pool.fetchval("SELECT job_id FROM hindsight.unit_jobs")
    run("ip", "link", "set", LINK, "down")
    cut, numbers, ledger = time.monotonic(), [claim.number for claim in claims], UnitLedger(database)
    run("ip", "addr", "replace", f"{HERE}/24", "dev", "lo")  # this host still reaches itself by its address
    while len(await ledger.done(job_id, numbers)) < len(numbers):
        await asyncio.sleep(0.1)
        if time.monotonic() - cut > 120:
            break
    took = time.monotonic() - cut
    late = [await ledger.commit(job_id, claim, UnitResult()) for claim in claims]
    return took, len(claims), sum(late)


async def main() -> int:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        print("needs root and iproute2 (apt install iproute2)")
        return 3
    home = Path(tempfile.mkdtemp(prefix="cut-"))
    server = EmbeddedServer(home / "postgres", options={"fsync": "off", "max_connections": "200"})
    server.start()
    socket_folder = server.url().split("host=")[1].replace("%2F", "/")
    try:
        with two_hosts(), JudgeServer(otherwise=honest(delay=0.5)) as judge, ray_nodes(home):
            async with AsyncExitStack() as stack:
                for one in (
                    await forward(POSTGRES_PORT, to=f"{socket_folder}/.s.PGSQL.5432"),
                    await forward(JUDGE_PORT, to=judge.port),
                ):
                    stack.callback(one.close)
                database = await stack.enter_async_context(open_database(server.url(), home, migrate=True))
                for window_id in hours_before(number=60):
                    await insert_window(database.pool, window_id, agents=32)
                url = f"postgresql://postgres@{HERE}:{POSTGRES_PORT}/postgres"
                flags = ["--until", NOW.isoformat(), "--home", str(home), "--workers", "2", "--json"]
                flags += ["--judge-model", "judge", "--judge-base-url", f"http://{HERE}:{JUDGE_PORT}/v1"]
                flags += ["--ray-address", f"{HERE}:{RAY_PORT}", "--judge-order-rule", "all", "--judge-timeout", "10s"]
                flags += ["--held-out-share", "0"]
                with (home / "driver.log").open("ab") as log:
                    driver = await asyncio.create_subprocess_exec(
                        *(sys.executable, str(ROOT / "scripts" / "judge_windows.py"), *flags),
                        env={**os.environ, **PRIVATE, "DATABASE_URL": url, "JUDGE_API_KEY": "k"},
                        stdout=log,
                        stderr=log,
                    )
                try:
                    took, units, late = await measure(database, driver)
                    code = await asyncio.wait_for(driver.wait(), 300)
                    print(f"{units} units of the host that was cut off were done elsewhere after {took:.1f} s ", end="")
                    print(
                        f"(at most {LIMIT:.0f}); late commits accepted: {late}; the run ended with {code}", flush=True
                    )
                finally:
                    if driver.returncode is None:
                        driver.kill()
                    if driver.returncode != 0:
                        for path in (home / "driver.log", home / "ray.log", *(home / "workers").glob("*.log")):
                            print(path.read_text()[-1500:])
        return 0 if units and took <= LIMIT and not late and code == 0 else 1
    finally:
        server.stop()
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
