"""Distils or consolidates lessons in processes that are killed, one after the other, each a statement
later.

``python -m tests.fakes.dying_lessons URL HOME distil|consolidate`` works on the game ``killed``: a child for each
statement that writes kills itself (SIGKILL) just before it, and the last one is left alone. It prints a line of JSON
for each: how the child ended, and what the database holds then.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg.connection

from data_bridge.database import Database, open_database
from data_bridge.quality import Rules, check
from data_bridge.reader import WindowReader
from data_bridge.window_ids import GRACE, end_of
from tests.builders_lessons import WordEmbedder
from trainer.config.lessons import KeptLessons
from trainer.config.sections import GroupingSettings
from trainer.judge.outcome import OutcomeJudge
from trainer.ledger.lessons import vector_type
from trainer.lessons.consolidate import consolidate
from trainer.lessons.retrieval import open_lessons_of
from trainer.lessons.stage import LessonStage
from trainer.plan.grouping import form_groups
from trainer.types import JudgedGroup

GAME = "killed"
_MOST = 400


async def distil(database: Database, game: str, last_window: str) -> None:
    """As a training does beside its judge: every group once."""
    rules = Rules(now=end_of(last_window, 1) + GRACE, lookback=timedelta(days=7))
    reader, judge = WindowReader(database, rules), OutcomeJudge()
    stage = LessonStage(database, await vector_type(database.pool), game, "game", None)
    async for window in reader.stream(await reader.discover()):
        for group in form_groups(check(window, rules), GroupingSettings(), 7).groups:
            judged = await judge.judge(group)
            assert isinstance(judged, JudgedGroup)
            await stage.distil(judged)


async def merge(database: Database, game: str) -> None:
    await consolidate(await open_lessons_of(database, WordEmbedder()), KeptLessons(), game)


async def state(database: Database, game: str) -> dict[str, Any]:
    """All that the work writes, without what differs between games and times."""
    lessons = await database.pool.fetch(
        "SELECT kind, title, content, support, contradictions, known_at::text, retired_at IS NOT NULL,"
        " (SELECT count(*) FROM hindsight.lesson_sources s WHERE s.lesson_id = l.lesson_id) AS sources"
        " FROM hindsight.lessons l WHERE game = $1 ORDER BY kind, title, content",
        game,
    )
    distilled = await database.pool.fetch(
        "SELECT verdict_key, lessons FROM hindsight.distilled WHERE game = $1 ORDER BY verdict_key", game
    )
    return {"lessons": [list(row.values()) for row in lessons], "distilled": [list(row.values()) for row in distilled]}


def die_before(statement: int) -> None:
    """Kill this process with SIGKILL just before it sends its ``statement``-th statement that writes, or commits."""
    left, writes = [statement], ("INSERT", "UPDATE", "DELETE", "WITH", "BEGIN", "COMMIT")

    def counted(send: Any) -> Any:
        async def sending(self: Any, query: str, *arguments: Any, **options: Any) -> Any:
            left[0] -= query.lstrip().upper().startswith(writes)
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return await send(self, query, *arguments, **options)

        return sending

    connection: Any = asyncpg.connection.Connection
    connection.execute = counted(connection.execute)
    connection._execute = counted(connection._execute)


def work(url: str, home: Path, what: str, last_window: str, *, die_at: int) -> None:
    async def working() -> None:
        async with open_database(url, home) as database:
            die_before(die_at)
            await (distil(database, GAME, last_window) if what == "distil" else merge(database, GAME))

    asyncio.run(working())


def main() -> int:
    url, home, what, last_window = sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4]

    async def seen() -> dict[str, Any]:
        async with open_database(url, home) as database:
            return await state(database, GAME)

    for die_at in range(1, _MOST):
        child = os.fork()  # before any loop or connection of ours is open
        if child == 0:
            work(url, home, what, last_window, die_at=die_at)
            os._exit(0)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(json.dumps({"ended": ended, **asyncio.run(seen())}), flush=True)  # noqa: T201
        if ended != -signal.SIGKILL:
            return int(ended != 0)
    return 1


if __name__ == "__main__":
    sys.exit(main())
