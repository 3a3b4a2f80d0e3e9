"""Lessons from outside: stored through the API, put to the gate, and shown to agents only if decisions are better with
them than without."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from data_bridge.database import Database
from tests.builders_console import READ, opened_console
from tests.builders_lessons import GAME as MARKET_GAME
from tests.builders_lessons import WordEmbedder, new_lesson
from tests.builders_promotion import insert_checkpoint
from tests.fakes.checkpoint_server import against_the_news, follows_the_news
from tests.integration.test_console_calls import API, said
from tests.integration.test_lessons_judged import MARKET, TRAINED, WINDOWS, Believer
from trainer.config.console import ConsoleCommand
from trainer.config.settings import settings_from
from trainer.config.training import AddressSettings
from trainer.inference.embedding import EmbeddedModel
from trainer.ledger.checkpoints import find_checkpoint
from trainer.ledger.lesson_admissions import (
    Admission,
    admission_named,
    keep_admission,
    list_admissions,
    one_admission_at_a_time,
    settle_admissions,
    waiting_lessons,
    wanted_admissions,
)
from trainer.ledger.lessons import retire_lesson
from trainer.ledger.releases import serving
from trainer.lesson import Scope, Trust
from trainer.lessons.retrieval import open_lessons_of
from trainer.promote.publish import publish
from trainer.schedule.commanded import gate_what_was_asked_for
from trainer.world.agents import scripted_cast
from trainer.world.play import play_windows

ROOT = Path(__file__).parents[2]
CAST = scripted_cast(3, 7)
AGENT, OTHER = CAST[0].agent_id, CAST[1].agent_id
RIGHT, WRONG = "When there is news: follow it", "When there is news: oppose it"


@pytest.fixture
def model() -> Iterator[Believer]:
    with Believer() as server:
        yield server


@pytest.fixture
async def played(
    database: Database, database_url: str, model: Believer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Database:
    """Agents use step 1 without lessons; hours after its training, and the settings of a host as variables."""
    await play_windows(database, tmp_path / "spool", MARKET, CAST, TRAINED + WINDOWS, write_together=50)
    await insert_checkpoint(database, 1, windows=TRAINED)
    point = await find_checkpoint(database, "hindsight", 1)
    at = point.served_at(AddressSettings(wandb_base_url=model.base_url))
    await publish(database, tmp_path, point.as_release(), at, reason="first")
    variables = {
        "DATABASE_URL": database_url,
        "HINDSIGHT_HOME": str(tmp_path),
        "WANDB_API_KEY": "a-key-for-tests",
        "WANDB_TRAINING_BASE_URL": model.base_url,
        "HINDSIGHT_EVAL_SAMPLES": "1",
        "HINDSIGHT_EVAL_WINDOWS": str(len(WINDOWS)),
        "HINDSIGHT_LESSONS": "1-all-notes",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return database


def lesson_of(agent: str, content: str) -> dict[str, str]:
    return {"agent_id": agent, "memory_type": "procedural", "content": content}


def gate(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "lessons.py"), "gate", *flags]
    return subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, check=False)


async def test_right_lessons_pass_the_gate_that_somebody_asked_for_and_are_shown_only_then(
    played: Database, model: Believer, tmp_path: Path
) -> None:
    model.used_to = against_the_news
    settings = settings_from(ConsoleCommand, home=tmp_path)
    async with (
        opened_console(played, tmp_path, embedder=EmbeddedModel) as console,
        console.client(timeout=60) as client,
        console.client(READ) as reader,
    ):

        async def shown(agent: str) -> list[str]:
            body = {"agent_id": agent, "context": "there is news", "k": 5}
            found = await said(await client.post(f"{API}/memory/retrieve", json=body), 200)
            return [item["content"] for item in found["items"]]

        async def state() -> dict[str, Any]:
            (entry,) = (await said(await reader.get(f"{API}/memory/gate"), 200))["entries"]
            return dict(entry)

        await said(await client.post(f"{API}/memory/gate", json={}), 409)
        await said(await client.post(f"{API}/memory/store", json=lesson_of(AGENT, RIGHT)), 201)
        await said(await reader.post(f"{API}/memory/gate", json={}), 403)
        asked = await said(await client.post(f"{API}/memory/gate", json={"agent_id": AGENT}), 202)
        again = await said(await client.post(f"{API}/memory/gate", json={"agent_id": AGENT}), 202)
        assert asked == again == {"admission": asked["admission"], "lessons": 1, "state": "waiting"}
        assert (await state())["state"] == "waiting"
        assert await shown(AGENT) == []

        stop = asyncio.Event()
        ended = await gate_what_was_asked_for(played, settings, "game", stop=stop, quiet=True)
        assert ended is not None
        assert ended.exit_code == 0, ended.last_words
        entry = await state()
        assert (entry["state"], entry["lessons"], entry["shown"]) == ("promote", 1, 1)
        assert "is above the required" in entry["outcome"]
        assert await shown(AGENT) == [f'"{RIGHT}"']
        assert await shown(OTHER) == [], "an agent's lesson is its own"
        assert await gate_what_was_asked_for(played, settings, "game", stop=stop, quiet=True) is None

    row = await played.pool.fetchrow("SELECT report::text AS report, ruling, harm_chance FROM hindsight.evaluations")
    assert row is not None
    report = json.loads(row["report"])
    assert row["ruling"] == "promote"
    assert row["harm_chance"] > 0, "the look was paid for"
    roles = {one["role"]: one["score"]["mean"] for one in report["figures"]}
    assert roles["candidate"] > roles["without lessons"] + 0.1
    assert {"incumbent", "random lessons"} <= roles.keys()
    consulted = await played.pool.fetch("SELECT window_id FROM hindsight.consultations ORDER BY 1")
    assert [one["window_id"] for one in consulted] == WINDOWS
    now = await serving(played, "hindsight")
    assert now is not None
    assert now.release.lessons_policy == "", "agents keep the release that they have"


async def test_wrong_lessons_are_refused_by_the_command_and_stay_hidden(played: Database, model: Believer) -> None:
    model.used_to = follows_the_news
    store = await open_lessons_of(played, WordEmbedder())
    for agent in (AGENT, OTHER):
        await store.store([new_lesson(WRONG, scope=Scope("game", agent_id=agent), trust=Trust.API)])
    await played.pool.execute("UPDATE hindsight.lessons SET embedder = NULL")  # the command's own model embeds them

    refused = gate("--agent", AGENT)
    assert refused.returncode == 5, refused.stderr
    assert "refuse" in refused.stdout
    assert "still not shown" in refused.stdout
    assert "Traceback" not in refused.stderr
    assert await played.pool.fetchval("SELECT count(*) FROM hindsight.lessons WHERE gated_at IS NOT NULL") == 0
    (row,) = await list_admissions(played, "game")
    assert (row.state, row.agent_id, row.lessons, row.shown) == ("refuse", AGENT, 1, 0)
    shown = [text for text in model.shown if "oppose" in text]
    assert shown, "the model was shown them, and did what they say"

    # The windows have served: another try on them decides nothing, whoever asks.
    later = gate("--agent", OTHER, "--json")
    assert later.returncode == 5
    assert json.loads(later.stdout)[0]["ruling"] == "undecided"
    nobody = gate("--agent", "nobody")
    assert (nobody.returncode, nobody.stdout) == (3, "")
    assert "waits for the gate" in nobody.stderr


async def admission(database: Database) -> Admission:
    store = await open_lessons_of(database, WordEmbedder())
    await store.store([new_lesson(f"{RIGHT} {number}", trust=Trust.API) for number in range(3)])
    found = await waiting_lessons(database.pool, MARKET_GAME.game, None)
    assert found is not None
    await keep_admission(database, found, MARKET_GAME.game, None, asked_by="a test", is_wanted=True)
    return found


async def rule(database: Database, found: Admission, name: str, ruling: str) -> None:
    await database.pool.execute(
        "INSERT INTO hindsight.evaluations (evaluation_id, model, candidate_step, incumbent_step, judge, windows, gain,"
        " report, lessons_policy, ruling, reasons, ruled_at)"
        " VALUES ($1, 'm', 1, 1, 'outcome', 1, 0, '{}', $2, $3, '{}', now())",
        *(name, found.policy_with("lessons-1-all-notes"), ruling),
    )


async def test_killed_after_the_ruling_the_next_call_shows_what_passed_and_nothing_else(database: Database) -> None:
    found = await admission(database)
    game = MARKET_GAME.game
    await rule(database, found, "first", "undecided")
    assert await settle_admissions(database, game) == 0
    await rule(database, found, "second", "promote")
    assert await settle_admissions(database, game) == 3
    assert await settle_admissions(database, game) == 0
    assert await settle_admissions(database, "another game") == 0


async def test_a_retired_lesson_is_another_admission_and_one_process_is_at_it(database: Database) -> None:
    found = await admission(database)
    await retire_lesson(database, found.lesson_ids[0], "it was luck")
    await rule(database, found, "late", "refuse")
    left = await admission_named(database.pool, found.admission_id)
    assert left is not None
    assert left.lesson_ids == found.lesson_ids[1:]
    assert left.admission_id != found.admission_id
    assert await wanted_admissions(database.pool, MARKET_GAME.game) == [found.admission_id]
    async with one_admission_at_a_time(database, "a") as first, one_admission_at_a_time(database, "a") as second:
        assert (first, second) == (True, False)
        async with one_admission_at_a_time(database, "b") as other:
            assert other


@pytest.mark.parametrize("in_postgres", [2000, -1])
async def test_waiting_lessons_are_found_only_by_the_evaluation_that_decides_on_them(
    database: Database, in_postgres: int
) -> None:
    lessons = await open_lessons_of(database, WordEmbedder(), in_postgres=in_postgres)
    texts = ["news follow it", "news oppose it", "news retired"]
    one, two, gone = await lessons.store([new_lesson(text, trust=Trust.API) for text in texts])
    await lessons.store([new_lesson("news of verdicts")])
    await retire_lesson(database, gone.lesson_id, "old")
    at = new_lesson("x").known_at

    async def found(recall: Any) -> set[str]:
        return {one.lesson.content for one in await recall.retrieve("news", MARKET_GAME, as_of=at, k=5)}

    assert await found(lessons) == {"news of verdicts"}
    assert await found(lessons.admitting([one.lesson_id, gone.lesson_id])) == {"news of verdicts", texts[0]}
    assert await found(lessons) == {"news of verdicts"}
    assert two.lesson_id not in {one.lesson_id, gone.lesson_id}
