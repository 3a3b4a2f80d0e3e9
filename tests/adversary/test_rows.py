"""A bad row costs that row: whatever an agent writes, the reader, the converter and the trainer go on without it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_bridge.art_converter import ConversionRules, RewardedTrajectory, convert_group
from data_bridge.decode import Undecodable, decode_steps, role_of
from data_bridge.models import AgentTrajectory, ChatMessage, LLMCall
from tests.builders import make_call, make_outcomes, make_step, make_trajectory, recorder_steps
from tests.builders_training import judged, make_batch, make_settings, make_trainee, opened_backend
from tests.tiny_model import shared_tiny_model
from trainer.evaluate.decision_points import DEFAULT_MAX_TOKENS, DecisionPoint
from trainer.train.backends.prepare import prepare


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_tiny_model(tmp_path_factory)


def row(agent: str, call: dict[str, Any]) -> AgentTrajectory:
    """A trajectory as the reader makes it of what an agent wrote: ``call`` is JSON of its one call."""
    [step] = recorder_steps(1, response="BUY ACME 10")
    step["llmCalls"][0] |= call
    return make_trajectory(agent, trajectory_id=agent, steps=decode_steps(json.dumps([step])))


TOOL = {"id": "1", "type": "function", "function": {"name": "buy", "arguments": "{}"}}
HARMFUL: dict[str, dict[str, Any]] = {
    "an id out of the vocabulary": {"completionTokenIds": [10**6], "completionLogprobs": [-1]},
    "a negative id": {"completionTokenIds": [-5, 2], "completionLogprobs": [-1, -1]},
    "an id of 2^70": {"completionTokenIds": [2**70], "completionLogprobs": [-1]},
    "log-probabilities of -1e30": {"completionTokenIds": [5, 2], "completionLogprobs": [-1e30, -1e30]},
    "log-probabilities above 0": {"completionTokenIds": [5, 2], "completionLogprobs": [50, 50]},
    "60,000 ids": {"completionTokenIds": [5] * 60_000, "completionLogprobs": [-1] * 60_000},
    "60,000 ids and a reply as long": {
        "response": "a b " * 30_000,
        "completionTokenIds": [5] * 60_000,
        "completionLogprobs": [-1] * 60_000,
    },
    "no prompt": {"systemPrompt": "", "userPrompt": ""},
    "no prompt but the reply": {"messages": [{"role": "assistant", "content": "BUY ACME 10"}]},
    "a role that is none": {"messages": [{"role": "\u0000", "content": "x"}]},
    "a tool call that is none": {"toolCalls": [{"a": 1}]},
    "a tool call with tokens that is none": {
        "toolCalls": [{"function": {"name": 3}}],
        "completionTokenIds": [5, 2],
        "completionLogprobs": [-1, -1],
    },
    "a tool call in the prompt that is none": {
        "messages": [{"role": "assistant", "content": "", "tool_calls": [{"function": 7}]}, {"role": "user"}]
    },
}


@pytest.mark.parametrize("name", HARMFUL)
async def test_the_run_trains_the_honest_rows_beside_a_harmful_one(name: str, tmp_path: Path, tiny: Path) -> None:
    """Through preparing, packing and a gradient step; what can be trained of the reply's own text may be."""
    members = [row("mallory", HARMFUL[name]), row("ada", {}), row("ben", {"response": "SELL ACME 5"})]
    batch = make_batch(judged(members, [1.0, 0.6, 0.0]))
    trainee = make_settings(tmp_path, tiny, min_spread=0.0)
    async with opened_backend(trainee) as backend:
        prepared = await backend.prepare(batch)
        assert {one.agent_id for one in prepared.exclusions} <= {"mallory"}
        result = await backend.train(prepared, on_submitted=_submitted)
    assert result.trainable_tokens == prepared.trainable_tokens > 0
    assert result.metrics["ratio_max"] < 1.01
    alone = await prepare(batch, make_trainee(min_spread=0.0))  # where no tokenizer is to be had
    assert {one.agent_id for one in alone.exclusions} >= {"mallory"} or name in TRUSTED_WITHOUT_TOKENIZER


