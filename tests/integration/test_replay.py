"""Replay on a real Postgres: once per use, bounded, from rows as they were judged, and the same after a kill."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from data_bridge.database import Database
from data_bridge.errors import BackendError, Interrupted
from tests.builders import hours_before, insert_window
from tests.builders_ledger import make_record
from tests.builders_run import World, in_training_order
from tests.fakes.training_backend import FakeBackend
from tests.tiny_model import shared_tiny_model
from tests.trainer_command import ON_LOG, Command
from trainer.ledger.lineage import walk_back
from trainer.ledger.model_lock import hold
from trainer.ledger.replays import CAPACITY, remember_groups, replayable
from trainer.ledger.rewards import history_of_step
from trainer.ledger.runs import Ledger
from trainer.train.reward_history import differences
from trainer.types import Batch, Checkpoint, StepResult

REPLAY: dict[str, Any] = {"replay": "prioritised", "groups_per_step": 4, "held_out_share": 0}
QUIET = (5, 6, 9, 10, 13, 14, 16, 17)
"""Windows in which all agents do alike, by their place in the order of training."""


async def insert_hours(database: Database, number: int = 20) -> list[str]:
    """Windows of three agents in the order of training; some of them without any difference to learn from."""
    hours = in_training_order(hours_before(number=number))
    for place, window_id in enumerate(hours):
        alike: dict[str, Any] = {"pnl": 10.0} if place in QUIET else {}
        await insert_window(database.pool, window_id, agents=3, **alike)
    return hours


@pytest.fixture
async def world(database: Database, tmp_path: Path) -> World:
    return World(database, tmp_path)


def composed(batch: Batch) -> list[tuple[str, int]]:
    return [(judged.group.group_id, judged.use) for judged in batch.groups]


async def compositions(database: Database) -> list[list[tuple[str, int]]]:
    """The groups of every trained step in order, each with its use, as the ledger has them."""
    rows = await database.pool.fetch(
        "SELECT c.step, g ->> 'group_id' AS group_id, coalesce((g ->> 'use')::int, 1) AS use"
        " FROM hindsight.checkpoints c JOIN hindsight.batches b USING (batch_id),"
        " jsonb_array_elements(b.groups) WITH ORDINALITY AS of_step(g, place) ORDER BY c.step, place"
    )
    steps: dict[int, list[tuple[str, int]]] = {}
    for row in rows:
        steps.setdefault(row["step"], []).append((row["group_id"], row["use"]))
    return [steps[step] for step in sorted(steps)]


async def test_empty_places_are_filled_with_groups_that_were_trained_before(world: World, tmp_path: Path) -> None:
    hours = await insert_hours(world.database)
    backend = FakeBackend(tmp_path)
    run = await world.train(backend, **REPLAY)

    fresh = [[one for one in composed(batch) if one[1] == 1] for batch in backend.trained]
    again = [[one for one in composed(batch) if one[1] > 1] for batch in backend.trained]
    assert [len(one) for one in fresh] == [4, 2, 2, 2, 2]
    assert [len(one) for one in again] == [0, 2, 2, 2, 2], "a place for each hour without signal"
    assert run.progress.groups_without_signal == len(QUIET)
    assert len({name for one in fresh for name, _ in one}) == len(hours) - len(QUIET), "every fresh group once"
    seen: dict[str, int] = {}
    for batch in backend.trained:
        for name, use in composed(batch):
            assert use == seen.get(name, 0) + 1, "each use has the number after the last"
            seen[name] = use
    assert max(seen.values()) <= 3
    [second] = await walk_back(world.database, "hindsight", 2)
    assert sorted(group.use for group in second.groups) == [1, 1, 2, 2], "the lineage says what was trained again"
    for step in range(1, 6):
        found = await history_of_step(world.database, "hindsight", step)
        assert found is not None
        assert found.history is not None
        assert differences(found.history, found.scores) == []


async def test_off_is_the_default_and_waits_for_fresh_groups(world: World, tmp_path: Path) -> None:
    await insert_hours(world.database)
    backend = FakeBackend(tmp_path)
    await world.train(backend, groups_per_step=4, held_out_share=0)
    assert [len(batch.groups) for batch in backend.trained] == [4, 4, 4]
    assert all(use == 1 for batch in backend.trained for _, use in composed(batch))


async def test_what_is_replayed_leaves_the_books_of_the_game_and_of_its_first_batch_alone(
    world: World, tmp_path: Path
) -> None:
    await insert_hours(world.database)
    await world.train(FakeBackend(tmp_path), **REPLAY)
    rows = await world.database.pool.fetch(
        "SELECT count(*) AS n FROM trajectories t JOIN hindsight.batch_trajectories b ON b.trajectory_id = "
        't."trajectoryId" AND b.batch_id = t."trainedInBatch" AND b.use = 1'
    )
    assert rows[0]["n"] == 3 * (20 - len(QUIET)), "each row names the batch of its first use"
    reasons = await world.database.pool.fetch("SELECT DISTINCT reason FROM hindsight.exclusions")
    assert [row["reason"] for row in reasons] == ["no_spread"]


async def test_a_use_happens_once(database: Database) -> None:
    ledger = Ledger(database)
    await start(ledger)
    async with hold(database, "hindsight") as lock:
        record = make_record(["t1", "t2"])
        await ledger.batch_prepared(lock, record)
        await ledger.batch_trained(lock, record, result(1), {})
        for step, use in ((2, 2), (3, 3)):
            again = make_record(["t1", "t2"], batch_id=f"batch-{step}", number=step)
            again = replace(again, groups=tuple(replace(group, use=use) for group in again.groups))
            await ledger.batch_prepared(lock, again)
            await ledger.batch_trained(lock, again, result(step), {})
            twice = replace(again, batch_id=f"twice-{step}", number=10 + step)
            with pytest.raises(asyncpg.UniqueViolationError, match="trained_once_per_use"):
                await ledger.batch_prepared(lock, twice)
        fourth = replace(again, batch_id="fourth", number=20, groups=(replace(again.groups[0], use=4),))
        with pytest.raises(asyncpg.CheckViolationError):
            await ledger.batch_prepared(lock, fourth)
        assert await replayable(database, "hindsight", since=0, uses=3) == []
        assert await ledger.steps_lost(lock, 1) == [2, 3]
        [free] = await replayable(database, "hindsight", since=0, uses=3)
        assert free.times == 1, "uses in lost steps did not happen"
        assert await ledger.steps_lost(lock, 0) == [1]
        assert await replayable(database, "hindsight", since=0, uses=3) == []
        assert await ledger.trained_ids("hindsight", ["2026-11-02T10:00"]) == {}


async def start(ledger: Ledger) -> None:
    from trainer.types import RunPlan

    await ledger.start_run(
        "run-1",
        model="hindsight",
        base_model="tiny",
        backend="fake",
        fingerprint="same",
        settings={},
        plan=RunPlan((), (), 0.0, 0),
    )


def result(step: int) -> StepResult:
    return StepResult(Checkpoint("hindsight", step, "tiny", "fake", f"/checkpoints/{step:04}"), 10, {})


async def test_the_oldest_group_leaves_when_the_buffer_has_a_hundred_thousand_and_one(database: Database) -> None:
    ledger = Ledger(database)
    await start(ledger)
    async with hold(database, "hindsight") as lock:
        record = make_record(["t1", "t2"])
        await ledger.batch_prepared(lock, record)
        await database.pool.execute(
            "INSERT INTO hindsight.replays (model, batch_id, group_id, trajectory_id, step, spread)"
            " SELECT 'hindsight', 'batch-1', 'g' || n, 't' || n, 1, 0.5 FROM generate_series(1, $1) AS n",
            CAPACITY,
        )
        await database.pool.execute(
            "INSERT INTO hindsight.replays (model, batch_id, group_id, trajectory_id, step, spread)"
            " VALUES ('another', 'batch-1', 'other', 't', 1, 0.5)"
        )
        await ledger.batch_trained(lock, record, result(1), {})
    counts = "SELECT count(*) AS n, bool_or(group_id = 'g1') AS first, bool_or(group_id = 'g2') AS second"
    row = await database.pool.fetchrow(f"{counts} FROM hindsight.replays WHERE model = 'hindsight'")
    assert row is not None
    assert (row["n"], row["first"], row["second"]) == (CAPACITY, False, True)
    assert await database.pool.fetchval("SELECT count(*) FROM hindsight.replays WHERE model = 'another'") == 1


async def test_a_smaller_buffer_keeps_the_newest(database: Database) -> None:
    ledger = Ledger(database)
    await start(ledger)
    async with hold(database, "hindsight") as lock:
        for number in range(1, 5):
            record = make_record([f"a{number}", f"b{number}"], batch_id=f"batch-{number}", number=number)
            await ledger.batch_prepared(lock, record)
            await ledger.batch_trained(lock, record, result(number), {})
        async with database.pool.acquire() as connection:
            await remember_groups(connection, replace(record, groups=()), 5, capacity=2)
    assert [one.step for one in await replayable(database, "hindsight", since=0, uses=3)] == [3, 4]
    assert [one.step for one in await replayable(database, "hindsight", since=4, uses=3)] == [4], "the lag"


async def test_a_group_with_a_changed_or_deleted_row_is_passed_over(world: World, tmp_path: Path) -> None:
    hours = await insert_hours(world.database)
    with pytest.raises(Interrupted):
        await world.train(FakeBackend(tmp_path), stop_after=1, **REPLAY)
    await world.database.pool.execute(
        'UPDATE trajectories SET "stepsJson" = replace("stepsJson"::text, \'a\', \'b\') WHERE "trajectoryId" ='
        ' (SELECT min("trajectoryId") FROM trajectories WHERE "windowId" = $1)',
        hours[0],
    )
    await world.database.pool.execute('DELETE FROM trajectories WHERE "windowId" = $1', hours[1])
    backend = FakeBackend(tmp_path)
    await world.train(backend, **REPLAY)
    again = {judged.group.window_id for batch in backend.trained for judged in batch.groups if judged.use > 1}
    assert again
    assert not again & {hours[0], hours[1]}
    assert [len(batch.groups) for batch in backend.trained] == [4, 4, 4, 4], "others take their places"


async def uninterrupted(make_home: Path, database: Database) -> list[list[tuple[str, int]]]:
    """What a run that nobody stops trains, on the same rows; then everything is taken back."""
    backend = FakeBackend(make_home)
    await World(database, make_home).train(backend, **REPLAY)
    found = await compositions(database)
    await database.pool.execute("TRUNCATE hindsight.runs CASCADE")
    await database.pool.execute('UPDATE trajectories SET "usedInTraining" = false, "trainedInBatch" = NULL')
    return found


@pytest.mark.parametrize("step", [1, 2, 3, 4])
async def test_a_stopped_or_crashed_run_draws_the_same_groups(world: World, tmp_path: Path, step: int) -> None:
    await insert_hours(world.database)
    expected = await uninterrupted(tmp_path / "whole", world.database)
    assert any(use > 1 for one in expected for _, use in one)
    with pytest.raises(BackendError, match="connection was lost"):
        await world.train(FakeBackend(tmp_path, lose_step=step), **REPLAY)
    if step < 4:
        with pytest.raises(Interrupted):
            await world.train(FakeBackend(tmp_path), stop_after=step + 1, **REPLAY)
    await world.train(FakeBackend(tmp_path), **REPLAY)
    assert await compositions(world.database) == expected


async def test_the_same_groups_are_drawn_after_kill_9(
    database: Database, database_url: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    await insert_hours(database)
    tiny = shared_tiny_model(tmp_path_factory)
    flags = (
        *ON_LOG,
        "--groups-per-step",
        "4",
        "--replay",
        "prioritised",
        "--held-out-share",
        "0",
        "--judge",
        "outcome",
    )
    whole = Command(database_url, tmp_path / "whole", tiny)
    code, output = await whole.run(*flags)
    assert code == 0, output
    expected = await compositions(database)
    assert len(expected) == 5
    await database.pool.execute("TRUNCATE hindsight.runs CASCADE")
    await database.pool.execute('UPDATE trajectories SET "usedInTraining" = false, "trainedInBatch" = NULL')

    command = Command(database_url, tmp_path / "killed", tiny)
    kills = 0
    for steps in (1, 2, 3):
        process = command.start(*flags)
        while process.is_alive() and not await _has_batches(database, steps, trained=steps != 2):
            await asyncio.sleep(0.002)
        process.kill()
        process.join()
        kills += process.exitcode == -signal.SIGKILL
    assert kills == 3
    code, output = await command.run(*flags)
    assert code == 0, output
    assert await compositions(database) == expected


async def _has_batches(database: Database, number: int, *, trained: bool) -> bool:
    """Whether so many batches are trained; or, so many being stored, the last of them is under way."""
    query = "SELECT count(*) FROM hindsight.batches WHERE state = 'trained' OR NOT $1"
    return int(await database.pool.fetchval(query, trained)) >= number
