"""Lessons are found in scope, by meaning and by words, never before they were known."""

from __future__ import annotations

from datetime import timedelta

import pytest

from data_bridge.database import Database
from tests.builders_lessons import GAME, MONDAY, WordEmbedder, new_lesson, source
from trainer.ledger.injections import Injection, ScoredDecision, record_injections, score_injections
from trainer.ledger.lessons import gate_lessons, retire_lesson
from trainer.lesson import LessonKind, Scope, Trust
from trainer.lessons.retrieval import Lessons, open_lessons_of

HOUR = timedelta(hours=1)


@pytest.fixture(params=["postgres", "memory"])
async def lessons(request: pytest.FixtureRequest, database: Database) -> Lessons:
    """Both ways of searching keep the same promises."""
    return await open_lessons_of(database, WordEmbedder(), in_postgres=2_000 if request.param == "postgres" else -1)


async def found(lessons: Lessons, context: str, scope: Scope = GAME, **more: object) -> list[str]:
    asked = {"as_of": MONDAY, "k": 10, **more}
    return [one.lesson.content for one in await lessons.retrieve(context, scope, **asked)]  # type: ignore[arg-type]


async def test_the_nearest_lesson_comes_first(lessons: Lessons) -> None:
    await lessons.store([new_lesson("sell when the harbour strike begins"), new_lesson("buy rain insurance in march")])

    assert (await found(lessons, "a strike at the harbour"))[0] == "sell when the harbour strike begins"


async def test_a_lesson_is_not_found_before_it_was_known(lessons: Lessons) -> None:
    await lessons.store([new_lesson("strike means sell", known_at=MONDAY)])

    assert await found(lessons, "strike", as_of=MONDAY - timedelta(microseconds=1)) == []
    assert await found(lessons, "strike", as_of=MONDAY) == ["strike means sell"]


async def test_others_lessons_are_out_of_scope(lessons: Lessons) -> None:
    scopes = [Scope("chess"), Scope("market", "maker"), Scope("market", None, "agent-2"), GAME]
    await lessons.store([new_lesson(f"strike {place}", scope=scope) for place, scope in enumerate(scopes)])

    assert set(await found(lessons, "strike")) == {"strike 3"}
    assert set(await found(lessons, "strike", Scope("market", "maker", "agent-2"))) == {
        "strike 1",
        "strike 2",
        "strike 3",
    }
    assert set(await found(lessons, "strike", Scope("chess", "maker"))) == {"strike 0"}


async def test_the_same_lesson_is_stored_once_and_gains_sources(lessons: Lessons) -> None:
    first = await lessons.store([new_lesson("strike means sell", sources=(source(1),))])
    again = await lessons.store([new_lesson("Strike  means sell.", sources=(source(1), source(2, agent="agent-2")))])

    assert [one.is_new for one in (*first, *again)] == [True, False]
    (one,) = await lessons.retrieve("strike", GAME, as_of=MONDAY)
    assert (one.lesson.support, len(one.lesson.sources)) == (2, 2)


async def test_what_came_from_outside_is_not_shown_until_it_is_gated(lessons: Lessons) -> None:
    (stored,) = await lessons.store([new_lesson("strike means buy", trust=Trust.API)])
    assert await found(lessons, "strike") == []

    assert await gate_lessons(lessons.database.pool, [stored.lesson_id]) == 1
    assert await found(lessons, "strike") == ["strike means buy"]


async def test_a_change_is_heard_while_an_older_transaction_is_open(lessons: Lessons) -> None:
    async with lessons.database.pool.acquire() as connection, connection.transaction():
        await connection.fetchval("SELECT pg_current_xact_id()")
        (stored,) = await lessons.store([new_lesson("strike means buy", trust=Trust.API)])
        assert await found(lessons, "strike") == []
        await gate_lessons(lessons.database.pool, [stored.lesson_id])
        assert await found(lessons, "strike") == ["strike means buy"]


async def test_a_retired_lesson_is_not_found_though_it_was_in_memory(lessons: Lessons) -> None:
    (stored,) = await lessons.store([new_lesson("strike means sell")])
    assert await found(lessons, "strike") == ["strike means sell"]

    assert await retire_lesson(lessons.database, stored.lesson_id, "it was luck")
    assert await found(lessons, "strike") == []
    assert not await retire_lesson(lessons.database, stored.lesson_id, "again")


async def test_kinds_are_chosen(lessons: Lessons) -> None:
    await lessons.store([new_lesson(f"strike {kind}", kind=kind) for kind in LessonKind])

    assert await found(lessons, "strike", kinds=[LessonKind.PROCEDURAL]) == ["strike procedural"]


async def test_near_copies_are_shown_once(lessons: Lessons) -> None:
    text = "sell at once when a strike at the harbour begins before noon on a weekday"
    await lessons.store([new_lesson(text), new_lesson(f"{text}!!", title="A Lesson?")])

    assert len(await found(lessons, "harbour strike")) == 1


async def test_a_lesson_stored_later_is_found_by_an_index_that_is_in_memory(lessons: Lessons) -> None:
    await lessons.store([new_lesson("strike means sell")])
    await found(lessons, "strike")
    await lessons.store([new_lesson("flood means buy")])

    assert (await found(lessons, "a flood"))[0] == "flood means buy"


async def test_usefulness_is_what_decisions_with_the_lesson_were_worth_above_their_group(lessons: Lessons) -> None:
    pool = lessons.database.pool
    (stored,) = await lessons.store([new_lesson("strike means sell")])
    shown = [
        Injection(f"t{n}#0", stored.lesson_id, 1, "market", "agent-1", "2026-03-02T00:00", MONDAY, f"t{n}")
        for n in range(2)
    ]
    for _ in range(2):
        await record_injections(pool, shown)
    assert (
        await score_injections(lessons.database, [ScoredDecision("t0", 0.9, 0.5), ScoredDecision("t1", 0.7, 0.5)]) == 2
    )
    assert await score_injections(lessons.database, [ScoredDecision("t0", 0.1, 0.5)]) == 0

    (one,) = await lessons.retrieve("strike", GAME, as_of=MONDAY)
    assert (one.lesson.uses, one.lesson.scored_uses, one.lesson.last_used_at) == (2, 2, MONDAY)
    assert one.lesson.usefulness == pytest.approx(0.3)
