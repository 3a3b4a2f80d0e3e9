"""With the real embedding model: planted pairs that neither words nor meaning alone can match are found by both.

The long version, 500 pairs among 100,000 lessons and the time it takes over HTTP: ``benchmarks/finding_lessons.py``.
"""

from __future__ import annotations

from collections import Counter

import pytest

from data_bridge.database import Database
from tests.builders_lessons import GAME, MONDAY, new_lesson
from tests.builders_planted import fillers, planted_pairs
from trainer.inference.embedding import EmbeddedModel
from trainer.ledger.lesson_search import search_in_scope
from trainer.lesson import ALL_KINDS
from trainer.lessons.retrieval import open_lessons_of

TOP, PAIRS, OTHERS = 10, 60, 540


@pytest.mark.model
async def test_planted_pairs_are_found_by_words_and_meaning_together(database: Database) -> None:
    embedder = EmbeddedModel()
    pairs = planted_pairs(PAIRS, 11)
    hits: Counter[str] = Counter()
    try:
        lessons = await open_lessons_of(database, embedder)
        await lessons.store([new_lesson(text) for text in (*fillers(OTHERS, 12), *(one.lesson for one in pairs))])
        vectors = await embedder.embed([pair.query for pair in pairs])
        for pair, vector in zip(pairs, vectors, strict=True):
            wanted = new_lesson(pair.lesson).lesson_id
            ranked = await search_in_scope(
                *(database.pool, lessons.kind, GAME, MONDAY, ALL_KINDS),
                embedder=embedder.name,
                vector=vector,
                context=pair.query,
                most=50,
            )
            own = next((one for one in ranked if one.lesson_id == wanted), None)
            hits["words"] += own is not None and (own.told_place or TOP + 1) <= TOP
            hits["meaning"] += own is not None and (own.meant_place or TOP + 1) <= TOP
            found = await lessons.retrieve(pair.query, GAME, as_of=MONDAY, k=TOP)
            hits["both"] += any(one.lesson.lesson_id == wanted for one in found)
    finally:
        await embedder.close()
    assert hits["words"] <= 0.7 * PAIRS
    assert hits["meaning"] <= 0.85 * PAIRS  # among so few the numbers of named ones can be told apart
    assert hits["both"] >= 0.9 * PAIRS
