"""Lessons for the console and the command: opened when they are first needed, as the embedding model is large."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime

from data_bridge.database import Database
from trainer.config.lessons import KeptLessons
from trainer.ledger.lesson_admissions import Admission, keep_admission, waiting_lessons
from trainer.ledger.lessons import StoredLesson, now_of_database
from trainer.lesson import ALL_KINDS, Embedder, FoundLesson, LessonKind, NewLesson, Scope, Trust
from trainer.lessons.consolidate import Consolidation, consolidate
from trainer.lessons.retrieval import Lessons, open_lessons_of
from trainer.lessons.wording import quoted, title_of


class LessonDesk:
    """Stores what comes from outside, looks up, consolidates."""

    def __init__(self, database: Database, game: str, kept: KeptLessons, embedder: Callable[[], Embedder]) -> None:
        """``embedder`` makes the embedder when it is first needed."""
        self.game = game
        self._database, self._kept, self._embedder = database, kept, embedder
        self._lessons: Lessons | None = None
        self._opening = asyncio.Lock()

    async def store_sent(self, agent_id: str, kind: LessonKind, content: str, title: str | None) -> StoredLesson:
        """A lesson from outside: quoted, of the agent's own scope, known from now on, not shown until gated."""
        lessons = await self._open()
        new = NewLesson(
            kind=kind,
            scope=Scope(self.game, agent_id=agent_id),
            title=title_of(title or "From outside"),
            content=quoted(content),
            known_at=await now_of_database(self._database.pool),
            trust=Trust.API,
        )
        (stored,) = await lessons.store([new])
        return stored

    async def retrieve(
        self,
        context: str,
        *,
        agent_id: str | None,
        role: str | None = None,
        as_of: datetime | None = None,
        k: int,
        kinds: Sequence[LessonKind] = ALL_KINDS,
    ) -> list[FoundLesson]:
        """Without ``as_of``: what is known now."""
        lessons = await self._open()
        moment = as_of or await now_of_database(self._database.pool)
        return await lessons.retrieve(context, Scope(self.game, role, agent_id), as_of=moment, k=k, kinds=kinds)

    async def ask_the_gate(self, agent_id: str | None, *, asked_by: str) -> Admission | None:
        """Have an idle host put the lessons from outside that wait, of one agent or of all, to the gate; None if none
        does."""
        admission = await waiting_lessons(self._database.pool, self.game, agent_id)
        if admission is not None:
            await keep_admission(self._database, admission, self.game, agent_id, asked_by=asked_by, is_wanted=True)
        return admission

    async def consolidate(self, *, whole: bool = False) -> Consolidation:
        return await consolidate(await self._open(), self._kept, self.game, whole=whole)

    async def _open(self) -> Lessons:
        async with self._opening:
            if self._lessons is None:
                self._lessons = await open_lessons_of(self._database, self._embedder())
            return self._lessons

    async def close(self) -> None:
        if self._lessons is not None:
            await self._lessons.embedder.close()
            self._lessons = None
