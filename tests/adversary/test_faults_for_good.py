"""A row that is at fault itself is excluded for good: no later run of the model takes it again while it is the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from data_bridge.database import Database
from data_bridge.errors import BackendError, Interrupted
from tests.builders import hours_before, insert_window, recorder_steps
from tests.builders_run import World
from tests.fakes.training_backend import FakeBackend
from trainer.faults import RowFaults
from trainer.judge import view
from trainer.run.train import plan_log, summary_of
from trainer.types import PreparedBatch, StepResult, Submitted

WINDOWS = hours_before(number=4)


@pytest.fixture
async def world(database: Database, tmp_path: Path) -> World:
    return World(database, tmp_path)


class FailsOn(FakeBackend):
    """Cannot train these rows, and says so as the CPU backend does after it has bisected its batch."""

    def __init__(self, home: Path, evil: set[str], *, insists: bool = False) -> None:
        super().__init__(home)
        self.evil, self.insists, self.attempts = evil, insists, 0

    async def train(self, prepared: PreparedBatch, *, on_submitted: Submitted) -> StepResult:
        self.attempts += 1
        names = {one.trajectory_id for judged in prepared.batch.groups for one in judged.group.trajectories}
        known = {one.trajectory_id for one in prepared.batch.untrained}
        found = names & self.evil if self.insists else (names & self.evil) - known
        if found:
            await on_submitted("job")
            raise RowFaults(dict.fromkeys(found, "NotFinite while it was trained"))
        return await super().train(prepared, on_submitted=on_submitted)


async def exclusions(world: World) -> list[tuple[str, str]]:
    rows = await world.database.pool.fetch("SELECT trajectory_id, reason FROM hindsight.exclusions ORDER BY 1")
    return [(row["trajectory_id"], row["reason"]) for row in rows]


async def test_a_row_that_makes_a_step_fail_is_excluded_and_the_step_is_made(world: World, tmp_path: Path) -> None:
    names = [name for window in WINDOWS for name in await insert_window(world.database.pool, window, agents=4)]
    backend = FailsOn(tmp_path, {names[1]})
    run = await world.train(backend)
    assert run.progress.steps == 2
    assert await exclusions(world) == [(names[1], "row_fault")]
    states = await world.database.pool.fetch("SELECT state, count(*) AS n FROM hindsight.batches GROUP BY 1 ORDER BY 1")
    assert [tuple(row) for row in states] == [("failed", 1), ("trained", 2)]
    assert await world.used() == dict.fromkeys(names, 1)  # it still sets its group's mean, as any member does
    with_tokens = await world.database.pool.fetch(
        "SELECT trajectory_id FROM hindsight.batch_trajectories WHERE NOT released AND NOT has_tokens"
    )
    assert [row["trajectory_id"] for row in with_tokens] == [names[1]]


async def test_a_backend_that_blames_the_same_row_again_ends_the_run(world: World, tmp_path: Path) -> None:
    """Otherwise a step could be tried for ever."""
    names = [name for window in WINDOWS for name in await insert_window(world.database.pool, window, agents=4)]
    backend = FailsOn(tmp_path, {names[1]}, insists=True)
    with pytest.raises(BackendError):
        await world.train(backend)
    assert backend.attempts == 2


def break_view(monkeypatch: pytest.MonkeyPatch, evil: set[str]) -> None:
    """A fault that our own code has with these rows: there is none that we know of."""
    real = view._trajectory_view

    def broken(trajectory: Any, *rest: Any, **more: Any) -> Any:
        if trajectory.trajectory_id in evil:
            raise KeyError("what the row said")
        return real(trajectory, *rest, **more)

    monkeypatch.setattr(view, "_trajectory_view", broken)


async def test_the_run_goes_on_without_a_row_that_cannot_be_viewed_and_no_later_run_takes_it(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, one such row ended every run with a traceback."""
    evil = {(await insert_window(world.database.pool, window, agents=4))[2] for window in WINDOWS[:3]}
    break_view(monkeypatch, evil)
    await world.train(FakeBackend(tmp_path))
    assert sorted(await exclusions(world)) == sorted((name, "row_fault") for name in evil)
    assert not evil & (await world.used()).keys()

    await world.database.pool.execute('UPDATE trajectories SET "usedInTraining" = false')
    await insert_window(world.database.pool, WINDOWS[3], agents=4)
    plan = summary_of(await plan_log(world.settings(min_windows=1), world.database, world.ledger))
    assert plan["trajectories"] == 4
    assert plan["left_out"] == {"row_fault": 3}

    changed = next(iter(evil))
    steps = json.dumps(recorder_steps(response="SELL ACME 3"))
    await world.database.pool.execute(
        'UPDATE trajectories SET "stepsJson" = $2 WHERE "trajectoryId" = $1', changed, steps
    )
    plan = summary_of(await plan_log(world.settings(min_windows=1), world.database, world.ledger))
    assert plan["left_out"] == {"row_fault": 2}  # what it is now, no run has seen
    other = summary_of(await plan_log(world.settings(model="another"), world.database, world.ledger))
    assert (other["trajectories"], other["left_out"]) == (16, {})


async def test_a_resumed_run_does_not_take_the_row_again_either(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evil = {(await insert_window(world.database.pool, window, agents=4))[2] for window in WINDOWS}
    with monkeypatch.context() as patch:
        break_view(patch, evil)
        with pytest.raises(Interrupted):
            await world.train(FakeBackend(tmp_path), stop_after=1, groups_per_step=1)
    before = {name for name, _ in await exclusions(world)}
    assert before
    await world.train(FakeBackend(tmp_path), groups_per_step=1)
    assert not before & (await world.used()).keys()
    assert await world.database.pool.fetchval("SELECT count(*) FROM hindsight.runs") == 1
