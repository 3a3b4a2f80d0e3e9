"""lessons: what verdicts taught; list, search, distil, consolidate, gate, retire, export."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

from data_bridge.errors import ConfigurationError
from trainer.cli.frame import EXIT_CODES, database_of, run_command
from trainer.cli.output import alive, say, say_json
from trainer.cli.tables import Column, show_table
from trainer.config.lessons import LessonsCommand
from trainer.progress import counted

if TYPE_CHECKING:
    from data_bridge.database import Database
    from trainer.lesson import Lesson

_DESCRIPTION = """What verdicts taught, at hand when an agent decides.

Trainings distil lessons from what they judge, and this command from what was trained before; consolidate merges those
that say the same into rules, and forgets what is worth least. No decision is shown what was known later. Lessons from
outside are shown when gate has compared the agents' decisions with and without them, and found them better with."""

_EPILOG = """examples:
  lessons.py list --kind semantic                      the latest rules
  lessons.py search "strike at the harbour"            what an agent would be shown now
  lessons.py distil                                    from what was trained and not distilled yet
  lessons.py consolidate                               merge, count contradictions, forget
  lessons.py gate --agent trader-7                     are lessons from outside better than none? then show them
  lessons.py retire ID --reason "it was luck"          shown to no agent any more
  lessons.py export --output lessons.jsonl             all of them, with sources

"""


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(
        work, LessonsCommand, argv, prog="lessons.py", description=_DESCRIPTION, epilog=_EPILOG + EXIT_CODES
    )


async def work(settings: LessonsCommand) -> int:
    deed = settings.deed.action
    _check(settings)
    async with database_of(settings, migrate=True, existing=True) as database:
        match deed:
            case "list":
                await _list(settings, database)
            case "search":
                await _search(settings, database)
            case "distil":
                await _distil(settings, database)
            case "consolidate":
                await _consolidate(settings, database)
            case "gate":
                return await _gate(settings, database)
            case "retire":
                await _retire(settings, database)
            case "export":
                await _export(settings, database)
    return 0


def _check(settings: LessonsCommand) -> None:
    deed = settings.deed
    if deed.action in ("search", "retire") and not (deed.target or "").strip():
        wanted = "what to look for" if deed.action == "search" else "the lesson's id"
        raise ConfigurationError(f"lessons.py {deed.action} needs {wanted} after it.")
    if deed.action == "retire" and not (deed.reason or "").strip():
        raise ConfigurationError("lessons.py retire needs --reason: it is kept with the lesson.")


async def _list(settings: LessonsCommand, database: Database) -> None:
    from trainer.ledger.read.lessons import list_lessons

    deed = settings.deed
    found = await list_lessons(
        database,
        game=settings.lessons.game,
        kind=deed.kind,
        agent_id=deed.agent,
        state=deed.state,
        words=deed.target,
        limit=deed.limit,
    )
    if settings.output.json_output:
        say_json([_plain(one) for one in found])
        return
    if not found:
        say(f"No lesson like that of the game {settings.lessons.game!r}.")
        return
    _table(found, sys.stdout)


def _table(found: Sequence[Lesson], out: TextIO, scores: Sequence[str] | None = None) -> None:
    columns = [
        Column("id", [one.lesson_id for one in found], rank=1),
        Column("kind", [one.kind.value for one in found], rank=2),
        Column("known at", [f"{one.known_at:%Y-%m-%d %H:%M}" for one in found]),
        Column("for", [str(one.support) for one in found], is_number=True, rank=3),
        Column("against", [str(one.contradictions) for one in found], is_number=True, rank=4),
        Column("uses", [str(one.uses) for one in found], is_number=True, rank=5),
        Column("useful", ["" if one.usefulness is None else f"{one.usefulness:+.3f}" for one in found], rank=6),
        Column("lesson", [f"{one.title}: {one.content}" for one in found]),
    ]
    if scores is not None:
        columns.insert(0, Column("score", scores, is_number=True))
    show_table(columns, out)


async def _search(settings: LessonsCommand, database: Database) -> None:
    from trainer.ledger.lessons import now_of_database
    from trainer.lesson import ALL_KINDS, LessonKind, Scope
    from trainer.lessons.open import open_lessons

    deed = settings.deed
    as_of = await now_of_database(database.pool) if deed.as_of is None else _moment(deed.as_of)
    kinds = ALL_KINDS if deed.kind is None else (LessonKind(deed.kind),)
    scope = Scope(settings.lessons.game, deed.role, deed.agent)
    with alive("searching", quiet=settings.output.json_output):
        async with open_lessons(database, settings.embedding, settings.secrets) as lessons:
            found = await lessons.retrieve(deed.target or "", scope, as_of=as_of, k=deed.limit, kinds=kinds)
    if settings.output.json_output:
        more = ("score", "cosine", "words")
        say_json([_plain(one.lesson) | {name: getattr(one, name) for name in more} for one in found])
    elif found:
        _table([one.lesson for one in found], sys.stdout, [f"{one.score:.3f}" for one in found])
    else:
        say(f"No lesson of the game {settings.lessons.game!r} was known at {as_of:%Y-%m-%d %H:%M} UTC.")


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(f"--as-of: write a moment as 2026-11-02T12:00 in UTC (got {text!r}).") from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


