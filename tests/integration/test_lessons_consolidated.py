"""Consolidation: what says the same is merged, what contradicts is counted, what is worth least goes, then it rests."""

from __future__ import annotations

from datetime import timedelta

import pytest

from data_bridge.database import Database
from tests.builders_lessons import GAME, MONDAY, WordEmbedder, new_lesson, source
from tests.builders_planted import junk, planted_rules
from trainer.config.lessons import KeptLessons
from trainer.inference.embedding import EmbeddedModel
from trainer.ledger.injections import Injection, ScoredDecision, record_injections, score_injections
from trainer.ledger.lessons import gate_lessons, retire_lesson
from trainer.lesson import LessonKind, NewLesson, Scope, Trust
from trainer.lessons.consolidate import Consolidation, consolidate
from trainer.lessons.retrieval import Lessons, open_lessons_of

HOUR = timedelta(hours=1)
KEPT = KeptLessons()


@pytest.fixture
async def lessons(database: Database) -> Lessons:
    return await open_lessons_of(database, WordEmbedder())


def episode(
    number: int, text: str = "News: Orders at $ACME surge. BUY ACME 20 worked: ACME rose 3 %.", **more: object
) -> NewLesson:
    at = MONDAY + number * HOUR
    given = {"about": "BUY", "stance": 1, "known_at": at, "sources": (source(number, known_at=at),), **more}
    return new_lesson(text, **given)


async def left(lessons: Lessons, columns: str = "kind, support, contradictions, content") -> list[tuple[object, ...]]:
    query = f"SELECT {columns} FROM hindsight.lessons WHERE retired_at IS NULL ORDER BY content, lesson_id"
    return [tuple(row) for row in await lessons.database.pool.fetch(query)]


async def test_episodes_that_agree_become_a_rule_known_when_the_second_was(lessons: Lessons) -> None:
    others = [
        f"News: Orders at ${name} surge. BUY {name} 20 worked: {name} rose {n} %."
        for n, name in enumerate(("ZETA", "IRIS"), 2)
    ]
    await lessons.store([episode(1), episode(2, others[0]), episode(3, others[1])])
    done = await consolidate(lessons, KEPT)

    assert (done.merged, done.rules, done.contradicted) == (3, 1, 0)
    assert await left(lessons, "kind, support, contradictions, known_at") == [("semantic", 3, 0, MONDAY + 2 * HOUR)]
    (found,) = await lessons.retrieve("Orders surge", GAME, as_of=MONDAY + 5 * HOUR)
    assert len(found.lesson.sources) == 3
    assert "merged" in done.deeds[0]


async def test_the_opposite_result_counts_against_the_rule_until_it_is_refuted(lessons: Lessons) -> None:
    failed = "News: Orders at $ACME surge. BUY ACME 20 failed: ACME fell 3 %."
    await lessons.store([episode(1), episode(2, "News: Orders at $IRIS surge. BUY IRIS 20 worked: IRIS rose 1 %.")])
    await consolidate(lessons, KEPT)
    await lessons.store([episode(3, failed, stance=-1)])
    done = await consolidate(lessons, KEPT)
    assert done.contradicted == 1
    assert [row[:3] for row in await left(lessons)] == [("semantic", 2, 1)]

    more = [episode(n, f"News: Orders at $A{n} surge. BUY A{n} 20 failed: A{n} fell {n} %.", stance=-1) for n in (4, 5)]
    await lessons.store(more)
    await consolidate(lessons, KEPT)
    assert [row[:3] for row in await left(lessons)] == [("semantic", 3, 2)]
    assert "failed" in str((await left(lessons))[0][3])


async def test_different_decisions_scopes_and_sources_of_trust_are_never_merged(lessons: Lessons) -> None:
    await lessons.store(
        [
            episode(1),
            episode(2, about="SELL", title="another"),
            episode(3, scope=Scope("market", "maker")),
            episode(4, trust=Trust.API, sources=(), title="outside"),
        ]
    )
    done = await consolidate(lessons, KEPT)

    assert done.merged == 0
    assert len(await left(lessons)) == 4


