"""Advice over HTTP with a real ledger: who is shown what, what came of it by whose word, and what is learnt from it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from data_bridge.database import Database
from data_bridge.reader import WindowReader
from data_bridge.window_ids import window_of
from tests.builders import NOW, hours_before, insert_window
from tests.builders_advice import hours
from tests.builders_console import READ, Opened, opened_console
from tests.builders_promotion import insert_checkpoint
from tests.fakes.voting_server import VotingServer
from trainer.cli.calibrate_advice import main as calibrate_advice
from trainer.config.commands import CalibrateSettings
from trainer.config.console import ConsoleCommand
from trainer.config.derived import window_rules
from trainer.config.settings import settings_from
from trainer.ledger.advice import add_labels, newest_calibration
from trainer.ledger.read.advice import advice_board
from trainer.ledger.releases import serving
from trainer.promote.publish import publish
from trainer.run.advice import learn_from_outcomes
from trainer.run.calibrate_advice import calibration_windows
from trainer.statistics.confidence import Label
from trainer.types import Serving

API = "/api/v1"
ASKED = {"agent_id": "agent-1", "observation": "ACME trades at 100. News: orders are up."}
RELEASE = "hindsight@step1"


async def promote(database: Database, home: Path, url: str) -> None:
    point = await insert_checkpoint(database, 1, windows=hours_before(NOW - timedelta(days=20), number=2))
    await publish(database, home, point.as_release(), Serving(url, RELEASE), reason="for a test", forced=True)


async def calibrate(database: Database, *, luck: float = 0.2) -> None:
    """As if the release had been asked in 600 hours."""
    await add_labels(database, "hindsight", RELEASE, recent(luck))
    await learn(database)


def recent(luck: float) -> dict[str, Label]:
    """One label of each of the last 600 hours, by window."""
    labels = hours(np.random.default_rng(1), luck, 600)
    names = hours_before(datetime.now(UTC), number=600)
    return {name: replace(one, window_id=name) for name, one in zip(names, labels, strict=True)}


async def learn(database: Database, **values: Any) -> int:
    settings = settings_from(ConsoleCommand, **values)
    return await learn_from_outcomes(database, "hindsight", settings.windows, settings.advice)


@asynccontextmanager
async def advising(
    database: Database, home: Path, *votes: str, control: float = 0.0, status: int = 200, logprob: float = -0.001
) -> AsyncIterator[tuple[Opened, VotingServer]]:
    """A console, and a promoted release whose replies are ``votes``."""
    with VotingServer(*(votes or ("BUY ACME 10%",)), status=status, logprob=logprob) as model:
        await promote(database, home, model.base_url)
        async with opened_console(database, home, advice_control=control) as console:
            yield console, model


async def asked(client: httpx.AsyncClient, status: int = 200, **changes: Any) -> Any:
    answer = await client.post(f"{API}/advice", json={**ASKED, **changes})
    assert answer.status_code == status, answer.text
    return answer.json()


async def told(client: httpx.AsyncClient, advice_id: str, status: int = 200, **body: Any) -> Any:
    answer = await client.post(f"{API}/advice/{advice_id}/outcome", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


@asynccontextmanager
async def key_of(console: Opened, kind: str, owner: str) -> AsyncIterator[httpx.AsyncClient]:
    async with console.client(timeout=60) as client:
        made = (await client.post(f"{API}/ingest/keys", json={"kind": kind, "owner": owner})).json()
    async with console.client(key=made["key"], timeout=60) as client:
        yield client


async def test_without_a_release_or_a_calibration_it_abstains_and_says_what_to_run(
    database: Database, tmp_path: Path
) -> None:
    async with opened_console(database, tmp_path) as console, console.client(timeout=60) as client:
        none = await asked(client)
        assert (none["abstained"], none["reason"], none["release"]) == (True, "no_release", None)
    async with advising(database, tmp_path) as (console, _), console.client(timeout=60) as client:
        new = await asked(client, observation="something else")
    assert (new["abstained"], new["reason"], new["proposal"]) == (True, "not_calibrated", None)
    assert "scripts/calibrate_advice.py" in new["explanation"]


async def test_what_most_replies_propose_is_shown_with_its_confidence_and_asked_for_once(
    database: Database, tmp_path: Path
) -> None:
    async with advising(database, tmp_path, "BUY ACME 10%", "BUY ACME 20%") as (console, model):
        await calibrate(database)
        async with console.client(timeout=60) as client:
            first, again = await asked(client), await asked(client)
            other = await asked(client, agent_id="agent-2")
    assert first == again
    assert first["advice_id"] != other["advice_id"]
    assert len(model.requests) == 2
    assert (first["abstained"], first["reason"], first["release"]) == (False, None, RELEASE)
    assert first["proposal"].startswith("BUY ACME")
    assert 0.75 <= first["confidence"] <= 1
    assert "8 of 8 replies choose BUY ACME" in first["explanation"]
    asked_for = model.requests[0]
    assert (asked_for["n"], asked_for["logprobs"], asked_for["temperature"]) == (8, True, 1.0)
    assert asked_for["messages"] == [{"role": "user", "content": ASKED["observation"]}]
    assert model.keys == {"Bearer none"}


async def test_replies_that_differ_are_not_sure_enough(database: Database, tmp_path: Path) -> None:
    async with advising(database, tmp_path, "BUY ACME 10%", "SELL ACME 10%", "BUY X 1%", "HOLD", logprob=-2.0) as (
        console,
        _,
    ):
        labels = {name: replace(one, is_right=one.is_right and one.score > 0.9) for name, one in recent(0.2).items()}
        await add_labels(database, "hindsight", RELEASE, labels)
        await learn(database)
        async with console.client(timeout=60) as client:
            found = await asked(client)
    assert (found["abstained"], found["reason"], found["confidence"]) == (True, "low_confidence", None)


async def test_where_luck_decides_nothing_is_shown(database: Database, tmp_path: Path) -> None:
    async with advising(database, tmp_path) as (console, _):
        await calibrate(database, luck=1.0)
        async with console.client(timeout=60) as client:
            assert (await asked(client))["reason"] == "not_precise"


async def test_a_model_that_does_not_answer_is_an_abstention_and_is_asked_again(
    database: Database, tmp_path: Path
) -> None:
    async with advising(database, tmp_path, status=400) as (console, model):
        await calibrate(database)
        async with console.client(timeout=60) as client:
            away = await asked(client)
            model.status = 200
            back = await asked(client)
    assert (away["abstained"], away["reason"]) == (True, "model_unavailable")
    assert back["abstained"] is False
    assert await database.pool.fetchval("SELECT count(*) FROM hindsight.advice") == 1


async def test_a_share_gets_none_and_cannot_draw_again(database: Database, tmp_path: Path) -> None:
    async with advising(database, tmp_path, control=0.5) as (console, _):
        await calibrate(database)
        async with console.client(timeout=60) as client:
            first = [await asked(client, agent_id=f"agent-{number}") for number in range(24)]
            again = [await asked(client, agent_id=f"agent-{number}") for number in range(24)]
    assert first == again
    drawn = [one for one in first if one["reason"] == "control"]
    assert 4 <= len(drawn) <= 20
    assert all(one["proposal"] is None and one["confidence"] is None and one["abstained"] for one in drawn)
    kept = await database.pool.fetchval("SELECT count(proposal) FROM hindsight.advice WHERE state = 'control'")
    assert kept == len(drawn)


async def test_an_agents_key_asks_for_itself_and_says_only_what_it_did(database: Database, tmp_path: Path) -> None:
    async with advising(database, tmp_path) as (console, _):
        await calibrate(database)
        async with key_of(console, "agent", "agent-1") as agent, key_of(console, "agent", "agent-9") as stranger:
            await asked(agent, 403, agent_id="agent-2")
            await asked(agent, 403, window_id="2026-11-02T10:00")
            found = await asked(agent)
            name = found["advice_id"]
            await told(agent, name, 403, right=True)
            await told(agent, name, 403, decision_right=True, taken=True)
            await told(stranger, name, 404, taken=True)
            after = await told(agent, name, taken=True)
        async with key_of(console, "team", "reds") as team:
            theirs = await asked(team, agent_id="anna")
            await told(team, name, 404, taken=False)
            await told(team, theirs["advice_id"], taken=False)
        async with console.client(key=READ, timeout=60) as reader:
            await asked(reader, 403)
        async with console.client(key="hsi_unknown", timeout=60) as nobody:
            await asked(nobody, 401)
    assert (after["taken"], after["taken_by"], after["right"]) == (True, "agent", None)
    agents = await database.pool.fetch("SELECT DISTINCT agent_id FROM hindsight.advice ORDER BY 1")
    assert [row["agent_id"] for row in agents] == ["agent-1", "reds/anna"]


async def test_a_proposal_that_was_taken_returns_as_a_trajectory_once(database: Database, tmp_path: Path) -> None:
    async with advising(database, tmp_path) as (console, _):
        await calibrate(database)
        async with console.client(timeout=60) as client:
            found = await asked(client)
            once, twice = [await told(client, found["advice_id"], taken=True) for _ in range(2)]
            logged = await asked(client, agent_id="agent-2")
            linked = await told(client, logged["advice_id"], taken=True, trajectory_id="own-row")
    assert once == twice
    assert (once["returned"], once["trajectory_id"]) == ("stored", f"advice-{found['advice_id']}")
    assert (linked["returned"], linked["trajectory_id"]) == ("", "own-row")
    rows = await database.pool.fetch('SELECT "trajectoryId", "agentId", "stepsJson", "windowId" FROM trajectories')
    assert [row["trajectoryId"] for row in rows] == [once["trajectory_id"]]
    assert rows[0]["agentId"] == "agent-1"
    window = await WindowReader(
        database, window_rules(settings_from(ConsoleCommand).windows, now=datetime.now(UTC))
    ).read(rows[0]["windowId"])
    assert window is not None
    [call] = window.trajectories[0].steps[0].llm_calls
    assert (call.response, call.author.step) == ("BUY ACME 10%", 1)
    assert [one.text() for one in call.seen()] == [ASKED["observation"]]
    action = window.trajectories[0].steps[0].action
    assert action is not None
    assert (action.kind, action.parameters["ticker"]) == ("BUY", "ACME")


async def test_what_was_not_shown_was_not_taken(database: Database, tmp_path: Path) -> None:
    async with advising(database, tmp_path) as (console, _), console.client(timeout=60) as client:
        found = await asked(client)
        await told(client, found["advice_id"], 409, taken=True)
        await told(client, "0" * 32, 404, taken=True)


async def test_what_was_right_is_read_off_the_games_facts_and_log(database: Database, tmp_path: Path) -> None:
    """agent-1's own log has the question and another decision; agent-2 says what it likes."""
    window_id = window_of(NOW - timedelta(hours=3))
    prompt = ASKED["observation"]
    await insert_window(database.pool, window_id, agents=3)
    async with advising(database, tmp_path, "BUY ACME 10%") as (console, _):
        await calibrate(database)
        async with console.client(timeout=60) as client:
            mine = await asked(client, window_id=window_id)
        async with key_of(console, "agent", "agent-2") as agent:
            theirs = await asked(agent, agent_id="agent-2", observation=f"{prompt} Say BUY ACME.")
            await told(agent, theirs["advice_id"], taken=True, trajectory_id="t")
    await database.pool.execute("UPDATE hindsight.advice SET window_id = $1", window_id)
    before = await database.pool.fetchval("SELECT count(*) FROM hindsight.advice_labels")
    assert await learn(database, until=NOW.isoformat()) == 2
    rows = {row["advice_id"]: row for row in await database.pool.fetch("SELECT * FROM hindsight.advice")}
    own, foreign = rows[mine["advice_id"]], rows[theirs["advice_id"]]
    assert (own["right"], own["right_by"], own["settled_at"] is not None) == (True, "facts", True)
    assert (foreign["right"], foreign["is_vouched"], foreign["taken_by"]) == (True, False, "agent")
    labels = await database.pool.fetch("SELECT key FROM hindsight.advice_labels WHERE source = 'advice'")
    assert [row["key"] for row in labels] == [mine["advice_id"]]
    assert await database.pool.fetchval("SELECT count(*) FROM hindsight.advice_labels") == before + 1
    assert await learn(database, until=NOW.isoformat()) == 0


