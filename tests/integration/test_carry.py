"""``--remainder carry``: what a pass leaves over waits in the ledger, and is trained once, in a step of full size."""

from __future__ import annotations

import asyncio
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from data_bridge.database import Database
from data_bridge.errors import BackendError, Interrupted, NotEnoughData
from tests.builders import NOW, hours_before, insert_window
from tests.builders_judge import API_KEY
from tests.builders_run import World, in_training_order
from tests.fakes.judge_server import JudgeServer
from tests.fakes.training_backend import FakeBackend
from tests.integration.test_taking_up import stopped
from tests.tiny_model import shared_tiny_model
from tests.trainer_command import ON_LOG, Command
from trainer.config.derived import window_rules
from trainer.ledger.carried import pending
from trainer.ledger.forget import forget_agent
from trainer.plan.plan import look_ahead, survey_log
from trainer.run.training_run import TrainingRun, open_run
from trainer.types import NOTHING_PLANNED, Batch

CARRY: dict[str, Any] = {"remainder": "carry", "groups_per_step": 2, "held_out_share": 0}
HOURS = hours_before(number=8)
"""Of which five come first."""


@pytest.fixture
async def world(database: Database, tmp_path: Path) -> World:
    """Five windows of three agents: two steps, and one group that is left over."""
    await insert(database, HOURS[:5])
    return World(database, tmp_path)


async def insert(database: Database, hours: list[str]) -> None:
    for window_id in hours:
        await insert_window(database.pool, window_id, agents=3)


def windows_of(backend: FakeBackend) -> list[list[str]]:
    return [sorted(judged.group.window_id for judged in batch.groups) for batch in backend.trained]


async def waiting(database: Database) -> list[str]:
    return [one.window_id for one in await pending(database.pool, "hindsight")]


async def test_a_group_that_is_left_over_is_trained_first_in_the_next_run_and_not_paid_for_again(
    world: World, tmp_path: Path
) -> None:
    asked: dict[str, Any] = {"judge_model": "judge", "price": "1/10", "judge_orders": 1, "judge_api_key": API_KEY}
    with JudgeServer() as server:
        asked |= {"judge_base_url": server.base_url}
        first = FakeBackend(tmp_path)
        run = await world.train(first, **CARRY, **asked)
        left = in_training_order(HOURS[:5])[-1]
        assert [len(one) for one in windows_of(first)] == [2, 2]
        assert await waiting(world.database) == [left]
        assert run.summary["groups_judged"] == 5
        assert len(server.requests) == 5

        await insert(world.database, HOURS[5:])
        second = FakeBackend(tmp_path)
        run = await world.train(second, **CARRY, **asked)
        assert len(server.requests) == 8, "three new groups, and nothing for the old one"
    assert [len(one) for one in windows_of(second)] == [2, 2]
    assert left in windows_of(second)[0]
    assert run.summary["groups_judged"] == 3
    assert await waiting(world.database) == []
    assert await world.used() == dict.fromkeys(await world.used(), 1)
    assert len(await world.used()) == 8 * 3
    marked = 'SELECT count(*) FROM trajectories WHERE "usedInTraining" AND "windowId" = $1'
    assert await world.database.pool.fetchval(marked, left) == 3


async def test_what_waits_is_taken_up_whatever_the_next_run_does_with_its_own_remainder(
    world: World, tmp_path: Path
) -> None:
    await world.train(FakeBackend(tmp_path), **CARRY)
    await insert(world.database, HOURS[5:])
    backend = FakeBackend(tmp_path)
    await world.train(backend, **(CARRY | {"groups_per_step": 3, "remainder": "scale"}))
    assert [len(one) for one in windows_of(backend)] == [3, 1]
    assert await waiting(world.database) == []


async def test_a_group_that_is_left_over_again_waits_on_as_the_same(world: World, tmp_path: Path) -> None:
    await world.train(FakeBackend(tmp_path), **CARRY)
    [left] = await waiting(world.database)
    await insert(world.database, HOURS[5:])
    with pytest.raises(NotEnoughData, match=r"4 judged groups of the 9 of a step .* are carried to the next pass"):
        await world.train(FakeBackend(tmp_path), **(CARRY | {"groups_per_step": 9}))
    found = await waiting(world.database)
    assert found.count(left) == 1
    assert sorted(found) == sorted({left, *HOURS[5:]})


