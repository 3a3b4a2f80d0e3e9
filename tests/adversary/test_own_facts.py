"""In a world of facts an agent controls its row and nothing else: no part of another's success, and none of its own."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from data_bridge.database import Database
from data_bridge.facts import facts_of, record_facts
from data_bridge.ingest import SentTrajectory, store_sent
from data_bridge.models import Action, AgentTrajectory, Fact, Step, WindowOutcomes
from data_bridge.quality import Rules
from data_bridge.reader import WindowReader
from data_bridge.window_ids import last_closed_windows, window_of
from data_bridge.worlds.load import load_world
from data_bridge.worlds.plain import parse_world
from tests.builders import insert_trajectory, make_trajectory
from tests.builders_worlds import desk, desk_facts, record_log
from tests.integration.test_worlds import NOW
from trainer.certify.turned_facts import facts_turned
from trainer.evaluate.adapter_replay import AdapterReplay
from trainer.evaluate.decision_points import DecisionPoint
from trainer.types import Group

DESK = load_world("desk")
SUMMED = parse_world(
    'name = "shop"\nsubjects = ["ticket"]\nactions = ["ANSWER"]\n[success]\nfacts = { resolved = 1.0 }\n', "shop"
)
AGENTS = {"ada", "ben", "team/eve", "mallory"}
CLOSED = datetime(2026, 11, 2, 11, 10, tzinfo=UTC)


def known(*told: tuple[str, float]) -> WindowOutcomes:
    rows = [
        {"subject": subject, "kind": "resolved", "value_before": 0, "value_after": after} for subject, after in told
    ]
    facts, _ = facts_of(rows, CLOSED, AGENTS)
    return WindowOutcomes(facts=facts)


def row(agent: str, *tickets: str, trajectory_id: str = "own", success: bool = True) -> AgentTrajectory:
    steps = [Step(action=Action("ANSWER", parameters={"ticket": one}, success=success)) for one in tickets]
    return msgspec.structs.replace(make_trajectory(agent), trajectory_id=trajectory_id, steps=steps)


FACTS = known(("ada", 3.0), ("ada/T-1", 1.0), ("team/eve/T-1", 1.0), ("mallory", 1.0), ("T-2", 1.0))


@pytest.mark.parametrize("claimed", ["ada", "ada/T-1", " ada/T-1 ", "team/eve/T-1", "team/eve", "mallory"])
def test_no_row_claims_what_is_known_of_an_agent(claimed: str) -> None:
    """Neither another's, nor its own a second time."""
    [own] = [one for one in FACTS.facts if one.subject == "mallory"]
    for world in (DESK, SUMMED):
        for found in (row("mallory", claimed), row("mallory", trajectory_id=claimed.strip())):
            success = world.success(found, FACTS)
            assert success is not None
            assert success.value == own.change
            assert world.step_result(found.steps[0], found, FACTS) is None if found.steps else True


def test_an_agent_with_a_teams_name_has_its_own_part_and_its_team_has_not() -> None:
    facts = known(("team/eve/T-1", 1.0), ("team/T-1", 0.0))
    assert SUMMED.success(row("team/eve", "T-1"), facts) is not None
    assert SUMMED.success(row("team", "eve/T-1"), facts) is None


def test_an_action_that_was_not_carried_out_has_no_part_in_what_came_of_the_subject() -> None:
    assert SUMMED.success(row("ben", "T-2"), FACTS).value == 1.0  # type: ignore[union-attr]
    failed = SUMMED.success(row("ben", "T-2", success=False), FACTS)
    assert failed is not None, "it failed: that is known, and it is not left out"
    assert failed.value == 0.0
    right = WindowOutcomes(facts=(Fact("T-2", "right_action", text="ANSWER"),))
    assert DESK.success(row("ben", "T-2", success=False), right).value == 0.0  # type: ignore[union-attr]


def test_no_agent_is_named_to_the_judge_also_one_of_a_team_or_of_another_group() -> None:
    members = [row("team/eve", "T-2"), row("mallory", "T-2", trajectory_id="other")]
    shown = json.dumps(DESK.shown_facts("2026-11-02T10:00", members, FACTS))
    assert "T-2" in shown
    assert not [name for name in AGENTS if name in shown]


def test_facts_of_a_teams_agents_are_swapped_in_a_certificate() -> None:
    facts = known(("team/eve/T-1", 1.0), ("ben/T-1", 0.0))
    members = (row("team/eve", "T-1", trajectory_id="one"), row("ben", "T-1", trajectory_id="two"))
    turned = facts_turned(Group("group", "2026-11-02T10:00", members, facts, DESK))
    assert {one.subject: one.after for one in turned.facts} == {"team/eve/T-1": 0.0, "ben/T-1": 1.0}


async def test_the_reader_knows_whom_a_fact_is_about(database: Database, tmp_path: Path) -> None:
    [window] = last_closed_windows(1, NOW)
    await record_log(database, tmp_path, [window], desk, desk_facts, NOW)
    found = await WindowReader(database, Rules(now=NOW, world=DESK)).read(window)
    assert found is not None
    whose = {fact.subject: fact.agent for fact in found.outcomes.facts}
    assert whose == {"T-0": None, "weather": None} | {f"{one}/T-0": one for one in ("ada", "ben", "cleo", "dan")}


# Step rewards


