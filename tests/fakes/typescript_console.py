"""A console for the tests of the TypeScript client, in a process of its own: the real one over a real Postgres.

``python -m tests.fakes.typescript_console FOLDER`` prints one line of JSON when it answers, and ends when its standard
input does, so that it never outlives the tests. Judged by a local endpoint; lessons are embedded by their words.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from data_bridge.database import open_database
from data_bridge.embedded import EmbeddedServer
from tests.builders_console import FULL, READ, opened_console
from tests.builders_lessons import WordEmbedder, new_lesson, source
from tests.builders_report_run import record_run
from tests.fakes.judge_server import JudgeServer
from trainer.lesson import Scope
from trainer.lessons.retrieval import open_lessons_of


@contextmanager
def _postgres(folder: Path) -> Iterator[str]:
    server = EmbeddedServer(folder / "postgres", options={"fsync": "off", "full_page_writes": "off"})
    server.start()
    try:
        yield server.url()
    finally:
        server.stop()


async def main(folder: Path) -> None:
    with _postgres(folder) as url, JudgeServer() as judge:
        async with open_database(url, folder, migrate=True) as database:
            await record_run(database, folder)
            lessons = await open_lessons_of(database, WordEmbedder())
            await lessons.store([new_lesson("strike means sell", scope=Scope("game"), sources=(source(1),))])
            judged: dict[str, Any] = {
                "judge_model": "gpt-test",
                "judge_base_url": judge.base_url,
                "judge_api_key": "sk-of-these-tests",
            }
            quick: dict[str, Any] = {"advice_timeout": timedelta(milliseconds=200)}  # nothing serves the release here
            async with opened_console(database, folder, price="0.25/2", **judged, **quick) as console:
                ready = {"url": console.url, "full": FULL, "read": READ, "database": url}
                sys.stdout.write(f"{json.dumps(ready)}\n")
                sys.stdout.flush()
                await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