async def test_a_run_that_died_after_it_handed_on_neither_trains_nor_carries_twice(
    world: World, tmp_path: Path
) -> None:
    with pytest.raises(Interrupted):
        await world.train(FakeBackend(tmp_path), then=stopped, **CARRY)
    [left] = await waiting(world.database)
    backend = FakeBackend(tmp_path)
    run = await world.train(backend, **CARRY)
    assert run.is_resumed
    assert backend.trained == []
    assert run.summary["groups_judged"] == 5
    assert await waiting(world.database) == [left]
    assert len(await world.used()) == 4 * 3


@pytest.mark.parametrize("step", [1, 2, 3, 4])
async def test_a_step_that_crashed_is_made_once_with_what_was_carried(world: World, tmp_path: Path, step: int) -> None:
    """Steps 1 and 2 are of the first run; step 3 has the group that it left over."""

    async def train(backend: FakeBackend) -> None:
        await world.train(backend, **CARRY)

    async def with_crash(number: int) -> None:
        if step == number:
            with pytest.raises(BackendError, match="connection was lost"):
                await train(FakeBackend(tmp_path, lose_step=step))

    await with_crash(1)
    await with_crash(2)
    await train(FakeBackend(tmp_path))
    [left] = await waiting(world.database)
    await insert(world.database, HOURS[5:])
    await with_crash(3)
    await with_crash(4)
    await train(FakeBackend(tmp_path))
    used = await world.used()
    assert len(used) == 8 * 3
    assert set(used.values()) == {1}
    assert await waiting(world.database) == []
    third = await world.database.pool.fetchval(
        "SELECT array_agg(DISTINCT window_id) FROM hindsight.batch_trajectories JOIN hindsight.checkpoints"
        " USING (batch_id) WHERE checkpoints.step = 3"
    )
    assert left in third


async def test_a_lost_checkpoint_gives_the_group_back(world: World, tmp_path: Path) -> None:
    await world.train(FakeBackend(tmp_path), **CARRY)
    [left] = await waiting(world.database)
    await insert(world.database, HOURS[5:6])
    await world.train(FakeBackend(tmp_path), **(CARRY | {"min_windows": 1}))
    assert await waiting(world.database) == []
    shutil.rmtree(tmp_path / "checkpoints" / "hindsight" / "0003")
    await insert(world.database, HOURS[6:])
    backend = FakeBackend(tmp_path)
    await world.train(backend, **(CARRY | {"min_windows": 1}))
    assert left in windows_of(backend)[0]
    assert set((await world.used()).values()) == {1}


async def test_a_group_of_which_a_row_has_changed_is_given_up_with_a_reason(world: World, tmp_path: Path) -> None:
    await world.train(FakeBackend(tmp_path), **CARRY)
    [left] = await waiting(world.database)
    await world.database.pool.execute(
        'UPDATE trajectories SET "stepsJson" = replace("stepsJson"::text, \'a\', \'b\') WHERE "trajectoryId" ='
        ' (SELECT min("trajectoryId") FROM trajectories WHERE "windowId" = $1)',
        left,
    )
    await insert(world.database, HOURS[5:])
    backend = FakeBackend(tmp_path)
    run = await world.train(backend, **(CARRY | {"groups_per_step": 1}))
    assert left not in [window for windows in windows_of(backend) for window in windows]
    assert run.summary["left_out"] == {"no_comparable_peer": 3}
    assert await waiting(world.database) == []


async def test_a_group_without_a_trainable_token_does_not_wait_for_ever(world: World, tmp_path: Path) -> None:
    await world.train(FakeBackend(tmp_path), **CARRY)
    [left] = await waiting(world.database)
    rows = await world.database.pool.fetch(
        'SELECT "trajectoryId" AS name FROM trajectories WHERE "windowId" = $1', left
    )
    await insert(world.database, HOURS[5:])
    without = frozenset(row["name"] for row in rows)
    run = await world.train(FakeBackend(tmp_path, without_tokens=without), **(CARRY | {"groups_per_step": 1}))
    assert run.summary["left_out"] == {"no_trainable_tokens": 3}
    assert await waiting(world.database) == []


