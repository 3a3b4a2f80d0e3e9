"""How fast agents can record, and what an outage of Postgres costs them.

One run prints: trajectories per second as the agents see them (on disk) and as the database sees them, with and
without the log of single calls; the ratio to inserting the same rows directly, one statement per row; and the maximum
time that an agent waited while Postgres was stopped for ten seconds (``--quick``: two).
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data_bridge.database import Database, open_database
from data_bridge.embedded import EmbeddedServer
from data_bridge.models import Action, LLMCall
from data_bridge.recorder import Recorder
from data_bridge.trajectory_rows import TrajectoryRow, insert_trajectories

AGENTS = 100
NEEDED_PER_SECOND = 300
CALL = LLMCall(
    model="hindsight@step1",
    system_prompt="You trade stocks. " * 25,
    user_prompt="ACME trades at 100. " * 75,
    response="BUY ACME 10",
    temperature=1.0,
    max_tokens=64,
    completion_token_ids=list(range(24)),
    completion_logprobs=[-0.25] * 24,
    logprobs_temperature=1.0,
)


async def play(recorder: Recorder, agent: int) -> None:
    async with recorder.start_trajectory(f"agent-{agent}") as trajectory:
        for step_number in range(3):
            async with trajectory.step({"agentBalance": 1000, "agentPnL": step_number, "openPositions": 0}) as step:
                step.log_llm_call(CALL)
                step.complete_step(Action(action_type="BUY", parameters={"ticker": "ACME"}, success=True))


async def count(database: Database) -> int:
    return int(await database.pool.fetchval("SELECT count(*) FROM trajectories"))


async def throughput(database: Database, folder: Path, number: int, *, log_calls: bool) -> tuple[float, float]:
    """Trajectories per second: until they are on disk, and until they are in the database."""
    before = await count(database)
    async with Recorder(database, folder, log_calls=log_calls) as recorder:

        async def agent(index: int) -> None:
            for _ in range(number // AGENTS):
                await play(recorder, index)

        started = time.perf_counter()
        await asyncio.gather(*(agent(index) for index in range(AGENTS)))
        on_disk = time.perf_counter() - started
        await recorder.flush()
        in_database = time.perf_counter() - started
    assert await count(database) - before == number
    return number / on_disk, number / in_database


async def one_by_one(database: Database, folder: Path, number: int) -> float:
    """The straightforward recorder: each agent inserts its own row and waits for it."""
    rows: list[TrajectoryRow] = []

    async def keep(row: TrajectoryRow) -> None:
        rows.append(row)

    recorder = Recorder(database, folder)
    recorder._store = keep  # type: ignore[method-assign]  # so that nothing is spooled
    for index in range(number):
        await play(recorder, index % AGENTS)

    async def insert(row: TrajectoryRow) -> None:
        async with database.pool.acquire() as connection:
            await insert_trajectories(connection, [row], add_agents=True, with_calls=True)

    started = time.perf_counter()
    await asyncio.gather(*(insert(row) for row in rows))
    return number / (time.perf_counter() - started)


async def outage(server: EmbeddedServer, database: Database, folder: Path, seconds: float) -> tuple[int, float]:
    """A hundred agents, a thousand trajectories, a Postgres outage in the middle: arrivals, the maximum wait."""
    before, waits = await count(database), list[float]()
    async with Recorder(database, folder, patience=timedelta(minutes=2)) as recorder:

        async def agent(index: int) -> None:
            for _ in range(10):
                started = time.perf_counter()
                await play(recorder, index)
                waits.append(time.perf_counter() - started)
                await asyncio.sleep(seconds / 8)

        agents = [asyncio.create_task(agent(index)) for index in range(AGENTS)]
        await asyncio.sleep(seconds / 8)
        await asyncio.to_thread(server.stop)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(server.start)
        await asyncio.gather(*agents)
    return await count(database) - before, max(waits)


async def main(quick: bool) -> int:
    number, seconds = (1000, 2.0) if quick else (6000, 10.0)
    folder = Path(tempfile.mkdtemp(prefix="hindsight-bench-"))
    server = EmbeddedServer(folder / "postgres")
    server.start()
    try:
        async with open_database(server.url(), folder, migrate=True) as database:
            await throughput(database, folder / "warm", AGENTS, log_calls=True)
            disk, with_calls = await throughput(database, folder / "a", number, log_calls=True)
            _, without_calls = await throughput(database, folder / "b", number, log_calls=False)
            direct = await one_by_one(database, folder / "c", number // 4)
            arrived, max_wait = await outage(server, database, folder / "d", seconds)
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    print(f"recorded by {AGENTS} agents:   {disk:8,.0f} trajectories/s on disk")
    print(f"  in the database:       {with_calls:8,.0f}/s  {with_calls / NEEDED_PER_SECOND:.1f}x of the needed 300")
    print(f"  without llm_call_logs: {without_calls:8,.0f}/s  {without_calls / NEEDED_PER_SECOND:.1f}x")
    print(f"  one insert per row:    {direct:8,.0f}/s  batches are {with_calls / direct:.1f}x as fast")
    print(
        f"Postgres down for {seconds:.0f} s: {arrived} of 1000 arrived; agents waited at most {1000 * max_wait:.0f} ms"
    )
    return 0 if arrived == 1000 and with_calls >= NEEDED_PER_SECOND else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a short run")
    sys.exit(asyncio.run(main(parser.parse_args().quick)))
