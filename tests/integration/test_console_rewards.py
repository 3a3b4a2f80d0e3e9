"""Rewards through the console: their history by agent and role, the share of luck, one on demand, and forgetting."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from data_bridge.database import Database
from data_bridge.window_ids import start_of, window_of
from tests.builders import insert_window
from tests.builders_console import FULL, Opened, opened_console
from tests.builders_report_run import RUN, record_run
from tests.fakes.judge_server import JudgeServer
from trainer.console.upkeep import forget_here
from trainer.ledger.evaluations import latest_evaluation
from trainer.ledger.read.reward_history import agent_share, reward_board
from trainer.ledger.run_folder import RunFolder

API = "/api/v1"


@pytest.fixture
async def console(database: Database, tmp_path: Path) -> AsyncIterator[Opened]:
    async with opened_console(database, tmp_path) as opened:
        yield opened


@pytest.fixture
async def client(console: Opened) -> AsyncIterator[httpx.AsyncClient]:
    async with console.client(timeout=60) as made:
        yield made


async def said(answer: httpx.Response, status: int) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json()


# The history


async def give_roles(database: Database) -> None:
    await database.pool.execute(
        "UPDATE hindsight.batch_trajectories SET role = CASE agent_id WHEN 'agent-1' THEN 'scout' ELSE 'trader' END"
    )


async def test_rewards_are_found_by_agent_and_by_role(
    client: httpx.AsyncClient, database: Database, tmp_path: Path
) -> None:
    await record_run(database, tmp_path)
    await give_roles(database)

    async def scores(**query: Any) -> list[tuple[str, str | None, float]]:
        entries = (await said(await client.get(f"{API}/rewards/history", params=query), 200))["entries"]
        return [(one["agent_id"], one["role"], one["score"]) for one in entries]

    assert await scores(agent_id="agent-2") == [("agent-2", "trader", 0.5)] * 3
    assert await scores(role="scout") == [("agent-1", "scout", 0.2)] * 3
    assert await scores(role="scout", agent_id="agent-2") == []
    assert await scores(role="wizard") == []
    first = await said(await client.get(f"{API}/rewards/history", params={"role": "trader", "limit": 4}), 200)
    query = {"role": "trader", "limit": 4, "cursor": first["next"]}
    second = await said(await client.get(f"{API}/rewards/history", params=query), 200)
    assert (len(first["entries"]), len(second["entries"]), second["next"]) == (4, 2, None), "pages are full"


async def test_the_page_shows_rewards_by_role_and_only_those_asked_for(
    client: httpx.AsyncClient, database: Database, tmp_path: Path
) -> None:
    await record_run(database, tmp_path)
    await give_roles(database)
    board = await reward_board(database, "hindsight")
    assert [(one.role, one.agents, one.rewards, round(one.mean, 3)) for one in board.roles] == [
        ("trader", 2, 6, 0.65),
        ("scout", 1, 3, 0.2),
    ]
    whole = (await client.get("/rewards")).text
    assert "By role" in whole
    assert "role=scout" in whole
    scouts = (await client.get("/rewards", params={"role": "scout"})).text
    latest = scouts.partition('id="latest"')[2]
    assert latest.count("agent-1") == 3
    assert "agent-2" not in latest
    assert "<option selected>scout</option>" in scouts
    nothing = (await client.get("/rewards", params={"role": "<script>alert(1)</script>"})).text
    assert "No reward is like that." in nothing
    assert "<script>alert" not in nothing


async def test_a_trajectory_with_credit_for_each_decision_is_one_entry(
    client: httpx.AsyncClient, database: Database, tmp_path: Path
) -> None:
    recorded = await record_run(database, tmp_path)
    for number, advantage in enumerate((0.25, 0.75)):
        await database.pool.execute(
            "INSERT INTO hindsight.rewards (batch_id, number, place, group_id, trajectory_id, score, uncertainty,"
            " validity, decision, weight, shaped, credit, advantage, step)"
            " VALUES ('batch-1', $1, 0, 'g', $2, 0.5, 0, 0, 0, 1, 0, 0, $3, $4)",
            *(number, recorded.trajectory_ids[0], advantage, number),
        )
    found = (await said(await client.get(f"{API}/rewards/history", params={"limit": 200}), 200))["entries"]
    assert len(found) == 9
    [own] = [one for one in found if one["trajectory_id"] == recorded.trajectory_ids[0]]
    assert {"name": "advantage", "value": 0.5} in own["components"]


async def test_the_share_of_luck_is_that_of_the_two_passes(
    client: httpx.AsyncClient, database: Database, tmp_path: Path
) -> None:
    await record_run(database, tmp_path)
    board = await reward_board(database, "hindsight")
    assert (board.luck_share, board.two_pass_scores) == (None, 0)
    assert "--judge-passes 2" in (await client.get("/rewards")).text
    # In every group the decisions were worth 0.4, 0.5, 0.6 before the outcome, and luck added 0.2, 0, -0.2.
    scores = [
        {
            "content_hash": str(place),
            "trajectory_id": str(place),
            "score": blind,
            "blind": blind,
            "hindsight": blind + luck,
        }
        for place, (blind, luck) in enumerate(((0.4, 0.2), (0.5, 0.0), (0.6, -0.2)))
    ]
    await database.pool.execute(
        "UPDATE hindsight.verdicts SET scores = $1::jsonb WHERE verdict_key LIKE 'key of 2%'", json.dumps(scores)
    )
    board = await reward_board(database, "hindsight")
    assert board.luck_share == pytest.approx(0.08 / (0.08 + 0.02))
    assert board.two_pass_scores == 18
    assert '<dd id="luck">80%</dd>' in (await client.get("/rewards")).text


def test_what_stays_with_the_agent_is_the_variance_between_agents() -> None:
    assert agent_share({"a": [0.2, 0.2], "b": [0.8, 0.8]}) == 1.0
    assert agent_share({"a": [0.2, 0.8], "b": [0.8, 0.2]}) == 0.0
    assert agent_share({"a": [0.2, 0.8], "b": [0.8]}) is None


# On demand


def given_row(window_id: str, steps: str, **changes: Any) -> dict[str, Any]:
    start = start_of(window_id)
    times = {"startTime": start.isoformat(), "endTime": (start + timedelta(minutes=5)).isoformat()}
    return {"trajectoryId": "given-1", "agentId": "newcomer", **times, "stepsJson": steps} | changes


async def test_a_reward_is_calculated_beside_the_others_of_its_window(
    client: httpx.AsyncClient, database: Database
) -> None:
    ids = await insert_window(database.pool, window_of(datetime.now(UTC) - timedelta(hours=3)), agents=4)
    found = await said(await client.post(f"{API}/rewards/calculate", json={"trajectory_id": ids[3]}), 200)
    assert 0 <= found["score"] <= 1
    assert (found["judge"], found["cost"], found["compared_with"]) == ("outcome", 0.0, 3)
    assert {one["name"] for one in found["components"]} == {"group_mean", "above_group_mean", "uncertainty"}
    stored = await database.pool.fetchval("SELECT run_id FROM hindsight.verdicts")
    assert stored.startswith("console-")
    missing = await said(await client.post(f"{API}/rewards/calculate", json={"trajectory_id": "nobody's"}), 409)
    assert "There is no trajectory" in missing["error"]["message"]


async def test_a_row_that_is_given_is_judged_like_a_logged_one_and_not_stored(
    client: httpx.AsyncClient, database: Database
) -> None:
    window_id = window_of(datetime.now(UTC) - timedelta(hours=3))
    ids = await insert_window(database.pool, window_id, agents=4)
    row = await database.pool.fetchrow('SELECT * FROM trajectories WHERE "trajectoryId" = $1', ids[3])
    assert row is not None
    logged = await said(await client.post(f"{API}/rewards/calculate", json={"trajectory_id": ids[3]}), 200)
    same = given_row(window_id, row["stepsJson"], trajectoryId=ids[3], agentId=row["agentId"])
    same |= {"finalPnL": row["finalPnL"], "finalBalance": row["finalBalance"]}
    again = await said(await client.post(f"{API}/rewards/calculate", json={"trajectory": same}), 200)
    assert (again["score"], again["compared_with"]) == (logged["score"], 3), "in the place of its own agent's row"

    stranger = given_row(window_id, row["stepsJson"])
    found = await said(await client.post(f"{API}/rewards/calculate", json={"trajectory": stranger}), 200)
    assert found["compared_with"] == 4
    assert found["score"] == pytest.approx(logged["score"], abs=0.35)
    assert await database.pool.fetchval("SELECT count(*) FROM trajectories") == 4
    noted = await database.pool.fetchval("SELECT target FROM hindsight.audit ORDER BY audit_id DESC LIMIT 1")
    assert noted == "given-1, as given"


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"stepsJson": "{"}, 409, "cannot be read"),
        ({"stepsJson": "[]"}, 409, "cannot be read"),
        ({"stepsJson": '[{"stepNumber": 0}]'}, 409, "no_llm_calls"),
        ({"agentId": None}, 422, "trajectory.agentId: input should be"),
        ({"usedInTraining": True}, 422, "trajectory.usedInTraining: extra inputs"),
    ],
)
async def test_a_row_that_cannot_be_judged_is_refused_with_its_reason(
    client: httpx.AsyncClient, database: Database, changes: dict[str, Any], status: int, words: str
) -> None:
    window_id = window_of(datetime.now(UTC) - timedelta(hours=3))
    await insert_window(database.pool, window_id, agents=4)
    steps = await database.pool.fetchval('SELECT "stepsJson" FROM trajectories LIMIT 1')
    body = {"trajectory": given_row(window_id, steps, **changes)}
    refused = await said(await client.post(f"{API}/rewards/calculate", json=body), status)
    assert words in refused["error"]["message"]


async def test_a_tasks_result_is_judged_alone_and_paid_for_once(database: Database, tmp_path: Path) -> None:
    body = {"task_result": {"task": "Add 2 and 2.", "result": "4"}, "max_cost": 1}
    with JudgeServer() as judge:
        judged: dict[str, Any] = {
            "judge_model": "gpt-test",
            "judge_base_url": judge.base_url,
            "judge_api_key": "sk-of-these-tests",
        }
        async with opened_console(database, tmp_path, price="0.25/2", **judged) as console, console.client() as client:
            first = await said(await client.post(f"{API}/rewards/calculate", json=body), 200)
            again = await said(await client.post(f"{API}/rewards/calculate", json=body), 200)
    assert (first["cached"], again["cached"], again["score"]) == (False, True, first["score"])
    assert first["cost"] > 0
    assert again["cost"] == 0


async def test_a_request_that_names_nothing_to_judge_is_told_what_to_give(client: httpx.AsyncClient) -> None:
    refused = await said(await client.post(f"{API}/rewards/calculate", json={"max_cost": 1}), 422)
    assert refused["error"]["message"] == "The request: give a trajectory_id, a trajectory or a task_result."


# Forgetting


async def test_everything_of_an_agent_is_forgotten_counted_and_noted(
    client: httpx.AsyncClient, database: Database, tmp_path: Path
) -> None:
    recorded = await record_run(database, tmp_path, words="about agent-2:")
    pool = database.pool
    await pool.execute(
        "INSERT INTO hindsight.observed (run_id, trajectory_id, agent_id, window_id, faults)"
        " VALUES ($1, 't', 'agent-2', '2026-11-02T10:00', '[]'), ($1, 'u', 'agent-3', '2026-11-02T10:00', '[]')",
        RUN,
    )
    await pool.execute(
        "UPDATE hindsight.evaluations SET report = jsonb_set(report, '{best,agent_id}', '\"agent-2\"')"
        " WHERE report #>> '{best}' IS NOT NULL"
    )
    found = await said(await client.delete(f"{API}/agents/agent-2"), 200)
    assert found["rows"] == {
        "rewards": 4, "exclusions": 1, "observed": 1, "batches": 3, "verdicts": 6, "evaluations": 1, "canaries": 0,
        "ingest_keys": 0,
        "advice": 0,
        "lessons": 0,
    }  # fmt: skip
    for query in (
        "SELECT count(*) FROM hindsight.batch_trajectories WHERE agent_id = 'agent-2'",
        "SELECT count(*) FROM hindsight.exclusions WHERE agent_id = 'agent-2'",
        "SELECT count(*) FROM hindsight.observed WHERE agent_id = 'agent-2'",
        "SELECT count(*) FROM hindsight.batches WHERE groups::text LIKE '%agent-2\"%'",
        "SELECT count(*) FROM hindsight.verdicts WHERE scores::text LIKE '%about agent-2: 0.5%'",
        "SELECT count(*) FROM hindsight.evaluations WHERE report #>> '{best,agent_id}' = 'agent-2'",
    ):
        assert await pool.fetchval(query) == 0, query
    others = "SELECT count(*) FROM hindsight.batch_trajectories WHERE agent_id IN ('agent-1', 'agent-3')"
    assert await pool.fetchval(others) == 8
    assert await pool.fetchval("SELECT agent_id FROM hindsight.observed") == "agent-3"
    evaluation = await latest_evaluation(database, "hindsight", 2)
    assert evaluation is not None
    assert evaluation.best is None
    assert evaluation.score_difference == recorded.evaluation.score_difference
    assert (await client.get(f"/runs/{RUN}/report")).status_code == 200
    await said(await client.delete(f"{API}/agents/agent-2"), 404)
    noted = await pool.fetch("SELECT deed, target, outcome FROM hindsight.audit ORDER BY audit_id")
    assert tuple(noted[0]) == ("forget an agent", "agent-2", "done")
    assert (await client.get(f"{API}/runs/{RUN}")).status_code == 200
    assert FULL not in str(noted)


async def test_what_was_only_judged_of_an_agent_is_forgotten_too(client: httpx.AsyncClient, database: Database) -> None:
    ids = await insert_window(database.pool, window_of(datetime.now(UTC) - timedelta(hours=3)), agents=4)
    await said(await client.post(f"{API}/rewards/calculate", json={"trajectory_id": ids[0]}), 200)
    agent = await database.pool.fetchval('SELECT "agentId" FROM trajectories WHERE "trajectoryId" = $1', ids[0])
    found = await said(await client.delete(f"{API}/agents/{agent}"), 200)
    assert found["rows"]["verdicts"] == 1
    scores = await database.pool.fetchval("SELECT scores::text FROM hindsight.verdicts")
    assert ids[0] not in scores
    assert ids[1] in scores


def fill_folder(home: Path) -> Path:
    folder = RunFolder(home, RUN)
    lines = [{"agent": agent, "detail": f"{agent} wrote this"} for agent in ("agent-2", "agent-22", "agent-3")]
    folder.append("exclusions.jsonl", lines)
    example = {"agent_id": "agent-2", "observation": "agent-2 saw this"}
    folder.write("evaluation.json", {"best": example, "worst": example | {"agent_id": "agent-3"}, "samples": 4})
    (folder.path / "report.html").write_text("<p>agent-2 saw this</p>")
    (folder.path / "config.json").write_text("{}")
    with (folder.path / "exclusions.jsonl").open("a") as file:
        file.write('{"agent": "agent-2", "det')  # killed in the middle of a line
    return folder.path


async def test_the_folders_of_this_host_and_of_every_other_forget_the_agent(
    client: httpx.AsyncClient, database: Database, tmp_path: Path
) -> None:
    await record_run(database, tmp_path)
    here, elsewhere = fill_folder(tmp_path), fill_folder(tmp_path / "another host")
    found = await said(await client.delete(f"{API}/agents/agent-2"), 200)
    assert found["files"] == 3
    assert await forget_here(database, tmp_path / "another host") == 3
    assert await forget_here(database, tmp_path / "another host") == 0
    for folder in (here, elsewhere):
        lines = (folder / "exclusions.jsonl").read_text().splitlines()
        assert [json.loads(line)["agent"] for line in lines[:2]] == ["agent-22", "agent-3"]
        evaluation = json.loads((folder / "evaluation.json").read_text())
        assert (evaluation["best"], evaluation["worst"]["agent_id"], evaluation["samples"]) == (None, "agent-3", 4)
        assert sorted(one.name for one in folder.iterdir()) == ["config.json", "evaluation.json", "exclusions.jsonl"]
