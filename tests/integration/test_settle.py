"""Ledger and backend made to agree: a checkpoint that is somewhere else is never taken for one that is lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from data_bridge.database import Database
from data_bridge.errors import BackendError, ConfigurationError
from tests.builders import hours_before, insert_window
from tests.builders_run import World
from tests.fakes.training_backend import FakeBackend


@pytest.fixture
async def world(database: Database, tmp_path: Path) -> World:
    """Six windows of four agents, three steps."""
    for window_id in hours_before(number=6):
        await insert_window(database.pool, window_id, agents=4)
    return World(database, tmp_path)


async def states(world: World) -> list[str]:
    rows = await world.database.pool.fetch("SELECT state FROM hindsight.batches ORDER BY prepared_at")
    return [row["state"] for row in rows]


async def test_checkpoints_under_another_home_are_not_lost_and_the_error_says_where_they_are(
    world: World, tmp_path: Path
) -> None:
    await world.train(FakeBackend(tmp_path))
    with pytest.raises(ConfigurationError, match=f"hindsight@step3 is at {tmp_path}/.*--home.*--model"):
        await world.train(FakeBackend(tmp_path / "other"))
    assert await states(world) == ["trained"] * 3


@pytest.mark.parametrize("steps_of_the_other", [0, 5])
async def test_what_one_backend_trained_another_does_not_take_up(
    world: World, tmp_path: Path, steps_of_the_other: int
) -> None:
    await world.train(FakeBackend(tmp_path, name="cpu"))
    other = FakeBackend(tmp_path / "other", name="serverless")
    for step in range(1, steps_of_the_other + 1):
        Path(other.checkpoint(step).location).mkdir(parents=True)
    with pytest.raises(ConfigurationError, match=r"was trained by cpu .*--backend cpu.*--model"):
        await world.train(other)
    assert await states(world) == ["trained"] * 3


async def test_a_batch_is_not_given_up_because_another_home_knows_nothing_of_it(world: World, tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="connection was lost"):
        await world.train(FakeBackend(tmp_path, lose_step=2))
    with pytest.raises(ConfigurationError, match="--home"):
        await world.train(FakeBackend(tmp_path / "other"))
    assert await states(world) == ["trained", "submitted"]


async def test_checkpoints_that_were_copied_to_another_home_are_gone_on_from(world: World, tmp_path: Path) -> None:
    await world.train(FakeBackend(tmp_path), max_steps=1)
    shutil.copytree(tmp_path / "checkpoints", tmp_path / "other" / "checkpoints")
    moved = FakeBackend(tmp_path / "other")
    await world.train(moved)
    assert [batch.policy_step for batch in moved.trained] == [1, 2]


async def test_the_same_path_on_a_machine_without_any_checkpoint_is_another_machine(
    world: World, tmp_path: Path
) -> None:
    backend = FakeBackend(tmp_path)
    await world.train(backend)
    backend.folder.rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match="nor is any other checkpoint of hindsight"):
        await world.train(backend)
    assert await states(world) == ["trained"] * 3


async def test_a_checkpoint_that_was_deleted_is_lost_and_its_windows_are_trained_again(
    world: World, tmp_path: Path
) -> None:
    backend = FakeBackend(tmp_path)
    await world.train(backend)
    shutil.rmtree(backend.checkpoint(3).location)
    await world.train(backend, min_windows=1)
    assert await states(world) == ["trained", "trained", "lost", "trained"]


async def test_a_settled_step_is_measured_like_any_other(world: World, tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="connection was lost"):
        await world.train(FakeBackend(tmp_path, lose_step=2))
    run = await world.train(FakeBackend(tmp_path))

    lines = (tmp_path / "runs" / run.run_id / "metrics.jsonl").read_text().splitlines()
    first, settled, last = [json.loads(line) for line in lines]
    assert [line["step"] for line in (first, settled, last)] == [1, 2, 3]
    unknown = {"seconds", "tokens_per_second"}  # nobody was there to measure them
    assert first.keys() - unknown == settled.keys() - {"settled"}
    stored = await world.database.pool.fetchval("SELECT metrics::text FROM hindsight.batches WHERE step = 2")
    assert json.loads(stored).items() <= settled.items()
    assert run.summary["trainable_tokens"] == sum(line["trainable_tokens"] for line in (first, settled, last))


async def test_a_settled_step_that_crossed_a_threshold_stops_the_run(world: World, tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="connection was lost"):
        await world.train(FakeBackend(tmp_path, lose_step=2, metrics={"kl": 0.1}))
    again = FakeBackend(tmp_path)
    with pytest.raises(BackendError, match=r"Step 2 crossed --stop-on kl>0.05 .*delete .*0002"):
        await world.train(again, stop_on=("kl>0.05",))
    assert again.trained == []
    assert await states(world) == ["trained", "trained"]
