"""Puts lessons from outside to the gate: what the agents use, with these lessons and without them.

The evaluation is the one of every release, with random lessons and none as controls, on windows that began after the
lessons were stored; the gate rules, and what passed is shown from then on. Agents keep what they have otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from data_bridge.database import Database
from data_bridge.errors import ConfigurationError, HindsightError, NotEnoughData
from trainer.config.lessons import LessonsCommand
from trainer.evidence import Evaluation, GateDecision, Ruling
from trainer.ledger.checkpoints import find_checkpoint
from trainer.ledger.evaluations import keep_ruling
from trainer.ledger.lesson_admissions import (
    Admission,
    admission_named,
    keep_admission,
    note_try,
    one_admission_at_a_time,
    settle_admissions,
    waiting_lessons,
    wanted_admissions,
)
from trainer.ledger.releases import incumbent_of
from trainer.pipeline import evaluate
from trainer.promote.ruling import rule_on
from trainer.types import Release, release_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GatedLessons:
    """What came of putting lessons to the gate."""

    admission: Admission
    evaluation: Evaluation
    decision: GateDecision
    shown: int
    """How many of them agents may be shown from now on: all or none."""

    @property
    def sentence(self) -> str:
        return f"{self.decision.ruling.value}: {self.decision.sentence}"


async def gate_waiting(
    database: Database, settings: LessonsCommand, *, agent_id: str | None, asked_by: str, say: Callable[[str], None]
) -> GatedLessons:
    """Put the lessons that wait, of one agent or of all, to the gate. NotEnoughData if none waits."""
    game = settings.lessons.game
    async with one_admission_at_a_time(database, game) as is_ours:
        if not is_ours:
            raise ConfigurationError(f"Lessons of the game {game!r} are at the gate already: wait for that to end.")
        shown = await settle_admissions(database, game)
        admission = await waiting_lessons(database.pool, game, agent_id)
        if admission is None:
            passed = f"; {shown} that had passed the gate are shown now" if shown else ""
            raise NotEnoughData(
                f"No lesson from outside{_of(agent_id)} waits for the gate in the game {game!r}{passed}: "
                "`lessons.py list --state waiting` shows those that do."
            )
        await keep_admission(database, admission, game, agent_id, asked_by=asked_by, is_wanted=False)
        return await _gate(database, settings, admission, say)


async def gate_asked(
    database: Database, settings: LessonsCommand, *, say: Callable[[str], None]
) -> list[GatedLessons | HindsightError]:
    """Put to the gate what somebody asked for, in the order of asking; a fault with one is its outcome."""
    game = settings.lessons.game
    done: list[GatedLessons | HindsightError] = []
    async with one_admission_at_a_time(database, game) as is_ours:
        if not is_ours:
            return done  # who is at it does it all
        await settle_admissions(database, game)
        for name in await wanted_admissions(database.pool, game):
            admission = await admission_named(database.pool, name)
            if admission is None:
                await note_try(database.pool, name, "none of its lessons waits any more")
                continue
            if admission.admission_id != name:  # some of them were retired since
                await keep_admission(database, admission, game, None, asked_by=f"admission {name}", is_wanted=False)
                await note_try(database.pool, name, f"went on as {admission.admission_id}, without what was retired")
            try:
                done.append(await _gate(database, settings, admission, say))
            except HindsightError as error:
                done.append(error)
    return done


def _of(agent_id: str | None) -> str:
    return "" if agent_id is None else f" of {agent_id!r}"


async def _gate(
    database: Database, settings: LessonsCommand, admission: Admission, say: Callable[[str], None]
) -> GatedLessons:
    try:
        found = await _evaluated(database, settings, admission, say)
    except HindsightError as error:
        await note_try(database.pool, admission.admission_id, str(error))
        raise
    await note_try(database.pool, admission.admission_id, found.sentence)
    logger.info("gate: %s for %s", found.sentence, found.evaluation.candidate.name)
    return found


async def _evaluated(
    database: Database, settings: LessonsCommand, admission: Admission, say: Callable[[str], None]
) -> GatedLessons:
    used = await incumbent_of(database, settings.model.model)
    without = await _without(database, settings, used)
    candidate = replace(without, lessons_policy=admission.policy_with(without.lessons_policy))
    evaluation = await evaluate(database, settings, candidate, without, run_id=None, admission=admission, say=say)
    decision = await rule_on(database, evaluation, settings.gate)
    if decision.ruling is Ruling.PROMOTE and await incumbent_of(database, settings.model.model) != used:
        changed = ("what the agents use changed during the evaluation; put the lessons to the gate again",)
        decision = replace(decision, ruling=Ruling.UNDECIDED, reasons=changed, expected_gain=None)
        await keep_ruling(database.pool, evaluation, decision)
    return GatedLessons(admission, evaluation, decision, await settle_admissions(database, settings.lessons.game))


async def _without(database: Database, settings: LessonsCommand, used: Release | None) -> Release:
    """What the agents use, with the lessons policy that the lessons are to be shown by."""
    checkpoint = await find_checkpoint(database, settings.model.model, 0) if used is None else used.checkpoint
    release = release_of(checkpoint, used, settings.lessons.lessons)
    if not release.lessons_policy:
        raise ConfigurationError(
            f"{release.name} shows no lessons: say by which policy these are to be shown, e.g. --lessons 2-all-notes."
        )
    return release