GAME = parse_world('name = "arena"\nneeds = "nothing"\nwritten_by = "game"\n', "arena")
STEPS = [
    {
        "stepNumber": 0,
        "llmCalls": [{"model": "m", "userPrompt": "?", "response": "GO", "purpose": "action"}],
        "action": {"actionType": "GO", "parameters": {}, "success": True, "result": {"won": True}},
        "reward": 1000.0,
    }
]


async def read_back(database: Database, window: str, now: datetime) -> AgentTrajectory:
    found = await WindowReader(database, Rules(now=now, world=GAME)).read(window)
    assert found is not None
    [one] = found.trajectories
    return one


@pytest.mark.parametrize(
    "metadata", [{}, {"sentBy": "game"}, {"sentBy": None, "role": "one"}], ids=["nothing", "the game", "nobody"]
)
async def test_rewards_in_a_row_that_an_agent_sent_are_claims_whoever_writes_the_log(
    database: Database, metadata: dict[str, Any]
) -> None:
    now: datetime = await database.pool.fetchval("SELECT now()")
    sent = SentTrajectory("t-1", "mallory", now, now, json.dumps(STEPS), json.dumps(metadata))
    [stored] = await store_sent(database, [sent])
    assert stored.state == "stored", stored.reason
    found = await read_back(database, window_of(now), now + timedelta(hours=2))
    assert GAME.success(found, WindowOutcomes()) is None
    assert GAME.step_result(found.steps[0], found, WindowOutcomes()) is None
    assert GAME.step_claims(found.steps[0], found, is_blind=False)["reward"] == 1000.0


async def test_metadata_that_could_hide_who_sent_it_is_refused(database: Database) -> None:
    now: datetime = await database.pool.fetchval("SELECT now()")
    many = '{"a":[' + "[]," * 300_000 + "1]}"
    [stored] = await store_sent(database, [SentTrajectory("t-1", "mallory", now, now, json.dumps(STEPS), many)])
    assert (stored.state, "metadataJson" in stored.reason) == ("refused", True)


async def test_rewards_of_an_agent_with_a_role_of_its_own_in_the_database_are_claims(database: Database) -> None:
    [window] = last_closed_windows(1, NOW)
    await insert_trajectory(database.pool, "mallory", window_id=window, steps=STEPS)
    success = GAME.success(await read_back(database, window, NOW), WindowOutcomes())
    assert success is not None, "the game wrote it"
    assert success.value == 1000.0
    await database.pool.execute("CREATE TABLE hindsight.agent_roles (role_name name, agent_id text)")
    await database.pool.execute("INSERT INTO hindsight.agent_roles VALUES ('agent_7', 'mallory')")
    assert GAME.success(await read_back(database, window, NOW), WindowOutcomes()) is None


async def test_a_fact_that_is_still_to_come_or_has_no_zone_is_refused(database: Database) -> None:
    [window] = last_closed_windows(1, NOW)
    for at, words in ((NOW + timedelta(hours=1), "still to come"), (NOW.replace(tzinfo=None), "names no zone")):
        with pytest.raises(Exception, match=words):
            await record_facts(database, window, [Fact("T-1", "resolved", after=1.0, at=at)], now=NOW)


def test_facts_beyond_the_limit_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data_bridge.facts.MAX_FACTS", 2)
    rows = [{"subject": f"T-{number}", "kind": "resolved", "value_after": 1} for number in range(5)]
    facts, doubts = facts_of(rows, CLOSED)
    assert (len(facts), doubts.too_many) == (2, 3)


def test_only_a_word_in_capitals_is_an_action_of_the_desk() -> None:
    assert DESK.parse("hm, let me think about that") is None
    assert DESK.parse("I would refund") is None
    said = DESK.parse("REFUND, as the customer asks")
    assert said is not None
    assert said.kind == "REFUND"


def test_the_right_action_for_one_agent_is_no_other_agents_answer() -> None:
    facts, _ = facts_of([{"subject": "ada/T-1", "kind": "right_action", "text": "ANSWER"}], CLOSED, AGENTS)
    assert DESK.success(row("mallory", "ada/T-1"), WindowOutcomes(facts=facts)) is None


def test_a_reply_about_something_else_than_was_asked_is_worth_nothing() -> None:
    """A model that names the one order whose right action it knows must not be promoted for it."""
    world = parse_world(
        'name = "bakery"\nsubjects = ["order"]\nactions = ["BAKE", "WAIT"]\n[success]\nright_answer = "best"\n'
        "[reply]\npattern = '(?P<action>BAKE|WAIT)(?: (?P<order>O-\\d+))?'\n",
        "bakery",
    )
    asked = Action("WAIT", parameters={"order": "O-7"}, success=True)
    trajectory = msgspec.structs.replace(make_trajectory("ada"), steps=[Step(action=asked)])
    facts = (Fact("O-7", "best", text="WAIT"), Fact("O-3", "best", text="BAKE"))
    point, replay = DecisionPoint(trajectory, 0, 0, WindowOutcomes(facts=facts), world), AdapterReplay(world)
    worth = {reply: replay.play(point, reply) for reply in ("WAIT", "WAIT O-7", "BAKE", "BAKE O-3", "hm")}
    assert {reply: one.pnl for reply, one in worth.items() if one is not None} == {
        "WAIT": 1.0,
        "WAIT O-7": 1.0,
        "BAKE": 0.0,
        "BAKE O-3": 0.0,
        "hm": 0.0,
    }
