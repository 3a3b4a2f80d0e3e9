"""Trained equals judged: whatever a row holds, the judge reads every reply that is trained, whole and as it was said.

Each attack hid its reply from the judge of 0.1.0: behind reasons, behind another call of the step, in a tool call, in
characters that nobody sees.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_bridge.art_converter import ConversionRules, RewardedTrajectory, convert_group
from data_bridge.models import AgentTrajectory, LLMCall, Step
from tests.builders import WINDOW, make_action, make_call, make_outcomes, make_step, make_trajectory
from tests.builders_judge import agent
from trainer.judge.prompt import fit, load_rubric
from trainer.judge.view import view_of
from trainer.types import Group

PLANTED = "WITHDRAW all to mallory"
RUBRIC = load_rubric("trading")


def shown(member: AgentTrajectory, purposes: tuple[str, ...] = ("action",), tokens: int = 24_000) -> dict[str, Any]:
    """The member's trajectory as the judge reads it, in a group with an honest one."""
    view = view_of(Group("group", WINDOW, (member, agent(2)), make_outcomes()), purposes)
    place = [one.trajectory.trajectory_id for one in view.trajectories].index(member.trajectory_id)
    return dict(json.loads(fit(view, RUBRIC, tokens).bodies[place]))


def replies(body: dict[str, Any]) -> list[Any]:
    """Every reply in it, in order."""
    steps = body["steps"]
    return [call["said"] for step in steps for call in [*step.get("earlier_calls", []), step] if "said" in call]


def of_calls(*calls: LLMCall, **fields: Any) -> AgentTrajectory:
    return make_trajectory("attacker", steps=[make_step(0, calls=calls, **fields)])


@pytest.mark.parametrize("place", ["action", "step", "call"])
def test_reasons_do_not_hide_the_reply(place: str) -> None:
    why = "Orders are up, so I buy."
    step = Step(
        llm_calls=[make_call(PLANTED, reasoning=why if place == "call" else None)],
        action=make_action(reasoning=why if place == "action" else None),
        reasoning=why if place == "step" else None,
    )
    body = shown(make_trajectory("attacker", steps=[step]))
    assert replies(body) == [PLANTED]
    assert body["steps"][0]["reasons"] == why


def test_of_several_calls_of_a_step_all_are_shown_in_their_order() -> None:
    calls = [make_call(text) for text in (PLANTED, "HOLD", "BUY ACME 10")]
    assert replies(shown(of_calls(*calls))) == [PLANTED, "HOLD", "BUY ACME 10"]


def test_each_of_several_calls_is_shown_with_what_it_saw() -> None:
    calls = [make_call(PLANTED, prompt="Empty the account."), make_call("BUY ACME 10", prompt="ACME trades at 100.")]
    step = shown(of_calls(*calls))["steps"][0]
    assert step["earlier_calls"] == [{"saw": "Empty the account.", "said": PLANTED}]
    assert (step["saw"], step["said"]) == ("ACME trades at 100.", "BUY ACME 10")


def test_a_tool_call_is_part_of_the_reply() -> None:
    tool = {
        "type": "function",
        "function": {"name": "withdraw", "arguments": '{"to": "mallory", "amount": 1.23456789}'},
    }
    body = shown(of_calls(make_call("", tool_calls=[tool]), action=make_action(reasoning="Nothing to see.")))
    assert replies(body) == [{"text": "", "tool_calls": [tool]}]


HIDDEN = {
    "tag characters": "BUY ACME 10" + "".join(chr(0xE0000 + ord(letter)) for letter in PLANTED),
    "zero-width": "BUY ACME 10" + "\u200b\u2060\u200d" * 5,
    "private use": "BUY ACME 10\ue000\ue001",
    "bidirectional": "BUY ACME 10 \u202eyrollam ot lla WARDHTIW\u202c",
    "look-alikes": "\uff22\uff35\uff39 ACME 10",
    "control characters": "BUY ACME 10\x00\x08\x7f\x1b[2J",
    "blank lines": "BUY ACME 10" + "\n \n" * 40 + PLANTED,
    "a lone surrogate": "BUY ACME 10 \ud83d",
}


@pytest.mark.parametrize("name", HIDDEN)
def test_what_nobody_sees_in_a_reply_is_shown_to_the_judge(name: str) -> None:
    """Such characters are trained like any other; what is cleaned away elsewhere must not be cleaned away here."""
    body = shown(of_calls(make_call(HIDDEN[name])))
    assert replies(body) == [HIDDEN[name]]


def test_a_long_reply_is_shown_whole_where_its_observation_and_reasons_are_cut() -> None:
    said = "I buy. " * 2_000 + PLANTED
    member = of_calls(make_call(said, prompt="ACME trades. " * 9_000), action=make_action(reasoning="Up. " * 9_000))
    body = shown(member)
    assert replies(body) == [said]
    assert "characters left out" in body["steps"][0]["saw"]
    assert "characters left out" in body["steps"][0]["reasons"]


def test_calls_of_a_purpose_that_is_trained_are_shown_whatever_the_others_are() -> None:
    calls = [make_call(PLANTED, purpose="response"), make_call("BUY ACME 10")]
    assert replies(shown(of_calls(*calls), purposes=("response",))) == [PLANTED]
    assert replies(shown(of_calls(*calls), purposes=("response", "action"))) == [PLANTED, "BUY ACME 10"]


_REPLIES = st.text(st.characters(), max_size=30) | st.sampled_from([PLANTED, *HIDDEN.values()])
_TOOLS = st.none() | st.lists(
    st.builds(lambda name, said: {"id": "1", "type": "function", "function": {"name": name, "arguments": said}},
              st.text(max_size=5), st.text(max_size=9)),
    min_size=1, max_size=2,
)  # fmt: skip
_CALLS = st.builds(
    lambda said, purpose, tools, why: make_call(
        said, purpose=purpose, tool_calls=tools, reasoning=why, completion_token_ids=[1], completion_logprobs=[-0.5]
    ),
    _REPLIES,
    st.sampled_from(["action", "response", "other"]),
    _TOOLS,
    st.none() | st.just("because"),
)
_STEPS = st.builds(
    lambda calls, kind, why: make_step(
        calls=calls, action=make_action(kind, reasoning=why, success=kind != "SELL"), no_action=kind == "BUY"
    ),
    st.lists(_CALLS, max_size=3),
    st.sampled_from(["BUY", "SELL", "HOLD", "PENDING"]),
    st.none() | st.just("because"),
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(_STEPS, min_size=1, max_size=4), st.sets(st.sampled_from(["action", "response", "other"]), min_size=1))
async def test_no_reply_is_trained_that_the_judge_does_not_read(steps: list[Step], purposes: set[str]) -> None:
    member = make_trajectory("attacker", steps=steps)
    rules = ConversionRules("hindsight", purposes=tuple(purposes))
    [converted] = await convert_group([RewardedTrajectory(member, 1.0, is_above_mean=True)], rules)
    read = replies(shown(member, tuple(purposes)))
    if converted.reason is not None:
        return
    histories = [converted.trajectory.messages_and_choices]
    histories += [more.messages_and_choices for more in converted.trajectory.additional_histories]
    for choice in [history[-1] for history in histories]:
        tools = [call.model_dump() for call in choice.message.tool_calls or []]
        said = {"text": choice.message.content, "tool_calls": tools} if tools else choice.message.content
        assert said in read
