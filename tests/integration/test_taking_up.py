"""A run that is taken up again: it can always be finished, and its numbers are those of all its attempts."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from data_bridge.database import Database
from data_bridge.errors import Interrupted, JudgeError, NotEnoughData
from data_bridge.quality import Reason
from tests.builders import NOW, hours_before, insert_window
from tests.builders_run import World, break_judge
from tests.fakes.training_backend import TOKENS_PER_CALL, FakeBackend
from trainer.run.train import plan_log
from trainer.run.training_run import TrainingRun

WINDOWS = hours_before(number=6)
COUNTED = ("steps", "windows", "groups_judged", "trainable_tokens", "cost_usd")


@pytest.fixture
async def world(database: Database, tmp_path: Path) -> World:
    """Six windows of four agents."""
    for window_id in WINDOWS:
        await insert_window(database.pool, window_id, agents=4)
    return World(database, tmp_path)


async def stopped(run: TrainingRun) -> None:
    raise Interrupted("Stopped while it was evaluated.")


async def trajectories_of(world: World, window_id: str) -> frozenset[str]:
    rows = await world.database.pool.fetch(
        'SELECT "trajectoryId" AS name FROM trajectories WHERE "windowId" = $1', window_id
    )
    return frozenset(row["name"] for row in rows)


async def finish(world: World, backend: FakeBackend, **values: Any) -> TrainingRun:
    """Interrupt the run while it is evaluated, then start it again: it must come to its evaluation and end."""
    with pytest.raises(Interrupted):
        await world.train(backend, then=stopped, **values)
    evaluated: list[TrainingRun] = []

    async def evaluate(run: TrainingRun) -> None:
        evaluated.append(run)

    await world.train(backend, then=evaluate, **values)
    (run,) = evaluated
    assert run.is_resumed
    assert run.summary["state"] == "done"
    return run


async def test_a_run_of_which_only_groups_without_tokens_are_left_is_evaluated(world: World, tmp_path: Path) -> None:
    gone = await trajectories_of(world, WINDOWS[-1])
    await finish(world, FakeBackend(tmp_path, without_tokens=gone), groups_per_step=1)
    assert len(await world.used()) == 20


async def test_a_run_whose_budget_is_spent_is_evaluated(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_judge(monkeypatch, set(WINDOWS[3:]), Reason.OVER_BUDGET)
    run = await finish(world, FakeBackend(tmp_path))
    assert run.summary["left_out"] == {"over_budget": 12}


async def test_a_failure_of_the_judge_within_bounds_is_within_bounds_also_when_only_it_is_left(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_judge(monkeypatch, {WINDOWS[0]})
    run = await finish(world, FakeBackend(tmp_path))
    assert (run.summary["groups_judged"], run.summary["groups_failed"]) == (5, 1)


async def test_a_group_on_which_the_judge_fails_in_every_pass_of_a_run_is_one_failure(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = {WINDOWS[0]}
    break_judge(monkeypatch, failing)
    counts: list[tuple[int, int]] = []

    async def next_days(run: TrainingRun) -> None:
        """As the closed loop does: the run goes on with what is left of it."""
        for _ in range(2):
            plan = await plan_log(world.settings(), world.database, world.ledger)
            await run.train(plan.reader, plan.outlook.windows, plan.outlook.refs)
            counts.append((run.progress.groups_judged, run.progress.groups_failed))
            failing.clear()

    await world.train(FakeBackend(tmp_path), then=next_days)
    assert counts == [(5, 1), (6, 0)], "met again it is still one, and judged at last it is none"


async def test_a_run_without_any_verdict_names_the_reasons(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_judge(monkeypatch, set(WINDOWS), Reason.OVER_BUDGET)
    with pytest.raises(NotEnoughData, match=r"no group has a verdict \(over_budget 24\).*--max-cost") as caught:
        await world.train(FakeBackend(tmp_path))
    assert "min-spread" not in str(caught.value)


async def test_max_steps_is_of_the_run_and_not_of_each_attempt(world: World, tmp_path: Path) -> None:
    run = await finish(world, FakeBackend(tmp_path), max_steps=2, groups_per_step=1)
    assert run.summary["steps"] == 2
    assert len(await world.used()) == 8


async def test_the_summary_of_a_run_in_two_attempts_is_that_of_one(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Interrupted):
        await world.train(FakeBackend(tmp_path), stop_after=4, groups_per_step=1)
    window_of_the_evaluation = hours_before(NOW + timedelta(hours=4), number=1)[0]
    for window_id, cost in ((WINDOWS[0], 0.25), (WINDOWS[1], 0.5), (window_of_the_evaluation, 8.0)):
        await world.database.pool.execute(
            "INSERT INTO hindsight.judge_calls (run_id, verdict_key, order_number, window_id, group_id, judge,"
            " prompt_hash, result, prompt_tokens, completion_tokens, tokens_estimated, cost_usd, latency_ms)"
            " SELECT run_id, 'key', 0, $1, 'group', 'judge', '', 'ok', 1, 1, false, $2, 1 FROM hindsight.runs",
            window_id,
            cost,
        )
    run = await world.train(FakeBackend(tmp_path), groups_per_step=1)
    tokens = 24 * TOKENS_PER_CALL
    assert [run.full_summary[name] for name in COUNTED] == [6, 6, 6, tokens, 0.75]
    assert await world.database.pool.fetchval("SELECT (summary ->> 'steps')::int FROM hindsight.runs") == 6


async def test_groups_without_signal_before_the_interruption_are_counted(world: World, tmp_path: Path) -> None:
    await insert_window(world.database.pool, hours_before(number=7)[0], agents=4, pnl=10.0)
    with pytest.raises(Interrupted):
        await world.train(FakeBackend(tmp_path), stop_after=2, groups_per_step=1)
    run = await world.train(FakeBackend(tmp_path), groups_per_step=1)
    assert (run.summary["groups_judged"], run.summary["groups_without_signal"]) == (7, 1)


async def test_a_group_that_was_trained_after_a_restart_is_no_longer_left_out(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_judge(monkeypatch, set(WINDOWS[2:5]))
    with pytest.raises(JudgeError):
        await world.train(FakeBackend(tmp_path))
    monkeypatch.undo()
    run = await world.train(FakeBackend(tmp_path))
    assert len(await world.used()) == 24
    assert run.summary["left_out"] == {}
