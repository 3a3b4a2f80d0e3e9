"""No decision is shown what was known later, or what a window teaches that waits for a ruling: over random clocks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from data_bridge.database import Database, open_database
from data_bridge.window_ids import end_of, windows_from
from tests.builders_lessons import GAME, MONDAY, WordEmbedder, new_lesson, source
from trainer.config.lessons import KeptLessons
from trainer.ledger import lesson_search
from trainer.lesson import FoundLesson, Lesson, LessonKind, NewLesson, Scope
from trainer.lessons import memory_index
from trainer.lessons.consolidate import consolidate
from trainer.lessons.memory_index import MemoryIndex
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


@pytest.fixture
def opened(loop: asyncio.AbstractEventLoop, database_url: str, tmp_path: Path) -> Iterator[Database]:
    opening = open_database(database_url, tmp_path)
    yield loop.run_until_complete(opening.__aenter__())
    loop.run_until_complete(opening.__aexit__(None, None, None))


def shown_over_random_clocks(
    loop: asyncio.AbstractEventLoop, database: Database, in_postgres: int, *, phases: Collection[Phase] = tuple(Phase)
) -> list[int]:
    """Look lessons up at random times, while random windows wait for a ruling; how many were shown each time.

    AssertionError if one was shown that must not be.
    """

    async def prepared() -> Lessons:
        lessons = await open_lessons_of(database, WordEmbedder(), in_postgres=in_postgres)
        await lessons.store([marked(window, 100 * window + n) for window in range(len(WINDOWS)) for n in range(2)])
        return lessons

    lessons = loop.run_until_complete(prepared())
    seen: list[int] = []

    @settings(
        max_examples=40,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=phases,
    )
    @given(as_of=moments, waiting=places, ruled=places, k=st.integers(1, 50))
    def shown(as_of: datetime, waiting: set[int], ruled: set[int], k: int) -> None:
        async def check() -> None:
            await set_waiting(database, waiting, ruled)
            held = {WINDOWS[place] for place in waiting - ruled}
            found = await lessons.retrieve("mark of strike", GAME, as_of=as_of, k=k)
            assert [one.lesson for one in found if leaks(one.lesson, as_of, held)] == []
            for one in found:  # the planted mark is of the window itself, whatever the row's sources say
                window_id = one.lesson.content.split()[1]
                assert end_of(window_id, 1) <= as_of
                assert window_id not in held
            seen.append(len(found))

        loop.run_until_complete(check())

    shown()
    return seen


@pytest.mark.parametrize("in_postgres", [2000, -1])
def test_over_random_clocks_nothing_later_and_nothing_that_waits_is_shown(
    loop: asyncio.AbstractEventLoop, opened: Database, in_postgres: int
) -> None:
    seen = shown_over_random_clocks(loop, opened, in_postgres)
    assert sum(number > 0 for number in seen) > len(seen) / 3


_CLOCK, _RULINGS = "l.known_at <= $4", "NOT EXISTS (SELECT FROM hindsight.lesson_sources"


def without_clock(patch: pytest.MonkeyPatch) -> None:
    """The one statement at the end, and the index in memory, forget to ask when a lesson was known."""
    shown = lesson_search._MAY_BE_SHOWN
    assert _CLOCK in shown
    patch.setattr(lesson_search, "_MAY_BE_SHOWN", shown.replace(_CLOCK, "$4::timestamptz IS NOT NULL"))
    patch.setattr(memory_index, "_microseconds", lambda moment: 0)


def without_rulings(patch: pytest.MonkeyPatch) -> None:
    """They forget the windows that wait for a ruling."""
    shown = lesson_search._MAY_BE_SHOWN
    assert _RULINGS in shown
    patch.setattr(lesson_search, "_MAY_BE_SHOWN", shown.replace(_RULINGS, f"(TRUE OR {_RULINGS}") + ")")
    patch.setattr(MemoryIndex, "_among", lambda index, names: [])


def without_clock_in_a_copy(patch: pytest.MonkeyPatch) -> None:
    """A store that remembers what it found, whatever the time: as a careless cache would."""
    retrieve, kept = Lessons.retrieve, list[FoundLesson]()

    async def remembering(self: Lessons, context: str, scope: Scope, **how: Any) -> list[FoundLesson]:
        kept.extend(await retrieve(self, context, scope, **how))
        return kept[: how["k"]]

    patch.setattr(Lessons, "retrieve", remembering)


@pytest.mark.parametrize("in_postgres", [2000, -1])
@pytest.mark.parametrize("leak", [without_clock, without_rulings, without_clock_in_a_copy])
def test_a_store_that_leaks_through_the_real_search_is_caught(
    loop: asyncio.AbstractEventLoop,
    opened: Database,
    monkeypatch: pytest.MonkeyPatch,
    in_postgres: int,
    leak: Callable[[pytest.MonkeyPatch], None],
) -> None:
    leak(monkeypatch)
    with pytest.raises(AssertionError):  # the first that is found will do, no smaller one is looked for
        shown_over_random_clocks(loop, opened, in_postgres, phases=[Phase.generate])


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
