"""No decision is shown what was known later, or what a window teaches that waits for a ruling: over random clocks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_bridge.database import Database, open_database
from data_bridge.window_ids import end_of, windows_from
from tests.builders_lessons import GAME, MONDAY, WordEmbedder, new_lesson, source
from trainer.config.lessons import KeptLessons
from trainer.lesson import Lesson, LessonKind, NewLesson
from trainer.lessons.consolidate import consolidate
from trainer.lessons.retrieval import Lessons, open_lessons_of

WINDOWS = windows_from("2026-03-01T00:00", 12)
START = end_of(WINDOWS[0], 1)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Hypothesis calls the test many times, which asyncio's own runner does not."""
    made = asyncio.new_event_loop()
    yield made
    made.close()


def marked(window: int, number: int) -> NewLesson:
    """A lesson of one window, with that window's mark in its words."""
    window_id = WINDOWS[window]
    known_at = end_of(window_id, 1)
    where = source(number, window=window_id, known_at=known_at)
    return new_lesson(f"mark {window_id} of strike {number}", known_at=known_at, sources=(where,))


def leaks(lesson: Lesson, as_of: datetime, waiting: set[str]) -> bool:
    """Whether a decision at ``as_of`` must not see this: by the lesson's own windows, whatever its row says."""
    return any(end_of(one.window_id, 1) > as_of or one.window_id in waiting for one in lesson.sources) or (
        lesson.known_at > as_of
    )


async def set_waiting(database: Database, waiting: set[int], ruled: set[int]) -> None:
    """Evaluations that consulted these windows: some with a ruling, some without."""
    pool = database.pool
    await pool.execute("DELETE FROM hindsight.consultations; DELETE FROM hindsight.evaluations")
    for number, (windows, ruling) in enumerate(((waiting, None), (ruled, "refuse"))):
        await pool.execute(
            "INSERT INTO hindsight.evaluations (evaluation_id, model, candidate_step, incumbent_step, judge, windows,"
            " gain, report, ruling) VALUES ($1, 'm', 1, 0, 'outcome', 1, 0, '{}', $2)",
            *(f"evaluation-{number}", ruling),
        )
        await pool.execute(
            "INSERT INTO hindsight.consultations (evaluation_id, window_id) SELECT $1, unnest($2::text[])",
            *(f"evaluation-{number}", [WINDOWS[place] for place in windows]),
        )


places = st.sets(st.integers(0, len(WINDOWS) - 1), max_size=4)
moments = st.integers(-90, 13 * 60).map(lambda minutes: START + timedelta(minutes=minutes))


def test_over_random_clocks_nothing_later_and_nothing_that_waits_is_shown(
    loop: asyncio.AbstractEventLoop, database_url: str, tmp_path: Path
) -> None:
    async def prepared() -> tuple[Database, list[Lessons], object]:
        opening = open_database(database_url, tmp_path)
        database = await opening.__aenter__()
        stores = [await open_lessons_of(database, WordEmbedder(), in_postgres=number) for number in (2000, -1)]
        await stores[0].store([marked(window, 100 * window + n) for window in range(len(WINDOWS)) for n in range(2)])
        return database, stores, opening

    database, stores, opening = loop.run_until_complete(prepared())
    seen: list[int] = []

    @settings(max_examples=40, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(as_of=moments, waiting=places, ruled=places, k=st.integers(1, 50))
    def shown(as_of: datetime, waiting: set[int], ruled: set[int], k: int) -> None:
        async def check() -> None:
            await set_waiting(database, waiting, ruled)
            held = {WINDOWS[place] for place in waiting - ruled}
            for lessons in stores:
                found = await lessons.retrieve("mark of strike", GAME, as_of=as_of, k=k)
                assert [one.lesson for one in found if leaks(one.lesson, as_of, held)] == []
                for one in found:  # the planted mark is of the window itself
                    assert end_of(one.lesson.content.split()[1], 1) <= as_of
                seen.append(len(found))

        loop.run_until_complete(check())

    try:
        shown()
    finally:
        loop.run_until_complete(opening.__aexit__(None, None, None))  # type: ignore[attr-defined]
    assert sum(number > 0 for number in seen) > len(seen) / 3


async def test_a_policy_that_leaks_is_caught(database: Database) -> None:
    """The check above would fail for a store that ignores the clock, or the windows that wait."""
    lessons = await open_lessons_of(database, WordEmbedder())
    await lessons.store([marked(3, 1)])
    (later,) = await lessons.retrieve("mark", GAME, as_of=MONDAY + timedelta(days=30))

    assert leaks(later.lesson, end_of(WINDOWS[3], 1) - timedelta(minutes=1), set())
    assert leaks(later.lesson, MONDAY, {WINDOWS[3]})
    assert not leaks(later.lesson, MONDAY, set())


@pytest.mark.parametrize("in_postgres", [2000, -1])
async def test_a_rule_is_not_shown_before_the_second_of_its_episodes(database: Database, in_postgres: int) -> None:
    lessons = await open_lessons_of(database, WordEmbedder(), in_postgres=in_postgres)
    text = "News: Orders at $A{0} surge. BUY A{0} 20 worked: A{0} rose {0} %."
    at = [MONDAY + timedelta(hours=n) for n in (0, 5, 9)]
    await lessons.store(
        [new_lesson(text.format(n), known_at=at[n], sources=(source(n, known_at=at[n]),)) for n in range(3)]
    )
    await consolidate(lessons, KeptLessons())

    for as_of, wanted in ((at[1] - timedelta(seconds=1), 0), (at[1], 2), (at[2], 3)):
        found = await lessons.retrieve("orders surge", GAME, as_of=as_of, kinds=[LessonKind.SEMANTIC])
        assert sum(len(one.lesson.sources) for one in found) == wanted


async def test_a_time_without_a_zone_is_refused(database: Database) -> None:
    lessons = await open_lessons_of(database, WordEmbedder())
    with pytest.raises(ValueError, match="has no time zone"):
        await lessons.retrieve("x", GAME, as_of=datetime(2026, 3, 2))
