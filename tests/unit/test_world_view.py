"""What a judge is shown in another world than a market: its length, facts, results relative to resources, claims."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest

from data_bridge.models import Action, AgentTrajectory, EnvironmentState, Fact, Step, WindowOutcomes
from data_bridge.worlds.plain import parse_world
from tests.builders import WINDOW, make_call, make_trajectory
from trainer.judge.prompt import fit, load_rubric
from trainer.judge.view import view_of
from trainer.types import Group

MARKET_WORDS = re.compile(r"market|P&L|profit|stock|ticker|\bprices?\b|dollar|balance", re.IGNORECASE)
FACTS = (Fact("Q-1", "quest_done", 0.0, 1.0), Fact("weather", "rain", after=1.0, visible=True))
WORLD = """
name = "errands"
state = ["place"]
resource = "energy"
subjects = ["quest"]
written_by = "{writer}"
[success]
measure = "quests done"
facts = {{ quest_done = 1.0 }}
"""


def member(number: int) -> AgentTrajectory:
    state = EnvironmentState(balance=50.0, everything={"place": "mill", "energy": 50})
    action = Action("GO", parameters={"quest": "Q-1"}, success=True, result={"note": "well done"})
    step = Step(state=state, llm_calls=[make_call("GO", prompt="Quest Q-1.")], action=action, reward=0.75)
    return msgspec.structs.replace(make_trajectory(f"agent-{number}", trajectory_id=f"t{number}"), steps=[step])


def shown(writer: str, *, hours: int = 1, facts: tuple[Fact, ...] = FACTS, passes: int = 1) -> tuple[Any, str, str]:
    """The first trajectory as the judge reads it, the rules, and the rules of the first of two passes."""
    world = parse_world(WORLD.format(writer=writer), "errands")
    group = Group("group", WINDOW, (member(1), member(2)), WindowOutcomes(facts=facts), world, hours)
    view, rubric = view_of(group, passes=passes), load_rubric("quests")
    blind = "" if view.blind is None else fit(view.blind, rubric, 24_000).system
    fitted = fit(view, rubric, 24_000)
    return json.loads(fitted.bodies[0]), fitted.system, blind


@pytest.mark.parametrize(("writer", "believed"), [("agents", False), ("game", True)])
def test_results_and_rewards_are_facts_only_where_the_game_writes_the_log(writer: str, believed: bool) -> None:
    told, _, _ = shown(writer)
    [step] = told["steps"]
    assert told["result"] == {"quests_done": 1.0, "percent_of_energy": 2.0}
    assert step["claimed"]["place"] == "mill"
    assert ("reward" in step["claimed"], "reward" in step["result"]) == (not believed, believed)
    assert ("well done" in json.dumps(step["claimed"]), "well done" in step["result"]) == (not believed, believed)


def test_the_rules_speak_of_the_windows_length_of_resources_and_of_no_market() -> None:
    _, hour, blind = shown("agents", passes=2)
    _, day, _ = shown("agents", hours=24)
    assert "one agent's hour" in hour
    assert "one agent's window of 24 hours" in day
    assert "Agents start with different energy" in hour
    for rules in (hour, day, blind):
        assert not MARKET_WORDS.search(rules), MARKET_WORDS.search(rules)


def test_what_agents_could_see_is_not_said_to_be_unknown_to_them() -> None:
    _, some, _ = shown("agents")
    _, none, _ = shown("agents", facts=FACTS[:1])
    assert "known_to_agents_when_they_decided" in some
    assert "could not know any of it" in none
