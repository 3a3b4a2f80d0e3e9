"""kill -9 before every statement that writes, of distilling and of consolidating: nothing is doubled or lost."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from data_bridge.database import Database
from data_bridge.window_ids import windows_from
from tests.builders_lessons import MONDAY, WordEmbedder, new_lesson, source
from tests.fakes.dying_lessons import GAME, distil, merge, state
from trainer.lesson import NewLesson, Scope
from trainer.lessons.retrieval import open_lessons_of
from trainer.world.agents import scripted_cast
from trainer.world.market import Market
from trainer.world.play import play_windows

ROOT = Path(__file__).parents[2]
WINDOWS = windows_from("2026-03-02T00:00", 2)
SURVIVED, KILLED = 0, -9


def killed_again_and_again(url: str, home: Path, what: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.fakes.dying_lessons", url, str(home), what, WINDOWS[-1]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


async def test_killed_anywhere_while_distilling_every_verdict_is_distilled_once(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    await play_windows(database, tmp_path / "spool", Market(7), scripted_cast(4, 7), WINDOWS, write_together=2)
    await distil(database, "whole", WINDOWS[-1])
    whole = await state(database, "whole")
    assert len(whole["distilled"]) == 2
    assert whole["lessons"]

    tries = killed_again_and_again(database_url, tmp_path, "distil")
    assert [one["ended"] for one in tries] == [KILLED] * (len(tries) - 1) + [SURVIVED]
    assert len(tries) > 6
    for one in tries:
        # A verdict and its lessons are there together, or neither is.
        done = [row for row in whole["distilled"] if row in one["distilled"]]
        assert len(done) == len(one["distilled"])
        assert bool(one["lessons"]) is bool(done)
        assert [row for row in one["lessons"] if row[2] not in {each[2] for each in whole["lessons"]}] == []
    assert {len(one["distilled"]) for one in tries} == {0, 1, 2}, "it was killed between the two as well"
    assert {key: tries[-1][key] for key in whole} == whole


def episodes(game: str) -> list[NewLesson]:
    """Two rules, one of them contradicted."""
    at = [MONDAY + timedelta(hours=number) for number in range(6)]
    texts = [f"News: Orders at $A{n} surge. BUY A{n} 20 worked: A{n} rose {n} %." for n in range(3)]
    texts += [f"News: Orders at $A{n} surge. BUY A{n} 20 failed: A{n} fell {n} %." for n in (3,)]
    texts += [f"News: a strike shuts the harbour of $B{n}. SELL B{n} 20 worked: B{n} fell {n} %." for n in (4, 5)]
    return [
        new_lesson(
            text,
            scope=Scope(game),
            about=text.split()[-7] if "SELL" not in text else "SELL",
            stance=-1 if "failed" in text else 1,
            known_at=at[number],
            sources=(source(number, known_at=at[number]),),
        )
        for number, text in enumerate(texts)
    ]


async def test_killed_anywhere_while_consolidating_it_is_done_as_a_whole_or_not_at_all(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    store = await open_lessons_of(database, WordEmbedder())
    for game in ("whole", GAME):
        await store.store(episodes(game))
    before = await state(database, GAME)
    await merge(database, "whole")
    whole = await state(database, "whole")
    assert whole != before
    assert any(row[0] == "semantic" for row in whole["lessons"])

    tries = killed_again_and_again(database_url, tmp_path, "consolidate")
    assert [one["ended"] for one in tries] == [KILLED] * (len(tries) - 1) + [SURVIVED]
    assert len(tries) > 3
    states = [{key: one[key] for key in whole} for one in tries]
    assert all(one in (before, whole) for one in states), "no statement shows alone"
    assert before in states
    assert states[-1] == whole
    await merge(database, GAME)
    assert await state(database, GAME) == whole, "and once more changes nothing"
