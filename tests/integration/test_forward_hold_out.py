"""Windows over several runs: each decides once, then it is trained, and nothing trained comes after what decides."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from data_bridge.database import Database
from data_bridge.errors import Interrupted, NotEnoughData
from data_bridge.reader import WindowReader
from tests.builders import NOW, hours_before, insert_window
from tests.builders_evaluation import make_evaluation
from tests.builders_run import World
from tests.fakes.training_backend import FakeBackend
from trainer.evidence import Role, WindowFigures
from trainer.ledger.evaluations import save
from trainer.run.train import LogPlan, plan_log
from trainer.run.training_run import TrainingRun

FIRST = hours_before(number=40)
NEXT_WEEK = NOW + timedelta(days=7)
LATER = hours_before(NEXT_WEEK, number=40)


@pytest.fixture
async def world(database: Database, tmp_path: Path) -> World:
    for window_id in FIRST:
        await insert_window(database.pool, window_id)
    return World(database, tmp_path)


async def consulted(database: Database, windows: list[str], step: int = 1) -> None:
    scores = {Role.CANDIDATE: 0.5, Role.INCUMBENT: 0.5}
    figures = tuple(WindowFigures(window_id, scores, {}) for window_id in windows)
    made = replace(make_evaluation(step), windows=figures, created_at=datetime.now(UTC))
    await save(database, made)


async def planned(world: World, **values: Any) -> tuple[list[str], LogPlan]:
    plan = await plan_log(world.settings(**values), world.database, world.ledger)
    return sorted(window.window_id for window in plan.outlook.windows), plan


async def evaluated_on_the_newest(run: TrainingRun) -> None:
    await consulted(run.session.database, FIRST[25:])


async def test_the_newest_windows_decide_and_the_hours_before_them_are_not_trained(world: World) -> None:
    windows, plan = await planned(world)
    assert windows == FIRST[:22]
    assert plan.outlook.excluded == {"held_out": 15 * 3, "embargo": 3 * 3}


async def test_a_window_that_has_decided_is_trained_whatever_the_lookback_and_then_not_read_for_again(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.train(FakeBackend(tmp_path), then=evaluated_on_the_newest)
    for window_id in LATER:
        await insert_window(world.database.pool, window_id)
    week: dict[str, Any] = {"until": NEXT_WEEK.isoformat(), "lookback": "2d"}
    windows, _ = await planned(world, **week)
    assert windows == [*FIRST[25:], *LATER[:22]], "the embargo of last week is too old; what decided is not"
    await world.train(FakeBackend(tmp_path), **week)

    read: Counter[str] = Counter()

    async def counting(reader: WindowReader, refs: Any) -> Any:
        refs = list(refs)
        read.update(ref.window_id for ref in refs)
        async for window in plain(reader, refs):
            yield window

    plain = WindowReader.stream_parts
    monkeypatch.setattr(WindowReader, "stream_parts", counting)
    with pytest.raises(NotEnoughData):
        await planned(world, **week)
    assert min(read) == LATER[0]


async def test_a_window_that_decided_and_cannot_be_trained_is_said_once_and_not_read_for_again(
    world: World, tmp_path: Path
) -> None:
    await world.train(FakeBackend(tmp_path), then=evaluated_on_the_newest)
    await world.database.pool.execute(
        'UPDATE trajectories SET "isTrainingData" = false WHERE "windowId" = ANY($1)', FIRST[25:]
    )
    for window_id in LATER:
        await insert_window(world.database.pool, window_id)
    week: dict[str, Any] = {"until": NEXT_WEEK.isoformat(), "lookback": "2d"}
    _, before = await planned(world, **week)
    assert before.outlook.excluded["not_training_data"] == 15 * 3
    await world.train(FakeBackend(tmp_path), **week)
    plan = await plan_log(world.settings(**week, min_windows=1, held_out_share=0), world.database, world.ledger)
    assert "not_training_data" not in plan.outlook.excluded


async def test_a_run_that_was_killed_in_its_evaluation_does_not_train_what_decides_about_it(
    world: World, tmp_path: Path
) -> None:
    async def killed(run: TrainingRun) -> None:
        raise Interrupted("killed before the evaluation is stored")

    async def killed_later(run: TrainingRun) -> None:
        await evaluated_on_the_newest(run)
        raise Interrupted("killed between the ruling and the end")

    for end in (killed, killed_later, killed_later):
        with pytest.raises(Interrupted):
            await world.train(FakeBackend(tmp_path), then=end)
        trained = await world.database.pool.fetch("SELECT DISTINCT window_id FROM hindsight.batch_trajectories")
        assert {row["window_id"] for row in trained} == set(FIRST[:22])
        await world.database.pool.execute("DELETE FROM hindsight.evaluations")
    run = await world.train(FakeBackend(tmp_path))
    assert (run.is_resumed, run.progress.newest is not None) == (True, True), "it knows what it trained before"
