"""The game's JSON text, in both writers' shapes and with JavaScript's oddities, into types."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_bridge.decode import _COERCIONS, Undecodable, decode_steps, role_of
from data_bridge.models import Action, ChatMessage, EnvironmentState, LLMCall, Step
from data_bridge.outcomes import decode_news
from data_bridge.quality import Reason
from tests.builders import plugin_steps, recorder_steps, trade_worth

# What the properties feed to the decoders: text of any kind, any JSON, and JSON that is nearly the game's.
_scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8))
_anything = st.recursive(
    _scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner)),
    max_leaves=8,
)
_names = {
    field.encode_name
    for cls in (Step, LLMCall, Action, EnvironmentState, ChatMessage)
    for field in msgspec.structs.fields(cls)
}
_near = st.recursive(
    _scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(sorted(_names)), inner, max_size=6)
    ),
    max_leaves=15,
)


def _near_steps(draw_from: Any) -> Any:
    step = st.dictionaries(st.sampled_from(sorted(_names)), draw_from, max_size=6)
    return st.lists(st.one_of(step, draw_from), max_size=3)


def check_steps(text: str | bytes) -> None:
    try:
        steps = decode_steps(text)
    except Undecodable as error:
        reason: Reason | None = error.reason
        steps = []
    else:
        reason = None
    assert bool(steps) == (reason is None)
    assert reason in (None, Reason.MALFORMED_JSON, Reason.NO_STEPS)
    msgspec.json.encode(steps)  # typed through and through, and no lone surrogate left
    assert not any(step.action and step.action.is_pending for step in steps)


@given(st.text())
def test_any_text_gives_steps_or_a_reason(text: str) -> None:
    check_steps(text)


@given(st.binary())
def test_any_bytes_give_steps_or_a_reason(text: bytes) -> None:
    check_steps(text)


@given(st.one_of(_anything, _near_steps(_near)).map(json.dumps))
def test_any_json_gives_steps_or_a_reason(text: str) -> None:
    check_steps(text)
    check_steps(text.encode("utf-8", "surrogatepass"))


@given(st.integers(0, 400), st.text(max_size=3))
def test_a_damaged_row_gives_steps_or_a_reason(place: int, junk: str) -> None:
    text = json.dumps(plugin_steps(1))
    check_steps(text[:place] + junk + text[place + len(junk) :])
    check_steps(text[:place])


@given(st.one_of(st.text(), st.one_of(_anything, _near).map(json.dumps)))
def test_metadata_and_news_never_raise(text: str) -> None:
    role_of(text)
    for event in decode_news(text):
        assert event.headline
        assert event.timestamp is None or event.timestamp.tzinfo is UTC


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", Reason.MALFORMED_JSON),
        ("{{{", Reason.MALFORMED_JSON),
        ('[{"stepNumber": 1', Reason.MALFORMED_JSON),
        ("{}", Reason.MALFORMED_JSON),
        ('"text"', Reason.MALFORMED_JSON),
        ("[1, 2]", Reason.MALFORMED_JSON),
        ('[{"llmCalls": "none"}]', Reason.MALFORMED_JSON),
        ('[{"llmCalls": [{"userPrompt": {"not": "text"}}]}]', Reason.MALFORMED_JSON),
        ("[" * 100_000, Reason.MALFORMED_JSON),
        ('[{"action": {"result": ' + "[" * 50_000 + "]" * 50_000 + "}}]", Reason.MALFORMED_JSON),
        ("null", Reason.NO_STEPS),
        ("[]", Reason.NO_STEPS),
    ],
)
def test_text_without_steps_has_the_right_reason(text: str, reason: Reason) -> None:
    with pytest.raises(Undecodable) as raised:
        decode_steps(text)
    assert raised.value.reason is reason


def test_both_writers_give_the_same_decision() -> None:
    for steps in (decode_steps(json.dumps(recorder_steps())), decode_steps(json.dumps(plugin_steps()))):
        assert [step.state.lifetime_pnl for step in steps] == [500, 510]
        call = steps[0].llm_calls[0]
        assert (call.response, call.latency_ms, call.purpose) == ("BUY ACME 10", 312.5, "action")
        assert [message.role for message in call.chat()] == ["system", "user"]
        action = steps[0].action
        assert action is not None
        assert (action.kind, action.parameters, action.failure) == ("BUY", trade_worth(10, parts=2), None)


def test_a_lone_surrogate_becomes_the_replacement_character() -> None:
    [step] = decode_steps('[{"llmCalls": [{"userPrompt": "a \\ud83d b", "response": "\\ud83d\\ude00 \\u0000"}]}]')
    assert step.llm_calls[0].user_prompt == "a \ufffd b"
    assert step.llm_calls[0].response == "\U0001f600 \x00"


def test_numbers_in_quotes_nulls_and_impossible_numbers_bend() -> None:
    text = """[{"stepNumber": "3", "timestamp": "1793000000000", "reward": null, "llmCalls": null,
      "environmentState": {"agentBalance": "12.5", "agentPnL": 1e999, "openPositions": "many", "role": 7},
      "action": {"actionType": "sell", "parameters": null, "success": "true", "error": null}}]"""
    [step] = decode_steps(text)
    assert (step.step_number, step.timestamp, step.reward, step.llm_calls) == (3, 1793000000000, None, [])
    assert step.state == EnvironmentState(balance=12.5)
    assert step.action == Action(action_type="sell", success=True)
    assert step.action.kind == "SELL"


def test_the_lenient_path_gives_what_the_fast_path_gives() -> None:
    steps = plugin_steps(3)
    plain = decode_steps(json.dumps(steps))
    steps[0]["stepNumber"] = "0"  # forces the lenient path
    assert decode_steps(json.dumps(steps)) == plain


def test_the_lenient_path_knows_every_type_of_field() -> None:
    for cls in (Step, LLMCall, Action, EnvironmentState, ChatMessage):
        for field in msgspec.structs.fields(cls):
            assert field.type is Any or field.type in _COERCIONS, f"{cls.__name__}.{field.name}"


def test_a_pending_action_is_no_action() -> None:
    steps = plugin_steps(2)
    steps[1]["action"] |= {"actionType": "pending", "actionName": "pending"}
    decoded = decode_steps(json.dumps(steps))
    assert decoded[0].action is not None
    assert decoded[1].action is None


def test_a_failed_action_tells_why_whichever_writer_logged_it() -> None:
    by_recorder = Action(action_type="BUY", success=False, error="no funds")
    by_plugin = Action(action_type="BUY", success=False, result={"error": "no funds"})
    assert (by_recorder.failure, by_plugin.failure) == ("no funds", "no funds")


def test_of_the_metadata_only_the_role_is_read() -> None:
    truth = {"trueProbabilities": {"m": 0.7}, "futureOutcomes": {"m": "YES"}}
    assert role_of(json.dumps({"isTrainingData": True, "gameKnowledge": truth, "role": "whale"})) == "whale"
    assert role_of(json.dumps({"agentRole": "whale", "text": "\ud83d"})) == "whale"
    for nothing in (None, "", "{}", "null", "[]", "{{{", '{"role": 5}', json.dumps(truth)):
        assert role_of(nothing) is None


def test_news_is_read_in_the_shapes_it_comes_in() -> None:
    for shape in (
        ["Up we go"],
        [{"headline": "Up we go"}],
        {"events": [{"title": "Up we go"}]},
        {"text": "Up we go"},
        "Up we go",
        [None, 3, {"x": 1}, {"headline": " Up we go "}],
    ):
        assert [event.headline for event in decode_news(json.dumps(shape))] == ["Up we go"]
    moment = datetime(2026, 11, 2, 10, 15, tzinfo=UTC)
    for stamp in (int(moment.timestamp() * 1000), "2026-11-02T10:15:00Z", "2026-11-02T11:15:00+01:00"):
        [event] = decode_news(json.dumps([{"headline": "h", "timestamp": stamp, "sentiment": "bad"}]))
        assert (event.timestamp, event.sentiment) == (moment, "bad")