async def _distil(settings: LessonsCommand, database: Database) -> None:
    from data_bridge.reader import WindowReader
    from trainer.config.derived import window_rules
    from trainer.ledger.clock import clock
    from trainer.run.distilling import distil_ledger, open_distilling

    rules = window_rules(settings.windows, now=await clock(database, settings.windows.until))
    run_id = f"lessons of {settings.model.model}"
    with alive("distilling", quiet=settings.output.json_output):
        async with open_distilling(database, settings.lessons, settings.judge, settings.secrets, run_id) as stage:
            if stage is None:
                raise ConfigurationError("--distil off: nothing is distilled; choose template or judge.")
            done = await distil_ledger(stage, WindowReader(database, rules), settings.model.model)
    if settings.output.json_output:
        say_json(asdict(done))
    else:
        left = f"; {counted(done.left, 'group')} left (rows gone, or kept for a ruling)" if done.left else ""
        say(f"Kept {counted(done.lessons, 'new lesson')} from {counted(done.groups, 'judged group')}{left}.")


async def _consolidate(settings: LessonsCommand, database: Database) -> None:
    from trainer.lessons.consolidate import consolidate
    from trainer.lessons.open import open_lessons

    with alive("consolidating", quiet=settings.output.json_output):
        async with open_lessons(database, settings.embedding, settings.secrets) as lessons:
            done = await consolidate(lessons, settings.kept, settings.lessons.game, whole=settings.deed.whole)
    if settings.output.json_output:
        say_json(asdict(done))
        return
    say(
        f"Compared {counted(done.compared, 'lesson')}: merged {done.merged} (of them {done.contradicted} counted "
        f"against a rule), made {counted(done.rules, 'rule')}, retired {done.retired}, deleted {done.purged}.",
        *(f"  {sentence}" for sentence in done.deeds[: settings.deed.limit]),
    )


async def _gate(settings: LessonsCommand, database: Database) -> int:
    """The exit code: 5 if lessons were not let through, as for a checkpoint."""
    from data_bridge.errors import PromotionRefused
    from trainer.cli.evaluate import show_evaluation
    from trainer.config.derived import judged_by, keys_of
    from trainer.judge.open import refuse_unusable
    from trainer.ledger.commands import this_host
    from trainer.run.gate_lessons import GatedLessons, gate_asked, gate_waiting

    refuse_unusable(judged_by(settings.judge, settings.evaluation), keys_of(settings.evaluation, settings.secrets))
    quiet = settings.output.json_output

    def progress(line: str) -> None:
        if not quiet:
            say(line, to=sys.stderr)

    with alive("comparing with and without", quiet=quiet):
        if settings.deed.asked:
            tried = await gate_asked(database, settings, say=progress)
        else:
            agent = settings.deed.agent
            tried = [await gate_waiting(database, settings, agent_id=agent, asked_by=this_host(), say=progress)]
    done = [one for one in tried if isinstance(one, GatedLessons)]
    if quiet:
        say_json(
            [
                {
                    "admission": one.admission.admission_id,
                    "lessons": len(one.admission.lesson_ids),
                    "shown": one.shown,
                    "ruling": one.decision.ruling,
                    "reasons": one.decision.reasons,
                    "evaluation": one.evaluation,
                }
                for one in done
            ]
        )
    for one in () if quiet else done:
        show_evaluation(one.evaluation, one.decision)
        number = counted(len(one.admission.lesson_ids), "lesson")
        say(f"{number} from outside: {'shown to agents from now on' if one.shown else 'still not shown'}.")
    for fault in (one for one in tried if not isinstance(one, GatedLessons)):
        raise fault
    if refused := [one for one in done if not one.shown]:
        raise PromotionRefused(
            f"{counted(len(refused[0].admission.lesson_ids), 'lesson')} from outside did not pass the gate "
            f"({refused[0].sentence}). Agents are not shown them; `lessons.py retire` gives them up."
        )
    return 0


async def _retire(settings: LessonsCommand, database: Database) -> None:
    from trainer.ledger.lessons import retire_lesson

    lesson_id = settings.deed.target or ""
    if not await retire_lesson(database, lesson_id, settings.deed.reason or ""):
        raise ConfigurationError(f"There is no lesson {lesson_id!r} that is not retired: `lessons.py list` shows them.")
    if settings.output.json_output:
        say_json({"retired": lesson_id})
    else:
        say(f"Retired {lesson_id}.")


async def _export(settings: LessonsCommand, database: Database) -> None:
    from trainer.ledger.read.lessons import all_lessons

    number = 0
    with ExitStack() as stack:
        file = settings.deed.export_file
        unfinished = None if file is None else file.with_name(f".{file.name}.unfinished")
        out = sys.stdout if unfinished is None else stack.enter_context(unfinished.open("w", encoding="utf-8"))
        async for lesson, sources in all_lessons(database, settings.lessons.game):
            say_json(_plain(lesson) | {"sources": json.loads(str(sources))}, to=out)
            number += 1
    if unfinished is not None and file is not None:
        unfinished.rename(file)
        say(f"Exported {counted(number, 'lesson')} to {file}.")


def _plain(lesson: Lesson) -> dict[str, Any]:
    """As JSON has it: times as text."""
    import msgspec

    found: dict[str, Any] = msgspec.to_builtins(lesson)
    return found


if __name__ == "__main__":
    sys.exit(main())
