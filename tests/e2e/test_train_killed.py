"""kill -9 at twenty random moments: every window trained once, no verdict paid twice, checkpoints whole."""

from __future__ import annotations

import asyncio
import random
import re
import signal
from collections import Counter
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from data_bridge.database import Database
from tests.builders import NOW, hours_before, insert_outcomes, insert_trajectory, recorder_steps
from tests.fakes.judge_server import JudgeServer, honest
from tests.fakes.trainer_process import start
from tests.tiny_model import shared_tiny_model
from trainer.train.backends.adapter_files import is_whole

MOMENTS = ["starting"] * 3 + ["judging"] * 4 + ["training"] * 5 + ["durable"] * 5 + ["recorded"] * 3
"""When to kill: before any work, with questions in flight, in a step, between checkpoint and ledger, and after."""
WINDOWS = 24
ORDERS = 2
_HOUR = re.compile(r"It is hour (\S+) now")


async def _insert_marked_window(database: Database, window_id: str) -> set[str]:
    """Three agents whose prompt names the window, so that the judge can tell which one it is asked about."""
    await insert_outcomes(database.pool, window_id)
    return {
        await insert_trajectory(
            database.pool,
            f"agent-{number}",
            window_id=window_id,
            pnl=10.0 * number,
            steps=recorder_steps(
                1, pnl=10.0 * number, prompt=f"It is hour {window_id} now.", response=f"BUY ACME {number}"
            )
            + recorder_steps(1, pnl=0.0, prompt="Wait?", response="HOLD"),
        )
        for number in range(3)
    }


async def _until(happened: Callable[[], bool], process: ForkServerProcess) -> None:
    while process.is_alive() and not happened():
        await asyncio.sleep(0.005)


class Lives:
    """The lives of one run: started, killed at a chosen moment, and what was known at each death."""

    def __init__(self, database: Database, home: Path, server: JudgeServer, chance: random.Random) -> None:
        self.database = database
        self.home = home
        self.server = server
        self.chance = chance

    async def batches(self, *states: str) -> int:
        query = "SELECT count(*) FROM hindsight.batches WHERE state = ANY($1::text[])"
        return int(await self.database.pool.fetchval(query, list(states)))

    async def made(self) -> int:
        """Batches that were ever prepared."""
        return int(await self.database.pool.fetchval("SELECT count(*) FROM hindsight.batches"))

    async def stored(self) -> Counter[str]:
        """How many of a window's orders have a verdict."""
        rows = await self.database.pool.fetch("SELECT window_id, count(*) AS n FROM hindsight.verdicts GROUP BY 1")
        return Counter({row["window_id"]: row["n"] for row in rows})

    def checkpoints(self) -> set[str]:
        return {path.parent.name for path in self.home.glob("checkpoints/*/step-*/adapter_config.json")}

    async def kill(self, moment: str, process: ForkServerProcess) -> None:
        """Wait until ``moment`` has come and a little longer, then kill -9."""
        if moment == "durable":
            # Between the checkpoint and the ledger lie some milliseconds; a lock makes them last. Not taken before
            # this life has a batch of its own in hand: to settle the last one it needs the table, too.
            made = await self.made()
            while process.is_alive() and await self.made() == made:
                await asyncio.sleep(0.005)
            async with self.database.pool.acquire() as connection, connection.transaction():
                await connection.execute("LOCK TABLE hindsight.checkpoints IN SHARE ROW EXCLUSIVE MODE")
                known = self.checkpoints()
                await _until(lambda: self.checkpoints() != known, process)
                process.kill()
        else:
            await self._wait(moment, process)
            process.kill()
        process.join()

    async def _wait(self, moment: str, process: ForkServerProcess) -> None:
        asked = len(self.server.requests) + self.chance.randint(1, 4)
        trained = await self.batches("trained") + self.chance.randint(1, 2)
        match moment:
            case "starting":
                await asyncio.sleep(self.chance.uniform(0.0, 0.8))
            case "judging":
                await _until(lambda: len(self.server.requests) >= asked, process)
                await asyncio.sleep(self.chance.uniform(0.0, 0.05))
            case "training":
                while process.is_alive() and await self.batches("prepared", "submitted") == 0:
                    await asyncio.sleep(0.005)
                await asyncio.sleep(self.chance.uniform(0.0, 0.2))
            case "recorded":
                while process.is_alive() and await self.batches("trained") < trained:
                    await asyncio.sleep(0.005)
                await asyncio.sleep(self.chance.uniform(0.0, 0.1))

    def check_asked(self, since: int, stored: Counter[str]) -> None:
        """None of the questions since ``since`` was one whose verdict had been stored when this life began."""
        asked = Counter(hour[1] for request in self.server.requests[since:] if (hour := _HOUR.search(request.user)))
        for window_id, times in asked.items():
            assert times <= ORDERS - stored[window_id], f"{window_id} was asked about again"


