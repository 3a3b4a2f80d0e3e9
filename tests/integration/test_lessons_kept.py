"""Trainings keep what they judged as lessons: once, whenever they are killed, never from a window that waits."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from data_bridge.database import Database
from data_bridge.errors import Interrupted
from data_bridge.reader import WindowReader
from data_bridge.window_ids import end_of
from tests.builders import NOW, hours_before, insert_window
from tests.builders_judge import SECRETS, judge_settings, make_group
from tests.builders_lessons import new_lesson, source
from tests.builders_run import World
from tests.fakes.judge_server import JudgeServer
from tests.fakes.training_backend import FakeBackend
from trainer.config.derived import window_rules
from trainer.config.lessons import DistilSettings
from trainer.judge.open import open_judge
from trainer.ledger.injections import Injection, record_injections
from trainer.ledger.lessons import store_lessons, vector_type
from trainer.lessons.stage import LessonStage
from trainer.run.distilling import distil_ledger, open_distilling
from trainer.types import JudgedGroup


@pytest.fixture
async def world(database: Database, tmp_path: Path) -> World:
    world = World(database, tmp_path)
    for window_id in hours_before(number=6):
        await insert_window(database.pool, window_id, agents=4)
    return world


async def rows(database: Database) -> list[tuple[object, ...]]:
    found = await database.pool.fetch(
        "SELECT lesson_id, kind, title, content, known_at, support, retired_at FROM hindsight.lessons ORDER BY 1"
    )
    return [tuple(row) for row in found]


async def test_every_judged_window_teaches_and_each_lesson_is_known_at_its_end(world: World, tmp_path: Path) -> None:
    await world.train(FakeBackend(tmp_path))
    sources = await world.database.pool.fetch("SELECT window_id, known_at FROM hindsight.lesson_sources")

    assert {row["window_id"] for row in sources} == set(hours_before(number=6))
    assert all(row["known_at"] == end_of(row["window_id"], 1) for row in sources)
    assert await world.database.pool.fetchval("SELECT count(*) FROM hindsight.distilled") == 6


async def test_a_training_that_was_stopped_and_resumed_keeps_the_same_lessons_as_one_that_was_not(
    world: World, tmp_path: Path
) -> None:
    with pytest.raises(Interrupted):
        await world.train(FakeBackend(tmp_path), stop_after=1)
    await world.train(FakeBackend(tmp_path))
    kept = await rows(world.database)
    await world.database.pool.execute("DELETE FROM hindsight.lessons; DELETE FROM hindsight.distilled")
    await caught_up(world)

    assert kept
    assert await rows(world.database) == kept
    await caught_up(world)
    assert await rows(world.database) == kept


async def caught_up(world: World) -> int:
    settings = world.settings()
    reader = WindowReader(world.database, window_rules(settings.windows, now=NOW))
    async with open_distilling(
        world.database, DistilSettings(), settings.judge, settings.secrets, "by command"
    ) as stage:
        assert stage is not None
        return (await distil_ledger(stage, reader, settings.model.model)).groups


async def test_with_distil_off_nothing_is_kept(world: World, tmp_path: Path) -> None:
    await world.train(FakeBackend(tmp_path), distil="off")

    assert await rows(world.database) == []


async def test_a_window_that_an_evaluation_waits_to_rule_on_teaches_nothing_before_the_ruling(
    world: World, tmp_path: Path
) -> None:
    held, pool = hours_before(number=6)[2], world.database.pool
    await consult(pool, held)
    await world.train(FakeBackend(tmp_path))
    assert held not in {row["window_id"] for row in await pool.fetch("SELECT window_id FROM hindsight.lesson_sources")}

    await pool.execute("UPDATE hindsight.evaluations SET ruling = 'refuse'")
    assert await caught_up(world) == 1
    assert held in {row["window_id"] for row in await pool.fetch("SELECT window_id FROM hindsight.lesson_sources")}


async def consult(pool: object, *windows: str, evaluation: str = "evaluation-1") -> None:
    await pool.execute(  # type: ignore[attr-defined]
        "INSERT INTO hindsight.evaluations (evaluation_id, model, candidate_step, incumbent_step, judge, windows, gain,"
        " report) VALUES ($1, 'other', 1, 0, 'outcome', 1, 0, '{}')",
        evaluation,
    )
    await pool.execute(  # type: ignore[attr-defined]
        "INSERT INTO hindsight.consultations (evaluation_id, window_id) SELECT $1, unnest($2::text[])",
        *(evaluation, list(windows)),
    )


async def test_what_decisions_with_lessons_were_worth_is_counted_when_they_are_judged(
    world: World, tmp_path: Path
) -> None:
    pool = world.database.pool
    window = hours_before(number=6)[0]
    shown = await pool.fetchval('SELECT "trajectoryId" FROM trajectories WHERE "windowId" = $1 LIMIT 1', window)
    await record_injections(
        pool, [Injection(f"{shown}#0", "some-lesson", 1, "game", "agent-1", window, NOW - timedelta(hours=9), shown)]
    )
    await world.train(FakeBackend(tmp_path))

    row = await pool.fetchrow("SELECT score, compared_with FROM hindsight.injections")
    assert row is not None
    assert 0 <= row["score"] <= 1
    assert 0 < row["compared_with"] < 1


async def test_the_judge_words_lessons_with_one_call_a_group_that_is_paid_for_once(database: Database) -> None:
    with JudgeServer() as server:
        settings = judge_settings(server.base_url)
        for attempt in range(2):
            async with (
                open_judge(settings, SECRETS, database, "run-1") as judge,
                open_distilling(database, DistilSettings(distil="judge"), settings, SECRETS, "run-1", judge) as stage,
            ):
                judged = await judge.judge(make_group())
                assert isinstance(judged, JudgedGroup)
                assert isinstance(stage, LessonStage)
                if attempt:
                    await database.pool.execute("DELETE FROM hindsight.distilled; DELETE FROM hindsight.lessons")
                before = len(server.requests)
                await stage.distil(judged)
                assert len(server.requests) - before == (0 if attempt else 1)
    assert await database.pool.fetchval("SELECT count(*) FROM hindsight.lessons WHERE trust = 'judge'") > 0
    paid = await database.pool.fetchval(
        "SELECT count(*) FROM hindsight.judge_calls j JOIN hindsight.verdicts v USING (verdict_key, order_number)"
        " WHERE v.rubric = 'lessons' AND j.cost_usd > 0"
    )
    assert paid == 1


async def test_over_the_ceiling_of_cost_lessons_are_made_by_template(database: Database) -> None:
    with JudgeServer() as server:
        settings = judge_settings(server.base_url, max_cost=1e-9)
        async with open_distilling(database, DistilSettings(distil="judge"), settings, SECRETS, "run-1") as stage:
            assert stage is not None
            async with open_judge(judge_settings(server.base_url), SECRETS, None, "free") as judge:
                judged = await judge.judge(make_group())
            assert isinstance(judged, JudgedGroup)
            await stage.distil(judged)
    assert await database.pool.fetchval("SELECT method FROM hindsight.distilled") == "template"


_SOMEBODY_WAITS = (
    "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE NOT granted AND datname = current_database()"
)


async def test_two_verdicts_that_teach_the_same_at_once_both_count(database: Database) -> None:
    kind = await vector_type(database.pool)
    one, two = (new_lesson("strikes mean sell", sources=(source(number),)) for number in (1, 2))
    async with database.pool.acquire() as first, database.pool.acquire() as second:
        await store_lessons(first, kind, [new_lesson("strikes mean sell")], None, None)

        async def store_second() -> None:
            async with second.transaction():
                await store_lessons(second, kind, [two], None, None)

        async with first.transaction():
            await store_lessons(first, kind, [one], None, None)
            waiting = asyncio.create_task(store_second())
            while not waiting.done() and not await database.pool.fetchval(_SOMEBODY_WAITS):
                await asyncio.sleep(0.01)
        await waiting
    assert await database.pool.fetchval("SELECT support FROM hindsight.lessons") == 2
