"""Error patterns from the log to check_windows, the ledger, the report and the priority of a replay."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import asyncpg
import pytest

from data_bridge.database import Database
from tests.builders import NOW, hours_before, insert_outcomes, insert_trajectory, insert_window, recorder_steps
from tests.builders_run import World
from tests.fakes.training_backend import FakeBackend
from trainer.cli import check_windows
from trainer.ledger.observations import groups_with_patterns, observe, patterns_of_run
from trainer.ledger.read.run_facts import gather
from trainer.ledger.replays import replayable
from trainer.patterns.faults import Fault, FaultSource, Observed
from trainer.report.page import render


async def insert_failing(database: Database, hours: list[str]) -> None:
    """One of three agents is turned away by its venue, each time with other numbers."""
    for number, window_id in enumerate(hours):
        await insert_window(database.pool, window_id, agents=2)
        steps = recorder_steps(1, pnl=5.0) + recorder_steps(1, pnl=5.0)
        steps[1]["action"] |= {"success": False, "error": f"venue rejected order {number} after {number * 7} ms"}
        await insert_trajectory(database.pool, "clumsy", window_id=window_id, pnl=5.0, steps=steps)
        await insert_outcomes(database.pool, window_id)


@pytest.fixture
async def world(database: Database, tmp_path: Path) -> World:
    return World(database, tmp_path)


async def test_check_windows_shows_what_goes_wrong_again_and_again(
    world: World, database_url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    await insert_failing(world.database, hours_before(number=8))
    flags = ["--database-url", database_url, "--home", str(tmp_path), "--until", NOW.isoformat()]
    assert await asyncio.to_thread(check_windows.main, flags) == 0
    told = capfd.readouterr().out
    assert "venue rejected order <*> after <*> ms" in told
    assert "one agent's" in told
    await asyncio.to_thread(check_windows.main, [*flags, "--json"])
    [pattern] = json.loads(capfd.readouterr().out)["patterns"]
    assert (pattern["trajectories"], pattern["by_agent"]) == (8, {"clumsy": 8})
    assert "frequent" in pattern["significant"]


async def test_a_run_keeps_them_and_its_report_shows_them(world: World, tmp_path: Path) -> None:
    await insert_failing(world.database, hours_before(number=6))
    run = await world.train(FakeBackend(tmp_path))
    [pattern] = await patterns_of_run(world.database.pool, run.run_id)
    assert pattern.by_agent == {"clumsy": 6}
    page = render(await gather(world.database, run.run_id))
    assert "venue rejected order &lt;*&gt; after &lt;*&gt; ms" in page
    assert "What goes wrong again and again" in page


async def test_groups_that_show_a_pattern_are_marked_for_replay(world: World, tmp_path: Path) -> None:
    hours = hours_before(number=8)
    await insert_failing(world.database, hours[:6])
    for window_id in hours[6:]:
        await insert_window(world.database.pool, window_id, agents=3)
    await world.train(FakeBackend(tmp_path), held_out_share=0)
    [marked] = await groups_with_patterns(world.database, "hindsight", 1)
    groups = await replayable(world.database, "hindsight", since=1, uses=3)
    windows = {one.group_id.split("/")[0] for one in groups if (one.batch_id, one.group_id) in marked}
    assert windows == set(hours[:6])


async def test_what_is_stored_twice_is_known_once_and_what_comes_later_is_added(world: World, tmp_path: Path) -> None:
    await insert_failing(world.database, hours_before(number=3))
    run = await world.train(FakeBackend(tmp_path))
    row = await world.database.pool.fetchrow("SELECT * FROM hindsight.observed WHERE agent_id = 'clumsy'")
    assert row is not None
    weak = Fault(FaultSource.JUDGE, "it chases losses")
    again = Observed(row["trajectory_id"], "clumsy", row["window_id"], (weak,))
    for _ in range(2):
        await observe(world.database.pool, run.run_id, [again])
    faults = await world.database.pool.fetchval(
        "SELECT faults::text FROM hindsight.observed WHERE run_id = $1 AND trajectory_id = $2",
        *(run.run_id, row["trajectory_id"]),
    )
    assert [one["source"] for one in json.loads(faults)] == ["error", "judge"]


async def test_nothing_to_store_leaves_no_connection_with_locks(database: Database, database_url: str) -> None:
    await observe(database.pool, "run", [])
    other = await asyncpg.connect(database_url)  # the pool's next statement would end what its connection left open
    left = "SELECT query FROM pg_stat_activity WHERE datname = current_database() AND xact_start IS NOT NULL"
    assert await other.fetch(f"{left} AND pid <> pg_backend_pid()") == []
    await other.close()