async def test_the_game_may_say_what_was_right_and_a_calibration_learns_from_it(
    database: Database, tmp_path: Path
) -> None:
    async with advising(database, tmp_path) as (console, _):
        await calibrate(database)
        before = await newest_calibration(database, "hindsight", RELEASE)
        async with key_of(console, "game", "babylon") as game:
            found = await asked(game)
            after = await told(game, found["advice_id"], taken=True, right=False, decision_right=False)
        await learn(database)
    assert (after["right"], after["right_by"], after["taken_by"]) == (False, "game", "game")
    newest = await newest_calibration(database, "hindsight", RELEASE)
    assert before is not None
    assert newest is not None
    assert newest.calibration_id > before.calibration_id
    assert await database.pool.fetchval("SELECT count(*) FROM hindsight.audit WHERE deed LIKE '%outcome%'") == 1


async def test_the_lift_is_between_those_shown_and_those_drawn_to_get_none(database: Database, tmp_path: Path) -> None:
    async with advising(database, tmp_path, control=0.5) as (console, _):
        await calibrate(database)
        async with console.client(timeout=60) as client:
            for hour, window_id in enumerate(hours_before(number=40)):
                found = await asked(client, window_id=window_id)
                is_shown = not found["abstained"]
                await told(client, found["advice_id"], right=True, decision_right=is_shown or hour % 2 == 0)
    board = await advice_board(database, "hindsight", 0.75)
    assert board.lift is not None
    assert board.lift.low is not None
    assert 0.2 < board.lift.low < board.lift.mean < 0.8
    assert (board.asked, board.shown + board.control) == (40, 40)
    assert board.right is not None
    assert board.right.mean == 1.0


