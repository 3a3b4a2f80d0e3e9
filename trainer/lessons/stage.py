"""The stage beside training: what a judged group teaches is kept, and what its members' lessons were worth.

It never holds up or ends a training: what could not be distilled now is distilled by ``lessons.py distil`` later, from
the ledger. Killed anywhere, nothing is doubled: the lessons of a verdict and the note that it was distilled are one
transaction, and what the judge was paid for is in the ledger before it is used.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from statistics import fmean

from data_bridge.database import Database
from data_bridge.errors import HindsightError
from data_bridge.redaction import redact
from data_bridge.window_ids import end_of
from trainer.ledger.injections import ScoredDecision, score_injections, shown_to
from trainer.ledger.lessons import VectorType, is_distilled, keep_distilled, keep_procedures, windows_of
from trainer.ledger.observations import observed_in_run, patterns_of_run
from trainer.lesson import LessonSource, NewLesson
from trainer.lessons.distil import ScopeRule, episodes, procedures, worded
from trainer.lessons.shown import note_shown
from trainer.types import Judge, JudgedGroup

logger = logging.getLogger(__name__)


@asynccontextmanager
async def kept(stage: LessonStage | None, stop: asyncio.Event) -> AsyncIterator[None]:
    """What the stage is given within the block is distilled at its end; after a fault or a stop, as far as it got."""
    try:
        yield
        if stage is not None:
            await stage.finish(stop)
    finally:
        if stage is not None:
            await stage.cancel()


@dataclass(slots=True)
class LessonStage:
    """Takes judged groups and keeps their lessons."""

    database: Database
    kind: VectorType
    game: str
    scope: ScopeRule
    run_id: str | None
    wording: Judge | None = None
    """The judge with the rubric that asks for lessons; None: by template."""
    kept: int = 0
    groups: int = 0
    failed: int = 0
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def start(self, judged: JudgedGroup) -> None:
        """Distil in the background; ``finish`` waits for it."""
        task = asyncio.create_task(self._guarded(judged), name=f"distil {judged.group.group_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self, stop: asyncio.Event) -> None:
        """Wait for what was started. After a request to stop, not for the judge: the rest is caught up later."""
        stopped = asyncio.create_task(stop.wait(), name="wait for a stop")
        while self._tasks and not (stop.is_set() and self.wording is not None):
            waiting = {*self._tasks} if stop.is_set() else {*self._tasks, stopped}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()

    async def cancel(self) -> None:
        left = list(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _guarded(self, judged: JudgedGroup) -> None:
        try:
            await self.distil(judged)
        except Exception as error:  # whatever it is: lessons are no reason to stop a training, and can be caught up
            self.failed += 1
            said = redact(str(error) or type(error).__name__)
            logger.warning("window %s: no lessons from %s (%s)", judged.group.window_id, judged.group.group_id, said)

    async def distil(self, judged: JudgedGroup) -> None:
        """Keep the lessons of one judged group, once."""
        await note_shown(self.database.pool, self.game, judged.group.trajectories)
        await self._score(judged)
        if await is_distilled(self.database.pool, judged.verdict_key, self.game):
            return
        names = [one.trajectory_id for one in judged.group.trajectories]
        recalled = await shown_to(self.database.pool, names)
        lessons, method = await self._worded(judged, recalled), "judge"
        if lessons is None:
            lessons, method = episodes(judged, self.game, self.scope, recalled), "template"
        new = await self._keep(lessons, judged.verdict_key, method, judged.group.window_id)
        if new is not None:
            self.groups += 1
            self.kept += new

    async def _score(self, judged: JudgedGroup) -> None:
        mean = fmean(judged.scores)
        await score_injections(
            self.database, [ScoredDecision(one.trajectory_id, one.score, mean) for one in judged.verdicts]
        )

    async def _worded(self, judged: JudgedGroup, recalled: Mapping[str, Sequence[str]]) -> list[NewLesson] | None:
        """In the judge's words; None without such a judge, or if it gives no answer within the ceiling of cost."""
        if self.wording is None:
            return None
        try:
            told = await self.wording.judge(judged.group)
        except HindsightError as error:
            logger.warning("the judge words no lessons (%s): by template instead", redact(str(error)))
            return None
        return worded(judged, told, self.game, self.scope, recalled) if isinstance(told, JudgedGroup) else None

    async def _keep(self, lessons: Sequence[NewLesson], key: str, method: str, window_id: str) -> int | None:
        return await keep_distilled(
            self.database,
            self.kind,
            lessons,
            verdict_key=key,
            game=self.game,
            method=method,
            run_id=self.run_id,
            window_id=window_id,
        )

    async def distil_patterns(self, run_id: str) -> int:
        """Procedures against the errors that are more than chance in all that a run read; returns how many are new."""
        patterns = [one for one in await patterns_of_run(self.database.pool, run_id) if one.significant]
        hours = await windows_of(self.database.pool, run_id)
        sources = {
            row.trajectory_id: LessonSource(
                row.trajectory_id, row.agent_id, row.window_id, end_of(row.window_id, hours.get(row.window_id, 1))
            )
            for row in await observed_in_run(self.database.pool, run_id)
        }
        lessons = procedures(patterns, self.game, sources)
        if not lessons:
            return 0
        stored = await keep_procedures(self.database, self.kind, lessons)
        self.kept += stored
        return stored
