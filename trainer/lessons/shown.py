"""Which lessons judged decisions were shown, read from their prompts: exactly what the agent saw, whoever put it there.

An agent that uses lessons logs nothing else for it, and can claim nothing: a lesson counts as shown if its text stands
in the block of lessons of a call. One that was not known yet at that time is a leak. It is told, and never counts for
a lesson's usefulness.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from data_bridge.lesson_prompts import decided_at, lessons_in
from data_bridge.models import AgentTrajectory, NotText, Step
from trainer.ledger.injections import Injection, record_injections
from trainer.ledger.lesson_search import lessons_reading
from trainer.world.agents import EXPLORER

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Leak:
    """A lesson in a prompt from before it was known."""

    lesson_id: str
    trajectory_id: str
    window_id: str
    shown_at: datetime
    known_at: datetime


async def note_shown(source: object, game: str, trajectories: Sequence[AgentTrajectory]) -> list[Leak]:
    """Store which lessons of ``game`` these decisions were shown; returns those that were not known yet."""
    seen = [(one, number, text) for one in trajectories for number, step in enumerate(one.steps) for text in _of(step)]
    if not seen:
        return []
    known = await lessons_reading(source, game, {text for _, _, text in seen})
    shown: list[Injection] = []
    leaks: list[Leak] = []
    places: dict[str, int] = {}
    for trajectory, number, text in seen:
        lesson, at = known.get(text), decided_at(trajectory, number)
        if lesson is None:
            continue
        if lesson.known_at > at:
            where = (trajectory.trajectory_id, trajectory.window_id)
            leaks.append(Leak(lesson.lesson_id, *where, at, lesson.known_at))
            continue
        decision = f"{trajectory.trajectory_id}#{number}"
        places[decision] = places.get(decision, -1) + 1
        who = (game, trajectory.agent_id, trajectory.window_id)
        shown.append(
            Injection(decision, lesson.lesson_id, places[decision], *who, at, trajectory_id=trajectory.trajectory_id)
        )
    await record_injections(source, shown)
    for leak in leaks:
        logger.warning(
            "window %s: trajectory %s was shown lesson %s before it was known (%s)",
            *(leak.window_id, leak.trajectory_id, leak.lesson_id, leak.known_at),
        )
    return leaks


def _of(step: Step) -> Iterator[str]:
    """Each lesson once, however often the step called its model."""
    found: dict[str, None] = {}
    for call in step.llm_calls:
        if call.model == EXPLORER:  # nobody read it
            continue
        try:
            found.update(dict.fromkeys(lessons_in(call.seen())))
        except NotText:
            continue
    yield from found
