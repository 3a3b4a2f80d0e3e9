"""The page of lessons: search, sources, usefulness, retiring one with a reason, and putting those from outside to the
gate."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.responses import Response

from trainer.console.memory_api import ask_the_gate
from trainer.console.problems import Refused
from trainer.console.services import audited
from trainer.console.visits import Shown, Visit
from trainer.ledger.lesson_admissions import list_admissions
from trainer.ledger.lessons import retire_lesson
from trainer.ledger.read.lessons import STATES, lesson_counts, list_lessons
from trainer.lesson import ALL_KINDS

_LESSON_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class LessonSearch:
    words: str
    kind: str
    state: str


def _asked(query: Mapping[str, str]) -> LessonSearch:
    kind, state = query.get("kind", ""), query.get("state", "")
    words = query.get("q", "").replace("\x00", " ")[:200]
    return LessonSearch(words, kind if kind in ALL_KINDS else "", state if state in STATES else STATES[0])


async def lessons_page(visit: Visit) -> Response:
    database, game = visit.services.database, visit.services.lessons.game
    asked = _asked(visit.request.query_params)
    found = await list_lessons(
        database, game=game, kind=asked.kind or None, state=asked.state, words=asked.words or None, limit=100
    )
    return visit.page(
        "lessons",
        "Lessons",
        counts=await lesson_counts(database, game),
        lessons=found,
        asked=asked,
        kinds=[kind.value for kind in ALL_KINDS],
        states=list(STATES),
        admissions=await list_admissions(database, game),
    )


async def retire_form(visit: Visit) -> Response:
    form = await visit.form()
    lesson_id, reason = form.get("lesson", ""), form.get("reason", "")
    if _LESSON_ID.fullmatch(lesson_id) is None:
        raise Refused(422, "Name a lesson.")
    if not reason:
        raise Refused(422, "Say why: the reason is kept with the lesson.")
    async with audited(visit.services, visit.caller, visit.request, "retire a lesson", lesson_id, reason[:500]):
        if not await retire_lesson(visit.services.database, lesson_id, reason):
            raise Refused(404, "There is no such lesson, or it is retired already.")
    return visit.back("/lessons", "lesson-retired")


async def gate_form(visit: Visit) -> Response:
    form = await visit.form()
    await ask_the_gate(visit.services, visit.caller, visit.request, form.get("agent", "").strip()[:200] or None)
    return visit.back("/lessons", "lessons-asked")


PAGES: Mapping[str, Shown] = {"/lessons": lessons_page}
FORMS: Mapping[str, Shown] = {"/lessons/retire": retire_form, "/lessons/gate": gate_form}
