"""Lessons over the API and on the page: the same keys, limits, errors and audit as the rest of the console."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from data_bridge.database import Database
from tests.builders_console import READ, Opened, opened_console
from tests.builders_lessons import MONDAY, WordEmbedder, new_lesson, source
from tests.integration.test_console_calls import API, ingest_client, said
from trainer.certify.probes import ATTACKS
from trainer.ledger.lessons import gate_lessons
from trainer.lesson import Scope
from trainer.lessons.retrieval import Lessons, open_lessons_of

SCOPE = Scope("game")
BODY = {"agent_id": "agent-1", "memory_type": "semantic", "content": "Sell when the harbour strike begins."}
ASKED: dict[str, Any] = {"agent_id": "agent-1", "context": "a strike at the harbour", "k": 5}


@pytest.fixture
async def console(database: Database, tmp_path: Path) -> AsyncIterator[Opened]:
    async with opened_console(database, tmp_path) as opened:
        yield opened


@pytest.fixture
async def client(console: Opened) -> AsyncIterator[httpx.AsyncClient]:
    async with console.client() as made:
        yield made


@pytest.fixture
async def lessons(database: Database) -> Lessons:
    return await open_lessons_of(database, WordEmbedder())


async def test_a_lesson_from_outside_is_stored_once_quoted_and_not_shown_until_gated(
    client: httpx.AsyncClient, database: Database
) -> None:
    first = await said(await client.post(f"{API}/memory/store", json=BODY), 201)
    again = await said(await client.post(f"{API}/memory/store", json=BODY), 200)
    assert (first["duplicate"], again["duplicate"], first["id"] == again["id"]) == (False, True, True)
    assert (await said(await client.post(f"{API}/memory/retrieve", json=ASKED), 200))["items"] == []

    await gate_lessons(database.pool, [first["id"]])
    (item,) = (await said(await client.post(f"{API}/memory/retrieve", json=ASKED), 200))["items"]
    assert (item["trust"], item["content"]) == ("api", f'"{BODY["content"]}"')


async def test_what_is_retrieved_has_scores_sources_and_the_time_it_took(
    client: httpx.AsyncClient, lessons: Lessons
) -> None:
    await lessons.store([new_lesson("strike means sell", scope=SCOPE, sources=(source(1),))])
    found = await said(await client.post(f"{API}/memory/retrieve", json=ASKED), 200)
    assert found["took_ms"] > 0
    (item,) = found["items"]
    assert item["score"] > 0
    assert item["sources"] == [{"window_id": "2026-03-01T10:00", "trajectory_id": "trajectory-1", "verdict": ""}]

    before = {**ASKED, "as_of": MONDAY.replace(day=1).isoformat()}
    assert (await said(await client.post(f"{API}/memory/retrieve", json=before), 200))["items"] == []


async def test_an_agents_key_is_for_its_own_lessons(console: Opened) -> None:
    async with await ingest_client(console, "agent", "agent-1") as agent, console.client(READ) as reader:
        await said(await agent.post(f"{API}/memory/store", json=BODY), 201)
        other = {**BODY, "agent_id": "agent-2"}
        assert "agent-1" in (await said(await agent.post(f"{API}/memory/store", json=other), 403))["error"]["message"]
        await said(await agent.post(f"{API}/memory/retrieve", json={**ASKED, "agent_id": "agent-2"}), 403)
        await said(await agent.post(f"{API}/memory/retrieve", json=ASKED), 200)
        await said(await agent.post(f"{API}/memory/consolidate", json={}), 401)
        await said(await reader.post(f"{API}/memory/store", json=BODY), 403)
        await said(await reader.post(f"{API}/memory/retrieve", json=ASKED), 200)


@pytest.mark.parametrize(
    "wrong",
    [{"content": "x" * 2001}, {"content": "  "}, {"memory_type": "dream"}, {"trust": "verdict"}, {"content": "a\x00b"}],
)
async def test_a_wrong_lesson_is_refused_with_its_field(client: httpx.AsyncClient, wrong: dict[str, str]) -> None:
    problem = await said(await client.post(f"{API}/memory/store", json={**BODY, **wrong}), 422)
    assert problem["error"]["field"] == next(iter(wrong))


async def test_consolidation_is_counted_told_and_noted(
    client: httpx.AsyncClient, lessons: Lessons, database: Database
) -> None:
    texts = [f"Orders at $A{n} surge, buy {n} at once." for n in range(3)]
    await lessons.store([new_lesson(text, scope=SCOPE, sources=(source(n),)) for n, text in enumerate(texts)])
    done = await said(await client.post(f"{API}/memory/consolidate", json={}), 202)
    assert (done["merged"], done["rules"], len(done["deeds"])) == (3, 1, 1)
    again = await said(await client.post(f"{API}/memory/consolidate", json={}), 202)
    assert (again["merged"], again["rules"], again["deeds"]) == (0, 0, [])
    noted = await database.pool.fetchval("SELECT count(*) FROM hindsight.audit WHERE deed = 'consolidate lessons'")
    assert noted == 2


async def test_the_page_searches_escapes_and_retires_with_a_reason(
    client: httpx.AsyncClient, lessons: Lessons, database: Database
) -> None:
    (stored, _) = await lessons.store(
        [
            new_lesson("strike <script>alert(1)</script> means sell", scope=SCOPE, sources=(source(1),)),
            new_lesson("flood means buy", scope=SCOPE),
        ]
    )
    page = await client.get("/lessons", params={"q": "strikes"})
    assert page.status_code == 200
    assert "&lt;script&gt;" in page.text
    assert "<script>alert" not in page.text
    assert "flood means buy" not in page.text
    assert "trajectory-1" in page.text

    form = {"lesson": stored.lesson_id, "reason": "it was luck"}
    own = {"origin": str(client.base_url).rstrip("/")}
    assert (await client.post("/lessons/retire", data={**form, "reason": ""}, headers=own)).status_code == 422
    assert (await client.post("/lessons/retire", data=form, headers=own)).status_code == 303
    assert (await client.post("/lessons/retire", data=form, headers=own)).status_code == 404
    assert "it was luck" in (await client.get("/lessons", params={"state": "retired"})).text
    noted = await database.pool.fetchrow("SELECT deed, reason, outcome FROM hindsight.audit ORDER BY audit_id LIMIT 1")
    assert noted is not None
    assert tuple(noted) == ("retire a lesson", "it was luck", "done")


async def test_a_forgotten_agent_takes_its_lessons_along(
    client: httpx.AsyncClient, lessons: Lessons, database: Database
) -> None:
    other = source(2, agent="agent-2")
    await lessons.store(
        [
            new_lesson("only of agent-1's hour", scope=SCOPE, sources=(source(1),)),
            new_lesson("of both", scope=SCOPE, sources=(source(1), other)),
            new_lesson("its own", scope=Scope("game", None, "agent-1")),
            new_lesson("of another", scope=SCOPE, sources=(other,)),
        ]
    )
    found = await said(await client.delete(f"{API}/agents/agent-1"), 200)
    assert found["rows"]["lessons"] == 2
    left = await database.pool.fetch("SELECT content, support FROM hindsight.lessons ORDER BY content")
    assert [tuple(row) for row in left] == [("of another", 1), ("of both", 1)]
    assert await database.pool.fetchval("SELECT count(*) FROM hindsight.lesson_sources WHERE agent_id = 'agent-1'") == 0


async def test_the_certificates_injections_are_stored_as_quoted_words(
    client: httpx.AsyncClient, database: Database
) -> None:
    for attack in ATTACKS:
        await said(await client.post(f"{API}/memory/store", json={**BODY, "content": attack.text}), 201)
    rows = await database.pool.fetch("SELECT title, content, gated_at, trust FROM hindsight.lessons")
    assert len(rows) == len(ATTACKS)
    for row in rows:
        assert (row["trust"], row["gated_at"]) == ("api", None)
        assert row["content"].startswith('"')
        assert row["content"].endswith('"')
        assert not set(row["content"]) & set("<>`{}|\n\u200b\u202e")
