"""The calls of the API one by one: what comes in, what goes out, and what is refused with which word."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from data_bridge.database import Database
from data_bridge.window_ids import window_of
from tests.builders import insert_window
from tests.builders_console import READ, Opened, opened_console
from tests.builders_promotion import insert_checkpoint
from tests.builders_report_run import RUN, record_run
from trainer.ledger.model_lock import hold

API = "/api/v1"


@pytest.fixture
async def console(database: Database, tmp_path: Path) -> AsyncIterator[Opened]:
    async with opened_console(database, tmp_path) as opened:
        yield opened


@pytest.fixture
async def client(console: Opened) -> AsyncIterator[httpx.AsyncClient]:
    async with console.client() as made:
        yield made


async def said(answer: httpx.Response, status: int) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json()


# Trainings


async def test_a_start_waits_for_a_host_with_what_was_asked_for(client: httpx.AsyncClient, database: Database) -> None:
    body = {
        "batch_size": 4,
        "learning_rate": 0.001,
        "num_epochs": 2,
        "max_cost": 5,
        "settings": {"windows": {"lookback": "14d"}, "judge": {"purposes": ["action"]}},
    }
    started = await said(await client.post(f"{API}/training/start", json=body), 202)
    assert (started["model"], started["state"]) == ("hindsight", "waiting")
    stored = json.loads(await database.pool.fetchval("SELECT settings FROM hindsight.commands"))
    assert stored == {
        "training": {"groups_per_step": 4, "learning_rate": 0.001},
        "run": {"iterations": 2},
        "judge": {"max_cost": 5.0, "purposes": ["action"]},
        "windows": {"lookback": "14d"},
    }
    run = await said(await client.get(f"{API}/runs/{started['run_id']}"), 200)
    assert (run["state"], run["steps"]) == ("requested", 0)
    status = await said(await client.get(f"{API}/training/status"), 200)
    assert (status["state"], status["run_id"]) == ("waiting", started["run_id"])


async def test_two_starts_with_one_key_are_one_run_and_another_request_with_it_is_refused(
    client: httpx.AsyncClient, database: Database
) -> None:
    headers = {"idempotency-key": "monday"}
    answers = await asyncio.gather(
        *(client.post(f"{API}/training/start", json={"batch_size": 3}, headers=headers) for _ in range(5))
    )
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["run_id"] for answer in answers}) == 1
    assert await database.pool.fetchval("SELECT count(*) FROM hindsight.commands") == 1
    other = await said(await client.post(f"{API}/training/start", json={}, headers=headers), 422)
    assert other["error"]["field"] == "Idempotency-Key"


async def test_a_start_of_a_model_that_is_held_names_who_holds_it(
    client: httpx.AsyncClient, database: Database
) -> None:
    async with hold(database, "hindsight"):
        refused = await said(await client.post(f"{API}/training/start", json={}), 409)
        assert "is being trained by" in refused["error"]["message"]
        assert (await said(await client.get(f"{API}/training/status"), 200))["state"] == "training"
    await said(await client.post(f"{API}/training/start", json={}), 202)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"settings": {"judge": {"judge_base_url": "http://evil.example"}}}, "settings.judge.judge_base_url"),
        ({"settings": {"common": {"home": "/tmp"}}}, "settings.common"),
        ({"settings": {"secrets": {"judge_api_key": "x"}}}, "settings.secrets"),
        ({"settings": {"run": {"dry_run": True}}}, "settings.run.dry_run"),
        ({"settings": {"judge": {"rubric": "../../secret"}}}, "settings.judge.rubric"),
        ({"settings": {"windows": {"lookback": "a while"}}}, "settings.windows.lookback"),
        ({"settings": {"training": {"groups_per_step": 0}}}, "settings.training.groups_per_step"),
        ({"batch_size": 4, "settings": {"training": {"groups_per_step": 5}}}, "batch_size"),
        ({"model": "../x"}, "model"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
async def test_what_a_start_may_not_set_is_refused_by_name(
    client: httpx.AsyncClient, database: Database, body: dict[str, Any], field: str
) -> None:
    refused = await said(await client.post(f"{API}/training/start", json=body), 422)
    assert refused["error"]["field"] == field
    assert await database.pool.fetchval("SELECT count(*) FROM hindsight.commands") == 0


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [("{", "application/json", 400), ("{}", "text/plain", 415), ("[]", "application/json", 422)],
)
async def test_a_body_that_is_no_json_object_is_refused(
    client: httpx.AsyncClient, content: str, kind: str, status: int
) -> None:
    answer = await client.post(f"{API}/training/start", content=content, headers={"content-type": kind})
    assert "message" in (await said(answer, status))["error"]


async def test_a_body_that_is_too_large_is_not_read_to_its_end(client: httpx.AsyncClient) -> None:
    content = b'{"model": "' + b"x" * 20_000_000 + b'"}'
    answer = await client.post(f"{API}/training/start", content=content, headers={"content-type": "application/json"})
    await said(answer, 413)


async def test_a_wrong_method_is_told_the_right_ones(client: httpx.AsyncClient) -> None:
    answer = await client.put(f"{API}/training/status")
    assert (answer.status_code, "GET" in answer.headers["allow"]) == (405, True)
    assert answer.json()["error"]["code"] == "wrong_method"


# Looking


async def test_what_a_run_shows_is_what_the_ledger_has(
    client: httpx.AsyncClient, database: Database, tmp_path: Path
) -> None:
    await record_run(database, tmp_path)
    run = await said(await client.get(f"{API}/runs/{RUN}"), 200)
    spent = await database.pool.fetchval("SELECT sum(cost_usd) FROM hindsight.judge_calls WHERE run_id = $1", RUN)
    assert (run["state"], run["steps"], run["trajectories"], run["cost_usd"]) == ("done", 2, 9, spent)
    metrics = await said(await client.get(f"{API}/runs/{RUN}/metrics"), 200)
    assert [(one["step"], one["reward"]) for one in metrics["steps"]] == [(1, 0.5), (2, pytest.approx(0.6))]
    later = await said(await client.get(f"{API}/runs/{RUN}/metrics", params={"after": 1}), 200)
    assert [one["step"] for one in later["steps"]] == [2]
    await said(await client.get(f"{API}/runs/nothing/metrics"), 404)


async def test_lists_come_in_pages_that_neither_lose_nor_repeat(
    client: httpx.AsyncClient, database: Database, tmp_path: Path
) -> None:
    await record_run(database, tmp_path)
    for path, key in (("/windows", "window_id"), ("/rewards/history", "trajectory_id")):
        whole = await said(await client.get(f"{API}{path}", params={"limit": 200}), 200)
        seen, cursor = list[str](), None
        while True:
            page = await said(
                await client.get(f"{API}{path}", params={"limit": 2} | ({"cursor": cursor} if cursor else {})), 200
            )
            seen += [one[key] for one in page["entries"]]
            cursor = page["next"]
            if cursor is None:
                break
        assert seen == [one[key] for one in whole["entries"]]
        assert len(seen) == len(set(seen)) > 3
    for number in range(5):
        await insert_checkpoint(database, number + 10, run_id=f"later-{number}", model=f"m{number}")
    first = await said(await client.get(f"{API}/runs", params={"limit": 4}), 200)
    second = await said(await client.get(f"{API}/runs", params={"limit": 4, "cursor": first["next"]}), 200)
    assert len({one["run_id"] for one in (*first["entries"], *second["entries"])}) == 6
    assert second["next"] is None


async def test_prometheus_gets_what_the_ledger_has(
    client: httpx.AsyncClient, console: Opened, database: Database, tmp_path: Path
) -> None:
    await record_run(database, tmp_path)
    answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.text.splitlines()
    assert (await client.get(f"{API}/metrics")).text.splitlines()[:20] == lines[:20]
    assert 'hindsight_step{model="hindsight"} 2' in lines
    assert 'hindsight_reward{model="hindsight"} 0.6' in lines
    assert "hindsight_system_leases 0" in lines
    async with console.client(key=None) as anybody:
        assert (await anybody.get("/metrics")).status_code == 401


# Releases


async def test_a_release_is_promoted_tried_and_rolled_back_each_with_its_reason(
    client: httpx.AsyncClient, database: Database, tmp_path: Path
) -> None:
    await record_run(database, tmp_path)
    listed = await said(await client.get(f"{API}/releases"), 200)
    assert listed["serving"] == "hindsight@step2"
    gains = {one["name"]: one["gain"] for one in listed["entries"]}
    assert gains == {"hindsight@step2": pytest.approx(0.3), "hindsight@step1": None}

    await said(await client.post(f"{API}/releases/1/promote", json={}), 422)
    refused = await said(await client.post(f"{API}/releases/1/promote", json={"reason": "I like it"}), 409)
    assert "has not been compared" in refused["error"]["message"]
    done = await said(await client.post(f"{API}/releases/1/promote", json={"reason": "I do", "force": True}), 200)
    assert done == {"release": "hindsight@step1", "state": "serving", "reason": "I do", "forced": True}
    back = await said(await client.post(f"{API}/releases/0/rollback", json={"reason": "it lost"}), 200)
    assert back["release"] == "hindsight@step0"
    nothing = {"action": "finish", "reason": "see"}
    assert (
        "No canary"
        in (await said(await client.post(f"{API}/releases/1/canary", json=nothing), 409))["error"]["message"]
    )
    log = await said(await client.get(f"{API}/audit"), 200)
    deeds = [(one["deed"], one["reason"], one["outcome"].split(":")[0]) for one in reversed(log["entries"])]
    assert deeds == [
        ("promote", "I like it", "refused (409)"),
        ("promote by force", "I do", "done"),
        ("roll back", "it lost", "done"),
        ("finish canary", "see", "refused (409)"),
    ]
    forced = await database.pool.fetchval("SELECT reason FROM hindsight.promotions WHERE forced")
    assert forced == "I do"


async def test_a_canary_is_started_and_taken_back(
    client: httpx.AsyncClient, database: Database, tmp_path: Path
) -> None:
    await insert_checkpoint(database, 1, backend="cpu", location=tmp_path)
    await insert_window(database.pool, window_of(datetime.now(UTC) - timedelta(hours=3)), agents=6)
    start = {"reason": "try it", "force": True, "share": 0.3}
    tried = await said(await client.post(f"{API}/releases/1/canary", json=start), 200)
    assert tried["state"] == "canary"
    ended = await said(await client.post(f"{API}/releases/1/canary", json={"action": "end", "reason": "no"}), 200)
    assert (ended["state"], ended["reason"]) == ("rolled_back", "no")


# Ingest


def sent(name: str, **changes: Any) -> dict[str, Any]:
    now = datetime.now(UTC)
    call = {"model": "m", "systemPrompt": "s", "userPrompt": "u", "response": "BUY", "purpose": "action"}
    steps = [{"stepNumber": 0, "timestamp": 1, "environmentState": {}, "llmCalls": [call], "providerAccesses": []}]
    action = {"actionType": "BUY", "parameters": {}, "success": True}
    moment = {"startTime": now.isoformat(), "endTime": now.isoformat()}
    return {"trajectoryId": name, **moment, "stepsJson": json.dumps([steps[0] | {"action": action}])} | changes


async def ingest_client(console: Opened, kind: str, owner: str) -> httpx.AsyncClient:
    async with console.client() as client:
        made = await said(await client.post(f"{API}/ingest/keys", json={"kind": kind, "owner": owner}), 201)
    return console.client(key=made["key"])


async def test_an_agents_rows_are_stamped_with_its_name_and_their_hour_and_stored_once(
    console: Opened, database: Database
) -> None:
    async with await ingest_client(console, "agent", "agent-7") as agent:
        rows = [sent("t-1"), sent("t-2", agentId="agent-7"), sent("t-3", agentId="somebody-else")]
        old = datetime.now(UTC) - timedelta(hours=5)
        rows += [sent("t-4", startTime=old.isoformat()), sent("t-5", stepsJson="not json"), sent("t-6", stepsJson="[]")]
        ahead = (datetime.now(UTC) + timedelta(hours=2)).isoformat()
        rows += [sent("t-7", startTime=ahead, endTime=ahead), sent("t-8", metadataJson="[")]
        for round_, first in enumerate(("stored", "known")):
            answer = await said(await agent.post(f"{API}/ingest/trajectories", json={"trajectories": rows}), 200)
            states = [one["state"] for one in answer["results"]]
            assert states == [first, first] + ["refused"] * 6, round_
        reasons = [one["reason"] for one in answer["results"]]
        for word, reason in zip(
            ("writes for", "is closed", "stepsJson", "stepsJson", "future", "metadataJson"), reasons[2:], strict=True
        ):
            assert word in reason
    stored = await database.pool.fetch('SELECT "agentId", "windowId", "isEvaluation" FROM trajectories')
    assert {tuple(row) for row in stored} == {("agent-7", window_of(datetime.now(UTC)), False)}
    assert len(stored) == 2


async def test_a_row_that_is_known_stays_known_when_its_hour_is_over(console: Opened) -> None:
    """A recorder that was killed before it heard of its success sends again when it comes back, whenever that is."""
    old = (datetime.now(UTC) - timedelta(hours=5)).isoformat()
    async with await ingest_client(console, "agent", "agent-7") as agent:
        for row, state in ((sent("t-1"), "stored"), (sent("t-1", startTime=old), "known")):
            answer = await said(await agent.post(f"{API}/ingest/trajectories", json={"trajectories": [row]}), 200)
            assert [(one["state"], one["reason"]) for one in answer["results"]] == [(state, "")]


async def test_what_the_games_recorder_counts_is_counted_from_the_steps(console: Opened, database: Database) -> None:
    actions = [("buy", True), ("CREATE_POST", True), ("SELL", False), ("pending", False)]
    steps = [
        {"stepNumber": number, "llmCalls": [], "action": {"actionType": kind, "parameters": {}, "success": success}}
        for number, (kind, success) in enumerate(actions)
    ]
    row = sent("t-1", stepsJson=json.dumps(steps), finalPnL=3, totalReward=0.5, isTrainingData=False, isEvaluation=True)
    async with await ingest_client(console, "agent", "agent-7") as agent:
        await said(await agent.post(f"{API}/ingest/trajectories", json={"trajectories": [row]}), 200)
    stored = await database.pool.fetchrow("SELECT * FROM trajectories")
    assert stored is not None
    assert (stored["tradesExecuted"], stored["postsCreated"], stored["finalStatus"]) == (2, 1, "completed_with_errors")
    assert (stored["isTrainingData"], stored["isEvaluation"], stored["episodeLength"]) == (False, True, 4)
    assert stored["episodeId"].startswith(f"{stored['windowId']}-")
    assert json.loads(stored["rewardComponentsJson"]) == {"environmentReward": 0.5}
    assert json.loads(stored["metricsJson"]) == {
        "episodeLength": 4,
        "finalStatus": "completed_with_errors",
        "finalPnL": 3.0,
        "tradesExecuted": 2,
        "postsCreated": 1,
        "errorCount": 2,
    }


async def test_nobody_takes_over_anothers_trajectory_or_name(console: Opened, database: Database) -> None:
    async with await ingest_client(console, "agent", "agent-1") as one:
        await one.post(f"{API}/ingest/trajectories", json={"trajectories": [sent("t-1", totalReward=1)]})
    async with await ingest_client(console, "agent", "agent-2") as other:
        answer = await other.post(f"{API}/ingest/trajectories", json={"trajectories": [sent("t-1", totalReward=2)]})
        [result] = (await said(answer, 200))["results"]
        assert (result["state"], "belongs to another" in result["reason"]) == ("refused", True)
    async with await ingest_client(console, "team", "reds") as team:
        rows = [sent("t-2", agentId="agent-1"), sent("t-3", agentId="reds/ann"), sent("t-4")]
        answer = await said(await team.post(f"{API}/ingest/trajectories", json={"trajectories": rows}), 200)
        assert [one["agent_id"] for one in answer["results"]] == ["reds/agent-1", "reds/ann", ""]
    found = await database.pool.fetch('SELECT "agentId", "totalReward" FROM trajectories ORDER BY "trajectoryId"')
    assert [tuple(row) for row in found] == [("agent-1", 1.0), ("reds/agent-1", 0.0), ("reds/ann", 0.0)]


async def test_only_the_game_says_what_happened(console: Opened, database: Database) -> None:
    window = window_of(datetime.now(UTC) - timedelta(hours=2))
    facts = {"windowId": window, "stocks": [{"ticker": "ACME", "startPrice": 10, "endPrice": 11}]}
    async with await ingest_client(console, "agent", "agent-1") as agent:
        await said(await agent.post(f"{API}/ingest/facts", json=facts), 403)
        await said(await agent.get(f"{API}/training/status"), 401)
        await said(await agent.post(f"{API}/training/start", json={}), 401)
    async with await ingest_client(console, "game", "the-game") as game:
        assert (await said(await game.post(f"{API}/ingest/facts", json=facts), 200))["written"] == 1
        assert (await said(await game.post(f"{API}/ingest/facts", json=facts), 200))["written"] == 0
        early = facts | {"windowId": window_of(datetime.now(UTC))}
        assert (
            "has not ended" in (await said(await game.post(f"{API}/ingest/facts", json=early), 409))["error"]["message"]
        )
        await said(await game.post(f"{API}/ingest/trajectories", json={"trajectories": [sent("t-1")]}), 403)
    change = await database.pool.fetchval('SELECT "changePercent" FROM market_outcomes')
    assert float(change) == 10.0


async def test_a_revoked_key_ends_at_once(console: Opened) -> None:
    async with await ingest_client(console, "agent", "agent-1") as agent, console.client() as client:
        body = {"trajectories": [sent("t-1")]}
        await said(await agent.post(f"{API}/ingest/trajectories", json=body), 200)
        [key] = (await said(await client.get(f"{API}/ingest/keys"), 200))["entries"]
        await said(await client.delete(f"{API}/ingest/keys/{key['key_id']}"), 200)
        await said(await agent.post(f"{API}/ingest/trajectories", json=body), 401)
        await said(await client.delete(f"{API}/ingest/keys/ffff"), 404)
        async with console.client(READ) as reader:
            assert "key" not in (await said(await reader.get(f"{API}/ingest/keys"), 200))["entries"][0]
