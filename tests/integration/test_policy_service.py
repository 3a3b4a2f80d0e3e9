"""The prompt policy over HTTP and in the ledger: nothing is lost, used twice or mixed; wrong input is refused."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from data_bridge.database import Database
from tests.builders_console import FULL, READ, door_of
from tests.builders_lessons import WordEmbedder
from tests.integration.test_lessons_judged import MARKET, WINDOWS
from trainer.config.prompts import ConsolePrompts, PolicySettings
from trainer.console.policy_app import PolicyServices, make_policy_app
from trainer.console.policy_bodies import ACTIONS, DIMENSIONS
from trainer.prompts.experience import MUTATIONS
from trainer.prompts.market import market_material
from trainer.prompts.mutations import applicable
from trainer.prompts.structure import parse
from trainer.run.policy_desk import PolicyDesk
from trainer.world.agents import scripted_cast
from trainer.world.play import play_windows

ROOT = Path(__file__).parents[2]
EMBEDDING = [0.01 * (place % 7) for place in range(DIMENSIONS)]
BUFFER = 16


def quick(**values: Any) -> PolicySettings:
    """A policy that learns in a moment."""
    return PolicySettings(policy_hidden=(8,), policy_epochs=1, policy_buffer=BUFFER, **values)


@asynccontextmanager
async def served(database: Database, home: Path) -> AsyncIterator[tuple[PolicyDesk, httpx.AsyncClient]]:
    desk = PolicyDesk(database, quick(), ConsolePrompts(), WordEmbedder, model="hindsight")
    app = make_policy_app(PolicyServices(database, desk), door_of(home))
    transport = httpx.ASGITransport(app)
    headers = {"authorization": f"Bearer {FULL}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as client:
        try:
            yield desk, client
        finally:
            await desk.close()


def experience(version: int, name: str | None = None, **values: Any) -> dict[str, Any]:
    return {"embedding": EMBEDDING, "action": 3, "reward": 0.5, "version": version, "experience_id": name} | values


def test_the_actions_of_the_api_are_those_of_the_policy() -> None:
    assert ACTIONS == MUTATIONS
    assert PolicySettings().policy_input == DIMENSIONS


async def test_wrong_input_is_refused_with_a_sentence(database: Database, tmp_path: Path) -> None:
    async with served(database, tmp_path) as (_, client):
        (await client.post("/store_experience", json=experience(1))).raise_for_status()

        async def refused(path: str, body: Any) -> tuple[int, str]:
            raw = json.dumps(body)  # as Python writes it: NaN is NaN
            answer = await client.post(path, content=raw, headers={"content-type": "application/json"})
            said = answer.json()["error"]
            assert said["message"].endswith(".")
            return answer.status_code, said["field"] or ""

        for path in ("/select_action", "/get_distribution"):
            assert await refused(path, {"embedding": EMBEDDING[:-1]}) == (422, "embedding")
            for broken in (float("nan"), float("inf"), "0.1", True, None, [0.1], 1e7):
                assert await refused(path, {"embedding": [broken, *EMBEDDING[1:]]}) == (422, "embedding.0")
            assert await refused(path, {"embedding": EMBEDDING, "prompt": "both"}) == (422, "embedding")
            assert await refused(path, {"prompt": ""}) == (422, "prompt")
            assert await refused(path, {"prompt": "x" * 100_001}) == (422, "prompt")
            assert await refused(path, {"embedding": EMBEDDING, "action_mask": [False] * 6}) == (422, "action_mask.0")
            nothing: list[Any] = [{}, [], None, 5, {"action_mask": [True] * 6}]
            for body in nothing:
                assert await refused(path, body) == (422, "")
        assert await refused("/store_experience", experience(2)) == (404, "version")
        assert await refused("/store_experience", experience(1, action=6)) == (422, "action")
        no_expansion = [True, True, True, False, True, True]
        assert await refused("/store_experience", experience(1, action_mask=no_expansion)) == (409, "action")
        for broken in (float("nan"), float("inf"), "0.5", True, 1e7):
            assert await refused("/store_experience", experience(1, reward=broken)) == (422, "reward")
        await client.post("/store_experience", json=experience(1, "one"))
        assert await refused("/store_experience", experience(1, "one", reward=0.4)) == (409, "experience_id")
        assert await refused("/load", {"name": "never"}) == (404, "name")
        for path in ("/save", "/load"):
            for name in ("../etc/passwd", "a/b", ".hidden", "-rf", "", "x" * 65, "a\n", None, 5):
                assert await refused(path, {"name": name}) == (422, "name")
        only_looks = {"authorization": f"Bearer {READ}"}
        assert (await client.post("/update", json={}, headers=only_looks)).status_code == 403
        assert (await client.get("/stats", headers={"authorization": ""})).status_code == 401
        assert (await client.get("/stats", headers={"host": "elsewhere.example"})).status_code == 421
        assert (await client.get("/health", headers={"authorization": ""})).json() == {"status": "ok"}
        assert (await client.get("/nothing")).json()["error"]["code"] == "not_found"


async def test_a_prompt_by_its_text_may_get_whatever_the_games_operators_could_make_of_it(
    database: Database, tmp_path: Path
) -> None:
    await play_windows(database, tmp_path / "spool", MARKET, scripted_cast(1, 7), WINDOWS[:1])
    async with served(database, tmp_path) as (_, client):
        asked = {"prompt": "You trade.\n"}
        found = (await client.post("/get_distribution", json=asked)).json()
        expected = applicable(parse(asked["prompt"]), market_material(), ConsolePrompts())
        assert found["action_mask"] == list(expected)
        assert found["probabilities"][ACTIONS.index("expansion")] > 0, "the market offers worked examples"
        only_keep = [True, *[False] * 5]
        told = (await client.post("/select_action", json=asked | {"action_mask": only_keep})).json()
        assert (told["name"], told["action_mask"]) == ("keep", only_keep), "the client knows better what it can do"


async def test_32_clients_lose_no_experience_and_no_update_mixes_two_versions(
    database: Database, tmp_path: Path
) -> None:
    async with served(database, tmp_path) as (_, client):
        sent = 0

        async def plays(number: int) -> None:
            nonlocal sent
            for step in range(6):
                selected = (await client.post("/select_action", json={"embedding": EMBEDDING})).json()
                body = experience(selected["version"], f"{number}/{step}", action=selected["action"])
                answer = await client.post("/store_experience", json=body)
                assert answer.status_code == 201, answer.text
                sent += 1
                again = await client.post("/store_experience", json=body)
                assert (again.status_code, again.json()["stored"]) == (200, False)
                if answer.json()["needed"] == 0:
                    updated = await client.post("/update", json={})
                    assert updated.status_code in (200, 202), updated.text

        await asyncio.gather(*(plays(number) for number in range(32)))
        stats = (await client.get("/stats")).json()
    counted = stats["experience"]
    assert counted["received"] == sent == 32 * 6
    assert counted["received"] == counted["trained"] + counted["waiting"] + counted["stale"]
    assert stats["updates"] >= 2
    rows = await database.pool.fetch(
        "SELECT c.version, (c.losses ->> 'experience')::int AS used, count(*) AS marked, count(DISTINCT e.version) AS"
        " versions FROM hindsight.policy_checkpoints c JOIN hindsight.policy_experience e ON e.trained_in = c.version"
        " GROUP BY 1, 2"
    )
    assert len(rows) == stats["updates"]
    assert all(row["versions"] == 1 and row["used"] == row["marked"] >= BUFFER for row in rows)
    assert sum(row["marked"] for row in rows) == counted["trained"]


async def test_a_saved_policy_is_gone_on_from_by_another_process(database: Database, tmp_path: Path) -> None:
    async with served(database, tmp_path) as (_, client), served(database, tmp_path) as (_, other):
        state = {"embedding": EMBEDDING}
        before = (await client.post("/get_distribution", json=state)).json()
        assert (await client.post("/save", json={"name": "first"})).status_code == 201
        assert (await client.post("/save", json={"name": "first"})).status_code == 200
        for number in range(BUFFER):
            await client.post("/store_experience", json=experience(1, str(number), reward=number % 2))
        assert (await client.post("/update", json={"wait": True})).json()["state"] == "updated"
        assert (await client.post("/update", json={})).status_code == 202, "the buffer is empty again"
        assert (await client.post("/save", json={"name": "first"})).status_code == 409
        learnt = (await client.post("/get_distribution", json=state)).json()
        assert learnt["probabilities"] != before["probabilities"]
        assert (await other.get("/stats")).json()["version"] == 2
        loaded = (await other.post("/load", json={"name": "first"})).json()
        assert (loaded["from_version"], loaded["version"]) == (1, 3)
        again = (await other.post("/get_distribution", json=state)).json()
        assert (again["probabilities"], again["version"]) == (before["probabilities"], 3)


@pytest.mark.parametrize("where", ["learning", "committing", "committed"])
async def test_killed_in_an_update_the_last_good_checkpoint_stays(
    database: Database, database_url: str, tmp_path: Path, where: str
) -> None:
    command = [sys.executable, "-m", "tests.fakes.dying_policy", database_url, str(tmp_path), where]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT)
    assert await process.wait() == -9
    desk = PolicyDesk(database, quick(), ConsolePrompts(), WordEmbedder, model="hindsight")
    try:
        found = await desk.counts()
        is_done = where == "committed"
        assert (found.version, found.trained, found.waiting) == ((2, BUFFER, 0) if is_done else (1, 0, BUFFER))
        after = await desk.update(wait=True)
        assert after.state == ("filling" if is_done else "updated"), "and it goes on"
        assert (await desk.counts()).trained == BUFFER, "once"
    finally:
        await desk.close()