TRUSTED_WITHOUT_TOKENIZER = {"an id out of the vocabulary"}


async def _submitted(_: str) -> None:
    return None


@pytest.mark.parametrize("limit", [1e308, -5, 0, 0.5, 1e5, 2**70, None])
def test_an_evaluations_question_has_room_for_its_answer(limit: float | None) -> None:
    trajectory = make_trajectory(steps=[make_step(calls=[make_call(max_tokens=limit)])])
    point = DecisionPoint(trajectory, 0, 0, make_outcomes())
    assert 1 <= point.max_tokens <= 2048
    if limit is None or limit < 1:
        assert point.max_tokens == DEFAULT_MAX_TOKENS


@pytest.mark.parametrize("limit", ["1e308", "NaN", "-Infinity", "1e999", '"many"', "{}", "[]"])
def test_a_limit_that_is_no_number_costs_nothing(limit: str) -> None:
    text = '[{"llmCalls": [{"userPrompt": "a", "response": "b", "maxTokens": LIMIT}]}]'.replace("LIMIT", limit)
    [step] = decode_steps(text)
    assert 1 <= DecisionPoint(make_trajectory(steps=[step]), 0, 0, make_outcomes()).max_tokens <= 2048


def test_a_limit_that_is_honest_is_kept() -> None:
    trajectory = make_trajectory(steps=[make_step(calls=[make_call(max_tokens=64.0)])])
    assert DecisionPoint(trajectory, 0, 0, make_outcomes()).max_tokens == 64


def test_a_message_without_a_role_is_malformed() -> None:
    for message in ("{}", '{"role": null, "content": "x"}'):
        with pytest.raises(Undecodable, match="a ChatMessage has no role"):
            decode_steps(f'[{{"llmCalls": [{{"messages": [{message}]}}]}}]')


# Whatever the text

_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(min_value=-(2**80), max_value=2**80),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["action", "assistant", "hindsight@step1", "BUY", "\ud800", "\x00", "9" * 5000]),
)
_NAMES = st.sampled_from(
    [field.encode_name for struct in (LLMCall, ChatMessage) for field in msgspec.structs.fields(struct)]
    + ["stepNumber", "environmentState", "llmCalls", "action", "agentPnL", "actionType", "parameters", "function"]
)
_JSON = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_NAMES | st.text(max_size=3), inner, max_size=6),
    max_leaves=20,
)
_CALLS = st.lists(st.dictionaries(_NAMES, _JSON, max_size=6), max_size=3)
_TEXTS = st.one_of(
    st.text(),
    _JSON.map(json.dumps),
    _CALLS.map(lambda calls: json.dumps([{"llmCalls": calls, "action": {"actionType": "BUY"}}])),
    st.integers(1, 3000).map(lambda depth: "[" * depth),
    st.integers(1, 3000).map(lambda depth: '[{"action": {"result": ' + "[" * depth + "]" * depth + "}}]"),
)


def steps_or_reason(text: str) -> list[Any] | None:
    try:
        return decode_steps(text.encode(errors="surrogatepass"))
    except Undecodable:
        return None


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(_TEXTS)
def test_no_text_makes_decoding_raise_anything_but_its_reasons(text: str) -> None:
    steps_or_reason(text)
    role_of(text)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(_CALLS)
async def test_no_row_makes_conversion_raise(calls: list[dict[str, Any]]) -> None:
    steps = steps_or_reason(json.dumps([{"llmCalls": calls}]))
    if steps is None:
        return
    rules = ConversionRules("hindsight", foreign="all")
    members = [RewardedTrajectory(make_trajectory(steps=steps), 1.0, is_above_mean=True)]
    [converted] = await convert_group(members, rules)
    assert (converted.reason is None) == (converted.counts.trainable > 0)
