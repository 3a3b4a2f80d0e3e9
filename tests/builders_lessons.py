"""Lessons for tests, and an embedder that needs no model: words become directions, so that equal words are near."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from trainer.lesson import LessonKind, LessonSource, NewLesson, Scope, Trust
from trainer.lessons.wording import words_of

GAME = Scope("market")
MONDAY = datetime(2026, 3, 2, tzinfo=UTC)


class WordEmbedder:
    """Each word a fixed direction by its digest; a text is their sum."""

    name = "words"
    dimensions = 64

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def embed(self, texts: Sequence[str]) -> Any:
        self.asked.extend(texts)
        return np.stack([_vector(text) for text in texts]) if texts else np.zeros((0, 64), np.float32)

    async def close(self) -> None:
        return


def _vector(text: str) -> Any:
    total = np.full(64, 1e-3, np.float32)
    for word in words_of(text):
        seed = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest())
        total += np.random.default_rng(seed).standard_normal(64).astype(np.float32)
    return total / np.linalg.norm(total)


def source(number: int = 1, *, agent: str = "agent-1", window: str = "2026-03-01T10:00", **more: Any) -> LessonSource:
    return LessonSource(f"trajectory-{number}", agent, window, more.pop("known_at", MONDAY), **more)


def new_lesson(content: str, **changes: Any) -> NewLesson:
    given: dict[str, Any] = {
        "kind": LessonKind.EPISODIC,
        "scope": GAME,
        "title": "A lesson",
        "content": content,
        "known_at": MONDAY,
        "trust": Trust.VERDICT,
    }
    return NewLesson(**{**given, **changes})