async def test_twenty_kills_lose_nothing_and_repeat_nothing(
    database: Database, database_url: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    ids: set[str] = set()
    for window_id in hours_before(number=WINDOWS):
        ids |= await _insert_marked_window(database, window_id)
    output = tmp_path / "output.txt"
    tiny = shared_tiny_model(tmp_path_factory)
    chance = random.Random(20)
    moments = chance.sample(MOMENTS, len(MOMENTS))
    with JudgeServer(otherwise=honest(delay=0.01)) as server:
        argv = [
            *("--home", str(tmp_path / "home"), "--base-model", str(tiny), "--backend", "cpu", "--threads", "1"),
            *("--until", NOW.isoformat(), "--groups-per-step", "1", "--lora-rank", "2", "--min-spread", "0"),
            *("--judge-model", "judge", "--judge-base-url", server.base_url, "--judge-concurrency", "2"),
            *("--judge-orders", str(ORDERS), "--price", "0.25/2", "--no-promote", "--stop-on", "off"),
            *("--keep-checkpoints", "0"),
        ]
        environment = {"DATABASE_URL": database_url, "JUDGE_API_KEY": "sk-none"}
        lives = Lives(database, tmp_path / "home", server, chance)
        for moment in moments:
            stored, since = await lives.stored(), len(server.requests)
            process = start(argv, environment, output)
            await lives.kill(moment, process)
            assert process.exitcode == -signal.SIGKILL, f"ended by itself: {output.read_text()[-2000:]}"
            lives.check_asked(since, stored)
        trained_before_the_last = await lives.batches("trained")
        stored, since = await lives.stored(), len(server.requests)
        last = start(argv, environment, output)
        await _until(lambda: False, last)
        assert last.exitcode == 0, output.read_text()[-2000:]
        lives.check_asked(since, stored)

    assert 0 < trained_before_the_last < WINDOWS, "the kills were to fall in the middle of the run"
    rows = await database.pool.fetch(
        "SELECT trajectory_id, count(*) AS n FROM hindsight.batch_trajectories JOIN hindsight.batches USING (batch_id)"
        " WHERE state = 'trained' GROUP BY 1"
    )
    assert {row["trajectory_id"]: row["n"] for row in rows} == dict.fromkeys(ids, 1)
    used = 'SELECT count(*) FROM trajectories WHERE "usedInTraining" AND "trainedInBatch" IS NOT NULL'
    assert await database.pool.fetchval(used) == len(ids)
    paid_twice = (
        "SELECT count(*) FROM (SELECT 1 FROM hindsight.judge_calls WHERE result = 'ok'"
        " GROUP BY verdict_key, order_number HAVING count(*) > 1) AS twice"
    )
    assert await database.pool.fetchval(paid_twice) == 0
    points = await database.pool.fetch("SELECT step, location FROM hindsight.checkpoints ORDER BY step")
    assert [point["step"] for point in points] == list(range(1, WINDOWS + 1))
    assert all(is_whole(Path(point["location"])) for point in points)
    assert await database.pool.fetchval("SELECT count(*) FROM hindsight.runs WHERE state <> 'done'") == 0
    settled = output.read_text().count("had been trained before the crash")
    assert settled >= MOMENTS.count("durable"), "a checkpoint that was durable was not settled but made again"