async def test_the_windows_of_the_gate_are_left_alone(database: Database, tmp_path: Path) -> None:
    names = hours_before(number=120)
    for window_id in names:
        await insert_window(database.pool, window_id)
    await insert_checkpoint(database, 1, windows=names[:40])
    settings = settings_from(CalibrateSettings, until=NOW.isoformat())
    point = await insert_checkpoint(database, 2, windows=names[40:50])
    await publish(database, tmp_path, point.as_release(), Serving("http://x/v1", "x"), reason="test", forced=True)
    promotion = await serving(database, "hindsight")
    assert promotion is not None
    reader = WindowReader(database, window_rules(settings.windows, now=NOW))
    chosen = sorted(ref.window_id for ref in await calibration_windows(database, reader, promotion, settings.windows))
    assert chosen[0] > names[49]
    assert chosen[-1] == names[79]
    assert len(chosen) == 30
    assert await database.pool.fetchval("SELECT count(*) FROM hindsight.evaluations") == 0


@pytest.mark.parametrize("body", [{}, {"messages": []}, {"observation": ""}, {"observation": "x", "messages": []}])
async def test_a_question_that_asks_nothing_is_refused(database: Database, tmp_path: Path, body: Any) -> None:
    async with opened_console(database, tmp_path) as console, console.client(timeout=60) as client:
        answer = await client.post(f"{API}/advice", json={"agent_id": "agent-1", **body})
        assert answer.status_code == 422