async def test_a_second_consolidation_changes_nothing(lessons: Lessons) -> None:
    rules = planted_rules(12, 3)
    await lessons.store(
        [new_lesson(text, known_at=MONDAY + n * HOUR) for n, (_, text) in enumerate(junk(rules, 240, 3))]
    )
    first = await consolidate(lessons, KEPT)
    before = await left(lessons, "lesson_id, support, contradictions, known_at, uses")

    for whole in (False, True):
        again = await consolidate(lessons, KEPT, whole=whole)
        assert again.changed == 0
        assert again.deeds == []
    assert first.changed > 0
    assert await left(lessons, "lesson_id, support, contradictions, known_at, uses") == before


async def test_beyond_the_cap_the_least_valuable_go_and_useful_ones_stay(lessons: Lessons) -> None:
    texts = ["flood at the mill", "snow on the pass", "fire in the yard", "theft from the vault"]
    stored = await lessons.store([new_lesson(text, importance=0.5) for text in texts])
    useful = stored[3].lesson_id
    shown = [Injection(f"t{n}#0", useful, 1, "market", "a", "2026-03-02T00:00", MONDAY, f"t{n}") for n in range(30)]
    await record_injections(lessons.database.pool, shown)
    await score_injections(lessons.database, [ScoredDecision(f"t{n}", 0.9, 0.5) for n in range(30)])
    await lessons.store([new_lesson("old news of the river", known_at=MONDAY - timedelta(days=90))])

    done = await consolidate(lessons, KeptLessons(max_lessons=1))
    assert done.retired == 4
    assert await left(lessons, "content") == [(texts[3],)]
    assert (await consolidate(lessons, KeptLessons(max_lessons=1))).changed == 0


async def test_what_was_retired_long_ago_is_deleted(lessons: Lessons) -> None:
    (stored,) = await lessons.store([new_lesson("flood at the mill")])
    await retire_lesson(lessons.database, stored.lesson_id, "wrong")
    assert (await consolidate(lessons, KEPT)).purged == 0

    await lessons.database.pool.execute("UPDATE hindsight.lessons SET retired_at = now() - interval '91 days'")
    assert (await consolidate(lessons, KEPT)).purged == 1


@pytest.mark.model
async def test_junk_comes_down_to_the_planted_rules(database: Database) -> None:
    """The long version, with 10,000 entries: benchmarks/finding_lessons.py --junk 10000."""
    embedder = EmbeddedModel()
    try:
        lessons = await open_lessons_of(database, embedder)
        rules = planted_rules(20, 5)
        entries = [
            new_lesson(text, kind=LessonKind.EPISODIC, known_at=MONDAY + n * HOUR)
            for n, (_, text) in enumerate(junk(rules, 300, 5))
        ]
        await lessons.store(entries)
        done: Consolidation = await consolidate(lessons, KEPT)
        again = await consolidate(lessons, KEPT, whole=True)
    finally:
        await embedder.close()
    number = len(await left(lessons))
    assert 18 <= number <= 22
    assert done.compared > 100
    assert again.changed == 0


async def test_what_waits_for_the_gate_does_not_take_the_place_of_what_passed_it(lessons: Lessons) -> None:
    text = "When the harbour is on strike, sell the ferry line at once"
    waiting, passed = await lessons.store(
        [
            new_lesson(f"{text} today", trust=Trust.API, known_at=MONDAY),
            new_lesson(f"{text} now", trust=Trust.API, known_at=MONDAY + HOUR),
        ]
    )
    await gate_lessons(lessons.database.pool, [passed.lesson_id])
    done = await consolidate(lessons, KEPT, whole=True)
    assert done.merged == 0
    assert {one[0] for one in await left(lessons, "lesson_id")} == {waiting.lesson_id, passed.lesson_id}
