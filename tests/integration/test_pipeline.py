"""The pipeline on a real Postgres with the offline judge: once, in order, resumable, and honest about nothing."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from data_bridge.database import Database
from data_bridge.errors import BackendError, Interrupted, JudgeError, NotEnoughData, StageGone
from tests.builders import hours_before, insert_window
from tests.builders_run import World, break_judge, in_training_order
from tests.fakes.training_backend import FakeBackend
from trainer.run.training_run import TrainingRun
from trainer.workers.units import units_of


@pytest.fixture
async def world(database: Database, tmp_path: Path) -> World:
    return World(database, tmp_path)


@pytest.fixture
async def rows(world: World) -> set[str]:
    """Six windows of four agents."""
    ids: set[str] = set()
    for window_id in hours_before(number=6):
        ids.update(await insert_window(world.database.pool, window_id, agents=4))
    return ids


async def test_every_window_is_trained_once_in_the_mixed_order_of_the_plan(
    world: World, rows: set[str], tmp_path: Path
) -> None:
    backend = FakeBackend(tmp_path)
    run = await world.train(backend)

    assert await world.used() == dict.fromkeys(rows, 1)
    trained = [judged.group.window_id for batch in backend.trained for judged in batch.groups]
    assert trained == in_training_order(hours_before(number=6)) != sorted(trained)
    assert [batch.policy_step for batch in backend.trained] == [0, 1, 2]
    assert await world.database.pool.fetchval('SELECT bool_and("usedInTraining") FROM trajectories') is True
    assert run.summary["state"] == "done"


async def test_a_window_that_is_lost_on_the_way_is_an_error_and_the_next_start_trains_it(
    world: World, rows: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def all_but_the_last(windows: Iterable[Any]) -> Iterator[Any]:
        return iter(list(units_of(windows))[:-1])

    with monkeypatch.context() as patched:
        patched.setattr("trainer.pipeline.units_of", all_but_the_last)
        with pytest.raises(StageGone, match="1 planned window:") as caught:
            await world.train(FakeBackend(tmp_path))
    assert caught.value.exit_code == 4
    await world.train(FakeBackend(tmp_path))
    assert await world.used() == dict.fromkeys(rows, 1)


async def test_the_run_folder_tells_what_was_done(world: World, rows: set[str], tmp_path: Path) -> None:
    run = await world.train(FakeBackend(tmp_path), judge_api_key="secret-key-123")
    folder = tmp_path / "runs" / run.run_id
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    for name in (
        "reward", "reward_std", "advantage_histogram", "kl", "entropy", "trainable_tokens", "staleness",
        "judge_order_spread", "cost_usd",
    ):  # fmt: skip
        assert name in lines[0], name
    assert len((folder / "windows.jsonl").read_text().splitlines()) == 6
    assert "secret-key-123" not in (folder / "config.json").read_text()
    assert json.loads((folder / "summary.json").read_text())["steps"] == 3


async def test_zero_trainable_tokens_is_an_error_with_the_reason(world: World, rows: set[str], tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="no_trainable_tokens 24") as caught:
        await world.train(FakeBackend(tmp_path, all_without_tokens=True))
    assert caught.value.exit_code == 4
    assert await world.used() == {}
    assert await world.database.pool.fetchval('SELECT bool_or("usedInTraining") FROM trajectories') is False
    counts = await world.database.pool.fetch("SELECT reason, count(*) AS n FROM hindsight.exclusions GROUP BY 1")
    assert {row["reason"]: row["n"] for row in counts} == {"no_trainable_tokens": 24}


async def test_a_member_without_tokens_sets_the_mean_and_has_its_reason(
    world: World, rows: set[str], tmp_path: Path
) -> None:
    one = min(rows)
    await world.train(FakeBackend(tmp_path, without_tokens=frozenset({one})))
    assert await world.used() == dict.fromkeys(rows, 1)
    row = await world.database.pool.fetchrow(
        "SELECT has_tokens FROM hindsight.batch_trajectories WHERE trajectory_id = $1", one
    )
    assert row is not None
    assert row["has_tokens"] is False
    assert await world.database.pool.fetchval("SELECT reason FROM hindsight.exclusions") == "no_trainable_tokens"


async def test_a_step_that_was_made_but_not_recorded_is_settled_not_repeated(
    world: World, rows: set[str], tmp_path: Path
) -> None:
    with pytest.raises(BackendError, match="connection was lost"):
        await world.train(FakeBackend(tmp_path, lose_step=2))
    assert await world.database.pool.fetchval("SELECT state FROM hindsight.runs") == "failed"

    backend = FakeBackend(tmp_path)
    await world.train(backend)
    assert len(backend.trained) == 1
    assert await world.used() == dict.fromkeys(rows, 1)
    steps = await world.database.pool.fetch("SELECT step FROM hindsight.checkpoints ORDER BY step")
    assert [row["step"] for row in steps] == [1, 2, 3]
    assert await world.database.pool.fetchval("SELECT count(*) FROM hindsight.runs") == 1


async def test_a_stop_in_the_first_moment_leaves_nothing_begun(
    world: World, rows: set[str], tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """Python warned of coroutines that were handed to stages which never had their turn."""
    backend = FakeBackend(tmp_path)
    with pytest.raises(Interrupted):
        await world.train(backend, stop_after=0)
    gc.collect()
    assert backend.trained == []
    assert [str(one.message) for one in recwarn if "never awaited" in str(one.message)] == []


async def test_a_stop_finishes_the_step_and_the_next_start_goes_on(
    world: World, rows: set[str], tmp_path: Path
) -> None:
    backend = FakeBackend(tmp_path)
    with pytest.raises(Interrupted):
        await world.train(backend, stop_after=1)
    assert len(backend.trained) == 1
    assert await world.database.pool.fetchval("SELECT state FROM hindsight.runs") == "interrupted"

    again = FakeBackend(tmp_path)
    run = await world.train(again)
    assert run.is_resumed
    assert await world.used() == dict.fromkeys(rows, 1)
    assert len(again.trained) == 2


async def test_a_run_killed_while_its_checkpoint_is_evaluated_is_taken_up_to_evaluate_it(
    world: World, rows: set[str], tmp_path: Path
) -> None:
    async def stopped(run: TrainingRun) -> None:
        assert run.progress.steps == 3
        raise Interrupted("Stopped while it was evaluated.")

    async def evaluated(run: TrainingRun) -> None:
        assert run.is_resumed

    with pytest.raises(Interrupted):
        await world.train(FakeBackend(tmp_path), then=stopped)
    again = FakeBackend(tmp_path)
    await world.train(again, then=evaluated)
    assert again.trained == []
    assert await world.used() == dict.fromkeys(rows, 1)
    assert await world.database.pool.fetchval("SELECT state FROM hindsight.runs") == "done"


async def test_a_half_trained_window_is_finished_with_the_groups_it_began_with(world: World, tmp_path: Path) -> None:
    (window_id,) = hours_before(number=1)
    ids = await insert_window(world.database.pool, window_id, agents=8)
    values: dict[str, Any] = {"max_group": 2, "groups_per_step": 1, "min_windows": 1}
    with pytest.raises(Interrupted):
        await world.train(FakeBackend(tmp_path), stop_after=3, **values)
    planned = await world.database.pool.fetchval("SELECT groups::text FROM hindsight.windows")

    backend = FakeBackend(tmp_path)
    await world.train(backend, **values)
    assert await world.used() == dict.fromkeys(ids, 1)
    (last,) = [judged.group for batch in backend.trained for judged in batch.groups]
    assert [one.trajectory_id for one in last.trajectories] in [g["trajectory_ids"] for g in json.loads(planned)]


async def test_groups_without_spread_teach_nothing_and_say_so(world: World, tmp_path: Path) -> None:
    for window_id in hours_before(number=3):
        await insert_window(world.database.pool, window_id, agents=3, pnl=10.0)
    with pytest.raises(NotEnoughData, match="min-spread"):
        await world.train(FakeBackend(tmp_path))
    counts = await world.database.pool.fetch("SELECT reason, count(*) AS n FROM hindsight.exclusions GROUP BY 1")
    assert {row["reason"]: row["n"] for row in counts} == {"no_spread": 9}
    assert await world.database.pool.fetchval("SELECT DISTINCT state FROM hindsight.windows") == "left_out"
    run_id = await world.database.pool.fetchval("SELECT run_id FROM hindsight.runs")
    assert await world.ledger.open_windows(run_id) == ()


async def test_a_collapsing_run_is_stopped_and_its_steps_are_kept(world: World, rows: set[str], tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="--stop-on kl>5"):
        await world.train(FakeBackend(tmp_path, metrics={"kl": 9.0}))
    assert await world.database.pool.fetchval("SELECT count(*) FROM hindsight.checkpoints") == 1


async def test_max_steps_ends_the_run_and_leaves_the_rest_for_the_next(
    world: World, rows: set[str], tmp_path: Path
) -> None:
    await world.train(FakeBackend(tmp_path), max_steps=1)
    assert len(await world.used()) == 8
    await world.train(FakeBackend(tmp_path))
    assert await world.used() == dict.fromkeys(rows, 1)
    assert await world.database.pool.fetchval("SELECT count(*) FROM hindsight.runs") == 2


@pytest.mark.parametrize(("max_staleness", "rescored"), [(4, 0), (0, 0)])
async def test_a_backend_on_this_machine_prepares_each_batch_with_the_newest_policy(
    world: World, rows: set[str], tmp_path: Path, max_staleness: int, rescored: int
) -> None:
    backend = FakeBackend(tmp_path)
    run = await world.train(backend, max_staleness=max_staleness, groups_per_step=1)
    assert [batch.policy_step for batch in backend.trained] == list(range(6))
    assert run.progress.rescored == rescored


async def test_batches_prepared_ahead_are_scored_again_when_too_old(
    world: World, rows: set[str], tmp_path: Path
) -> None:
    backend = FakeBackend(tmp_path, name="serverless", seconds=0.15)
    run = await world.train(backend, max_staleness=1, groups_per_step=1)
    steps = [batch.policy_step for batch in backend.trained]
    assert all(number - step <= 1 for number, step in enumerate(steps))
    assert run.progress.rescored > 0
    assert len(backend.prepared) == len(backend.trained) + run.progress.rescored
    assert await world.used() == dict.fromkeys(rows, 1)


async def test_too_many_judge_failures_end_the_run_after_the_step_in_hand(
    world: World, rows: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = in_training_order(hours_before(number=6))
    break_judge(monkeypatch, set(windows[2:5]))
    backend = FakeBackend(tmp_path, seconds=0.1)
    with pytest.raises(JudgeError, match=r"2 of 6 groups .*503 from the endpoint") as caught:
        await world.train(backend)
    assert caught.value.exit_code == 4
    assert len(await world.used()) == 8  # the first batch was in hand and is recorded

    monkeypatch.undo()
    await world.train(FakeBackend(tmp_path))
    assert await world.used() == dict.fromkeys(rows, 1)


async def test_a_judge_failure_within_bounds_costs_its_group_only(
    world: World, rows: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_judge(monkeypatch, {hours_before(number=6)[0]})
    run = await world.train(FakeBackend(tmp_path))
    assert len(await world.used()) == 20
    assert run.progress.cost_usd == pytest.approx(0.01)
    assert run.summary["left_out"] == {"judge_unavailable": 4}
