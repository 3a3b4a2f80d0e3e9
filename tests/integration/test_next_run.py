"""The run after a run: what the first one decided against, the next one neither judges nor trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from data_bridge.database import Database
from data_bridge.errors import Interrupted, NotEnoughData
from data_bridge.window_ids import start_of
from tests.builders import NOW, hours_before, insert_window
from tests.builders_run import World, in_training_order
from tests.fakes.training_backend import FakeBackend
from trainer.run.train import plan_log, summary_of

FIRST, LATER = hours_before(number=7)[:4], hours_before(number=7)[4:]


@pytest.fixture
async def world(database: Database, tmp_path: Path) -> World:
    """Four windows of twelve agents."""
    for window_id in FIRST:
        await insert_window(database.pool, window_id, agents=12)
    return World(database, tmp_path)


async def plan_of_next_run(world: World, **values: Any) -> dict[str, object]:
    """What ``--dry-run`` says when three more windows have come."""
    for window_id in LATER:
        await insert_window(world.database.pool, window_id, agents=4)
    return summary_of(await plan_log(world.settings(**values), world.database, world.ledger))


async def test_what_dropout_left_out_stays_left_out_and_is_named(world: World, tmp_path: Path) -> None:
    await world.train(FakeBackend(tmp_path), dropout=0.25)
    assert len(await world.used()) == 36
    plan = await plan_of_next_run(world)
    assert (plan["windows"], plan["trajectories"], plan["dropped"]) == (3, 12, 0)
    assert plan["left_out"] == {}
    assert plan["left_out_before"] == {"dropout": 12}


async def test_too_little_data_names_what_an_earlier_run_left_out(world: World, tmp_path: Path) -> None:
    await world.train(FakeBackend(tmp_path), dropout=0.25)
    with pytest.raises(NotEnoughData, match=r"0 usable windows .*left out: 12 trajectories: dropout 12"):
        await world.train(FakeBackend(tmp_path), dropout=0.25)


async def test_the_rest_of_a_group_that_was_selected_from_is_not_judged_again(world: World, tmp_path: Path) -> None:
    await world.train(FakeBackend(tmp_path), select="max-variance 4", max_group=12)
    plan = await plan_of_next_run(world)
    assert plan["trajectories"] == 12
    assert plan["left_out_before"] == {"not_selected": 32}


async def test_a_group_that_taught_nothing_is_not_judged_again(world: World, tmp_path: Path) -> None:
    await insert_window(world.database.pool, hours_before(number=8)[0], agents=4, pnl=10.0)
    await world.train(FakeBackend(tmp_path))
    plan = await plan_of_next_run(world)
    assert plan["trajectories"] == 12
    assert plan["left_out_before"] == {"no_spread": 4}


async def test_a_window_that_the_run_never_came_to_is_planned_anew_with_all_its_agents(
    world: World, tmp_path: Path
) -> None:
    await world.train(FakeBackend(tmp_path), dropout=0.25, max_steps=1, groups_per_step=4)
    await world.database.pool.execute(
        "UPDATE hindsight.windows SET state = 'planned' WHERE window_id = ANY($1)", in_training_order(FIRST)[2:]
    )
    plan = await plan_of_next_run(world)
    assert plan["trajectories"] == 12 + 2 * 12


async def test_dropout_of_a_run_that_is_not_done_binds_only_that_run(world: World, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        await world.train(FakeBackend(tmp_path), dropout=0.25, stop_after=1)
    plan = await plan_of_next_run(world, resume=False)
    assert plan["left_out_before"] == {}


async def test_a_trained_row_that_moves_to_another_window_stops_nobody_and_is_not_trained_again(
    world: World, tmp_path: Path
) -> None:
    await world.train(FakeBackend(tmp_path))
    before = await world.used()
    for window_id in LATER:
        await insert_window(world.database.pool, window_id, agents=4)
    moved = await world.database.pool.fetchval(
        'UPDATE trajectories SET "windowId" = $2, "usedInTraining" = false, "trainedInBatch" = NULL WHERE id ='
        ' (SELECT min(id) FROM trajectories WHERE "windowId" = $1) RETURNING "trajectoryId"',
        *(FIRST[0], LATER[0]),
    )
    hours = 1 + int((NOW - start_of(LATER[0])).total_seconds() // 3600)  # the window that it was trained in is older
    await world.train(FakeBackend(tmp_path), lookback=f"{hours}h")
    after = await world.used()
    assert after[moved] == 1
    assert len(after) == len(before) + 11, "it costs its own agent that window's row, and nobody else"