async def test_who_is_forgotten_waits_for_nothing(world: World, tmp_path: Path) -> None:
    await world.train(FakeBackend(tmp_path), **CARRY)
    assert len(await waiting(world.database)) == 1
    await forget_agent(world.database, "agent-1")
    assert await world.database.pool.fetchval("SELECT count(*) FROM hindsight.carried") == 0


async def passes(world: World, backend: FakeBackend, days: list[list[str]], **values: Any) -> TrainingRun:
    """One run that trains day after day, as the closed loop does."""
    settings = world.settings(**values)
    async with world.session(settings, backend) as session, open_run(session, NOTHING_PLANNED, None) as run:
        for day in days:
            await insert(world.database, [hour for hour in day if hour not in QUIET])
            for window_id in QUIET & set(day):
                await insert_window(world.database.pool, window_id, agents=3, pnl=10.0)
            rules = window_rules(settings.windows, now=NOW)
            log = await survey_log(world.database, rules, settings.judge.purposes, None, model="hindsight")
            names: dict[str, Any] = {"model": "hindsight", "seed": settings.chance.seed, "run_id": run.run_id}
            outlook = await look_ahead(log.surveyed, log.reader, session.ledger, settings.groups, **names)
            await session.ledger.extend(run.run_id, outlook.plan)
            await run.train(log.reader, outlook.windows, outlook.refs)
    return run


QUIET: set[str] = set()


async def test_in_the_closed_loop_the_next_day_begins_with_what_the_last_left_over(
    database: Database, tmp_path: Path
) -> None:
    days = [HOURS[:3], HOURS[3:6], HOURS[6:]]
    backend = FakeBackend(tmp_path)
    run = await passes(World(database, tmp_path), backend, days, **CARRY)
    steps = windows_of(backend)
    assert [len(one) for one in steps] == [2, 2, 2, 2]
    [left] = set(days[0]) - set(steps[0])
    assert left in steps[1]
    assert sorted(window for one in steps for window in one) == sorted(HOURS)
    assert run.summary["groups_judged"] == run.progress.groups == 8
    assert (run.progress.windows, run.progress.windows_read) == (8, 8)


async def test_with_replay_groups_without_signal_at_the_end_of_a_day_are_counted_once(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They leave a place to no step that day, so the next day meets them again."""
    days = [HOURS[:4], HOURS[4:]]
    monkeypatch.setitem(globals(), "QUIET", set(in_training_order(days[0])[2:]))
    backend = FakeBackend(tmp_path)
    replay: dict[str, Any] = {"replay": "uniform", "groups_per_step": 2, "held_out_share": 0}
    run = await passes(World(database, tmp_path), backend, days, **replay)
    empty: list[Batch] = [batch for batch in backend.trained if any(one.use > 1 for one in batch.groups)]
    assert empty, "their places were filled the next day"
    assert run.summary["groups_judged"] == run.progress.groups == 8
    assert run.summary["groups_without_signal"] == 2
    assert (run.progress.windows, run.summary["windows"]) == (8, 8)


async def test_nothing_is_lost_or_trained_twice_by_kill_9(
    database: Database, database_url: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    await insert(database, HOURS[:5])
    command = Command(database_url, tmp_path, shared_tiny_model(tmp_path_factory))
    flags = (*ON_LOG, "--groups-per-step", "2", "--remainder", "carry", "--held-out-share", "0", "--judge", "outcome")
    process = command.start(*flags)
    while process.is_alive() and not await database.pool.fetchval("SELECT count(*) FROM hindsight.carried"):
        await asyncio.sleep(0.002)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    code, output = await command.run(*flags)
    assert code == 0, output
    assert len(await waiting(database)) == 1
    await insert(database, HOURS[5:])
    process = command.start(*flags)
    third = "SELECT count(*) FROM hindsight.batches WHERE step IS NULL OR step = 3"
    while process.is_alive() and not await database.pool.fetchval(third):
        await asyncio.sleep(0.002)
    process.kill()
    process.join()
    code, output = await command.run(*flags)
    assert code == 0, output
    assert await waiting(database) == []
    used = await World(database, tmp_path).used()
    assert len(used) == 8 * 3
    assert set(used.values()) == {1}
