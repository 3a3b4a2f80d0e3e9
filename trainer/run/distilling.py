"""Distillation as runs and commands use it: beside a training, or later, from what the ledger has of it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from data_bridge.database import Database
from data_bridge.errors import ConfigurationError
from data_bridge.models import AgentTrajectory
from data_bridge.reader import WindowReader
from data_bridge.redaction import redact
from trainer.config.lessons import DistilSettings
from trainer.config.sections import JudgeSecrets, JudgeSettings
from trainer.judge.cost import uses_llm
from trainer.judge.open import open_judge
from trainer.ledger.lessons import JudgedRecord, undistilled, vector_type
from trainer.lessons.stage import LessonStage
from trainer.progress import counted
from trainer.types import MIN_GROUP, Group, Judge, JudgedGroup

logger = logging.getLogger(__name__)

RUBRIC = "lessons"


@asynccontextmanager
async def open_distilling(
    database: Database,
    settings: DistilSettings,
    judge: JudgeSettings,
    secrets: JudgeSecrets,
    run_id: str,
    beside: Judge | None = None,
) -> AsyncIterator[LessonStage | None]:
    """The stage that keeps lessons; None with ``--distil off``.

    With ``--distil judge`` the same judge is asked once more for each group, with another rubric: under the same
    ceiling of cost, claimed and stored in the ledger like every verdict.
    """
    if settings.distil == "off":
        yield None
        return
    kind = await vector_type(database.pool)
    stage = LessonStage(database, kind, settings.game, settings.lesson_scope, run_id)
    if settings.distil == "template":
        yield stage
        return
    if not uses_llm(judge):
        raise ConfigurationError("--distil judge needs an LLM as the judge: set JUDGE_MODEL, or --distil template.")
    once = {"rubric": RUBRIC, "judge_orders": 1, "judge_passes": 1, "judge_order_rule": "all"}
    asked = judge.model_copy(update=once)
    async with open_judge(asked, secrets, database, run_id, purpose=RUBRIC, beside=beside) as wording:
        stage.wording = wording
        yield stage


async def keep_procedures_of(stage: LessonStage | None, run_id: str, say: Callable[[str], None]) -> None:
    """At the end of a run: procedures from its error patterns. A fault is a warning."""
    if stage is None:
        return
    try:
        await stage.distil_patterns(run_id)
    except Exception as error:  # lessons are no reason to fail a run that is done
        logger.warning("run %s: no procedures (%s)", run_id, redact(str(error) or type(error).__name__))
    if stage.kept:
        say(f"Kept {counted(stage.kept, 'new lesson')} from {counted(stage.groups, 'judged group')}.")


@dataclass(frozen=True, slots=True)
class Distilled:
    """What a catch-up kept."""

    groups: int
    lessons: int
    left: int
    """Groups whose rows are gone or changed, or whose window waits for a ruling."""


async def catch_up(stage: LessonStage | None, reader: WindowReader, model: str, run_id: str) -> None:
    """What an earlier attempt of this run trained and had no time to distil. A fault is a warning."""
    if stage is None:
        return
    try:
        for record in await undistilled(stage.database.pool, stage.game, model, run_id):
            judged = await _judged(reader, record)
            if judged is not None:
                await stage.distil(judged)
    except Exception as error:  # lessons are no reason to fail a training
        logger.warning("run %s: lessons are left to distil (%s)", run_id, redact(str(error) or type(error).__name__))


async def distil_ledger(stage: LessonStage, reader: WindowReader, model: str) -> Distilled:
    """Distil every trained group of ``model`` that was not distilled yet, and the error patterns of its runs."""
    waiting = await undistilled(stage.database.pool, stage.game, model)
    left = 0
    for record in waiting:
        judged = await _judged(reader, record)
        before = stage.groups
        if judged is not None:
            stage.run_id = record.run_id
            await stage.distil(judged)
        left += stage.groups == before
    for run_id in sorted({record.run_id for record in waiting}):
        await stage.distil_patterns(run_id)
    return Distilled(stage.groups, stage.kept, left)


async def _judged(reader: WindowReader, record: JudgedRecord) -> JudgedGroup | None:
    """The group with those of its rows that are as they were judged; None if too few are left."""
    window = await reader.read(record.group.window_id)
    if window is None:
        return None
    rows = {one.trajectory_id: one for one in window.trajectories}
    content = dict(zip((one.trajectory_id for one in record.group.verdicts), record.group.content, strict=False))
    members: list[AgentTrajectory] = []
    verdicts = []
    for verdict in record.group.verdicts:
        row = rows.get(verdict.trajectory_id)
        if row is not None and content.get(verdict.trajectory_id, row.content_hash) == row.content_hash:
            members.append(row)
            verdicts.append(verdict)
    if len(members) < MIN_GROUP:
        return None
    truth = (window.outcomes, reader.rules.world, window.hours)
    group = Group(record.group.group_id, record.group.window_id, tuple(members), *truth)
    judged = JudgedGroup(group, tuple(verdicts), record.group.identity, record.group.verdict_key, cached=True)
    return replace(judged, use=record.group.use)