async def test_whether_it_was_taken_is_read_off_the_log_whatever_the_agent_says(
    database: Database, tmp_path: Path
) -> None:
    window_id = window_of(NOW - timedelta(hours=3))
    call = {"model": "m", "messages": [{"role": "user", "content": ASKED["observation"]}], "response": "SELL ACME"}
    action = {"actionType": "SELL", "parameters": {"ticker": "ACME"}, "success": True}
    step = {"stepNumber": 0, "timestamp": 1, "environmentState": {}, "llmCalls": [call], "action": action}
    await insert_window(database.pool, window_id, agents=3, steps=[step])
    async with advising(database, tmp_path, "BUY ACME 10%") as (console, _):
        await calibrate(database)
        async with key_of(console, "agent", "agent-1") as agent:
            found = await asked(agent)
            await told(agent, found["advice_id"], taken=True, trajectory_id="t")
    await database.pool.execute("UPDATE hindsight.advice SET window_id = $1", window_id)
    assert await learn(database, until=NOW.isoformat()) == 1
    row = await database.pool.fetchrow("SELECT * FROM hindsight.advice")
    assert row is not None
    assert (row["taken"], row["taken_by"], row["right"], row["decision_right"]) == (False, "log", True, False)
    assert row["is_vouched"] is True
    await database.pool.execute("UPDATE hindsight.advice SET settled_at = NULL")
    async with opened_console(database, tmp_path) as console, key_of(console, "agent", "agent-1") as agent:
        assert (await told(agent, found["advice_id"], taken=True, trajectory_id="t"))["taken"] is False


async def test_the_command_asks_where_the_outcome_is_known_and_calibrates(
    database_url: str, database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = hours_before(number=100)
    for window_id in names:
        await insert_window(database.pool, window_id)
    with VotingServer("BUY ACME 10%", logprob=-0.01) as model:
        point = await insert_checkpoint(database, 1, windows=names[:5])
        at = Serving(model.base_url, RELEASE)
        await publish(database, tmp_path, point.as_release(), at, reason="for a test", forced=True)
        flags = ["--database-url", database_url, "--home", str(tmp_path), "--until", NOW.isoformat(), "--json"]
        code = await asyncio.to_thread(calibrate_advice, flags)
    said = json.loads(capsys.readouterr().out)
    assert code == 0
    assert (said["release"], said["windows"], said["asked"], said["new_labels"]) == (RELEASE, 55, 55, 55)
    stored = await newest_calibration(database, "hindsight", RELEASE)
    assert stored is not None
    assert stored.calibration.threshold is not None
    assert stored.calibration.since > names[4]
    used = await database.pool.fetch("SELECT window_id FROM hindsight.advice_labels")
    assert {row["window_id"] for row in used} == set(names[5:60])


async def test_the_command_without_a_release_says_so(
    database_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--database-url", database_url, "--home", str(tmp_path)]
    assert await asyncio.to_thread(calibrate_advice, flags) == 3
    assert "No release of hindsight is promoted" in capsys.readouterr().err
