"""A large plan goes into the ledger and comes back as a stream: little of it in memory, and all of it or nothing."""

from __future__ import annotations

import asyncio
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from data_bridge import long_list
from data_bridge.database import Database
from data_bridge.discovery import WindowRef
from data_bridge.long_list import LongList
from data_bridge.quality import Exclusion, Reason
from tests.builders import hours_before
from trainer.ledger import batches, runs
from trainer.ledger.runs import Ledger
from trainer.progress import Progress
from trainer.types import PlannedGroup, PlannedWindow, RunPlan
from trainer.workers.units import units_of

GROUPS, MEMBERS = 25, 8
NAMES = {"model": "hindsight", "base_model": "tiny", "backend": "fake", "fingerprint": "same"}


def windows(number: int) -> Iterator[PlannedWindow]:
    for window_id in hours_before(number=number):
        groups = [
            PlannedGroup(f"{window_id}/{group}", tuple(f"{window_id}-{group}-{member}" for member in range(MEMBERS)))
            for group in range(GROUPS)
        ]
        yield PlannedWindow(window_id, 1, tuple(groups))


def plan_of(number: int) -> RunPlan:
    left_out = (
        Exclusion(f"{window_id}-out-{n}", f"agent-{n}", window_id, Reason.DROPOUT)
        for window_id in hours_before(number=number)
        for n in range(GROUPS * MEMBERS)
    )
    return RunPlan(LongList(PlannedWindow, windows(number)), LongList(Exclusion, left_out), 0.3, 1)


@pytest.fixture
def in_small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_list, "_IN_MEMORY", 1_000)
    monkeypatch.setattr(long_list, "_AT_ONCE", 1_000)
    monkeypatch.setattr(batches, "_EXCLUDED_AT_ONCE", 100)
    monkeypatch.setattr(runs, "_GROUPS_AT_ONCE", 50)


async def memory_of(ledger: Ledger, number: int) -> int:
    """The most that was held while a plan was stored, read back and counted."""
    plan, run_id = plan_of(number), f"run-{number}"
    tracemalloc.start()
    try:
        await ledger.start_run(run_id, **NAMES, settings={}, plan=plan)
        assert await ledger.open_windows(run_id) == plan.windows
        progress = await ledger.progress_of(run_id)
        progress.plan(plan.windows)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (progress.windows, progress.groups) == (number, number * GROUPS)
    assert await ledger.exclusion_counts(run_id) == {"dropout": number * GROUPS * MEMBERS}
    return peak


@pytest.mark.usefixtures("in_small_parts")
async def test_a_stored_plan_of_four_times_the_windows_takes_little_more(database: Database, tmp_path: Path) -> None:
    ledger = Ledger(database, tmp_path)
    await memory_of(ledger, 2)  # whatever is made once
    small, large = await memory_of(ledger, 5), await memory_of(ledger, 20)
    assert (large - small) / (15 * GROUPS * MEMBERS) < 60


def test_a_group_is_counted_once_however_often_its_window_is_planned() -> None:
    progress, (window,) = Progress(), windows(1)
    (unit, *_) = units_of([(window, WindowRef(window.window_id))], most=5)
    for planned in (window, unit.planned, window):
        progress.plan([planned])
    assert (progress.windows, progress.groups) == (1, GROUPS)


KILLED = """
import asyncio, sys
from data_bridge.database import open_database
from tests.integration.test_plan_stream import NAMES, windows
from trainer.ledger.runs import Ledger
from trainer.types import RunPlan

class Endless:
    def __len__(self): return 1
    def __iter__(self):
        for number, window in enumerate(windows(400)):
            if number == 300:
                print("half", flush=True)
                sys.stdin.read()
            yield window

async def main():
    async with open_database(sys.argv[1], None) as database:
        plan = RunPlan(Endless(), (), 0.3, 1)
        plan.__dict__.update(groups=1, trajectories=1)
        await Ledger(database).start_run("killed", **NAMES, settings={}, plan=plan)

asyncio.run(main())
"""


async def test_a_process_that_is_killed_while_it_stores_its_plan_leaves_nothing(database: Database) -> None:
    root, pipe = Path(__file__).parents[2], asyncio.subprocess.PIPE
    arguments = ("-c", KILLED, database.url)
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, cwd=root, stdin=pipe, stdout=pipe)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"half\n"
    process.kill()
    await process.wait()
    ledger = Ledger(database)
    assert await ledger.find_unfinished_run("hindsight", "same") is None
    assert await database.pool.fetchval("SELECT count(*) FROM hindsight.windows") == 0
    await ledger.start_run("killed", **NAMES, settings={}, plan=plan_of(1))
    assert len(await ledger.open_windows("killed")) == 1
