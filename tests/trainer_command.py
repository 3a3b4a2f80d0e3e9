"""train_mmo with the tiny model on the CPU, for tests that meet it as a user does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from data_bridge.database import Database
from tests.builders import NOW, hours_before, insert_window
from tests.fakes.trainer_process import start


class Command:
    """train_mmo on one database and one home, with the tiny model on the CPU."""

    def __init__(self, database_url: str | None, home: Path, base_model: Path) -> None:
        self.environment = {} if database_url is None else {"DATABASE_URL": database_url}
        self.home = home
        self.base_model = base_model
        self.output = home.parent / "output.txt"

    def start(self, *flags: str, ignoring: Sequence[int] = ()) -> ForkServerProcess:
        self.output.write_text("")
        argv = [
            *("--home", str(self.home), "--base-model", str(self.base_model), "--backend", "cpu", "--threads", "1"),
            *("--lora-rank", "2", "--no-promote", "--stop-on", "off", *flags),
        ]
        return start(argv, self.environment, self.output, ignoring=ignoring)

    async def run(self, *flags: str) -> tuple[int | None, str]:
        return await self.ended(self.start(*flags))

    async def ended(self, process: ForkServerProcess) -> tuple[int | None, str]:
        await asyncio.to_thread(process.join, 300)
        return process.exitcode, self.output.read_text()

    def checkpoints(self) -> list[Path]:
        return sorted(self.home.glob("checkpoints/hindsight/step-*"))


ON_LOG = ("--until", NOW.isoformat(), "--groups-per-step", "2")


async def insert_windows(database: Database, number: int, *, agents: int = 3, **options: Any) -> set[str]:
    ids: set[str] = set()
    for window_id in hours_before(number=number):
        ids.update(await insert_window(database.pool, window_id, agents=agents, **options))
    return ids


async def trained(database: Database) -> dict[str, int]:
    rows = await database.pool.fetch(
        "SELECT trajectory_id, count(*) AS n FROM hindsight.batch_trajectories JOIN hindsight.batches USING (batch_id)"
        " WHERE state = 'trained' GROUP BY 1"
    )
    return {row["trajectory_id"]: row["n"] for row in rows}
