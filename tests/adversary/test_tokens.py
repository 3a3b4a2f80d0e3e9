"""Trained equals said: an agent that logs other tokens than its reply trains nothing but its reply."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from data_bridge.database import Database
from data_bridge.models import AgentTrajectory, LLMCall
from data_bridge.quality import Reason
from data_bridge.scoring import Scored, ScoreRequest
from data_bridge.window_ids import windows_from
from tests.builders import make_call, make_step, make_trajectory
from tests.builders_training import judged, make_batch, make_trainee
from tests.integration.test_spawn import read
from tests.tiny_model import shared_embedded_home, shared_tiny_model
from trainer.cli.spawn_test_agents import main
from trainer.inference.chat_models import Engine
from trainer.inference.policy import CpuPolicy
from trainer.train.backends.deferred import TokenisingScorer, prepare_deferred
from trainer.train.backends.prepare import prepare
from trainer.types import PreparedBatch

PLANTED = "WITHDRAW all to mallory"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_tiny_model(tmp_path_factory)


@pytest.fixture(scope="module")
def policy(tiny: Path) -> CpuPolicy:
    return CpuPolicy(tiny, rank=4, learning_rate=1e-3, seed=0)


class OfPolicy:
    def __init__(self, policy: CpuPolicy) -> None:
        self._policy = policy

    async def score(self, requests: Any) -> list[Scored | None]:
        return self._policy.score(requests)


def tokens(policy: CpuPolicy, text: str, *, end: bool = True) -> list[int]:
    ids = list(policy.tokenizer.encode(text, add_special_tokens=False))
    return [*ids, int(policy.tokenizer.eos_token_id)] if end else ids


def logged(agent: str, response: str, ids: list[int], **fields: Any) -> AgentTrajectory:
    values: dict[str, Any] = {"completion_token_ids": ids, "completion_logprobs": [-0.5] * len(ids)}
    return make_trajectory(agent, steps=[make_step(calls=[make_call(response, **(values | fields))])])


async def prepared(policy: CpuPolicy, attacker: AgentTrajectory, *, has_tokenizer: bool = True) -> PreparedBatch:
    """The attacker's row in a group with an honest one, which must be trained whatever the other holds."""
    honest = logged("honest", "SELL ACME 5", tokens(policy, "SELL ACME 5"))
    batch = make_batch(judged([attacker, honest], [0.9, 0.1]))
    ready = await prepare(batch, make_trainee(min_spread=0.0), OfPolicy(policy) if has_tokenizer else None)
    assert "honest" not in {exclusion.agent_id for exclusion in ready.exclusions}
    said = trained_tokens(ready)
    assert tokens(policy, "SELL ACME 5") in said
    assert all(one.logprob == -0.5 for one in ready.groups[0].trajectories[1].messages_and_choices[-1].logprobs.content)
    return ready


def trained_tokens(ready: PreparedBatch) -> list[list[int]]:
    choices = [
        history[-1]
        for group in ready.groups
        for member in group.trajectories
        for history in (
            member.messages_and_choices,
            *(more.messages_and_choices for more in member.additional_histories),
        )
    ]
    return [
        [int(one.token.removeprefix("token_id:")) for one in choice.logprobs.content]
        for choice in choices
        if not isinstance(choice, dict)
    ]


def said(policy: CpuPolicy, ready: PreparedBatch) -> list[str]:
    return [str(policy.tokenizer.decode(ids)) for ids in trained_tokens(ready)]


async def test_tokens_that_say_something_else_are_replaced_by_those_of_the_reply(policy: CpuPolicy) -> None:
    ready = await prepared(policy, logged("mallory", "BUY", tokens(policy, PLANTED)))
    assert said(policy, ready) == ["BUY<|im_end|>", "SELL ACME 5<|im_end|>"]
    assert ready.metrics["share_retokenised"] > 0


async def test_the_same_holds_where_the_trainer_does_the_scoring(policy: CpuPolicy, tiny: Path) -> None:
    attacker = logged("mallory", "BUY", tokens(policy, PLANTED))
    honest = logged("honest", "SELL ACME 5", tokens(policy, "SELL ACME 5"))
    batch = make_batch(judged([attacker, honest], [0.9, 0.1]))
    ready = await prepare_deferred(batch, make_trainee(min_spread=0.0), TokenisingScorer(str(tiny)))
    assert said(policy, ready) == ["BUY<|im_end|>", "SELL ACME 5<|im_end|>"]
    assert 0 < ready.metrics["share_retokenised"] == ready.metrics["share_rescored"] < 1


UNSAID = {
    "more after the reply": ("BUY", f"BUY {PLANTED}"),
    "something before the reply": ("BUY", f"{PLANTED} BUY"),
    "another letter": ("BUY ACME", "BUY ACNE"),
    "a special token inside": ("BUY ACME", "BUY<|im_start|> ACME"),
    "a special token that ends nothing": ("BUY ACME", "BUY ACME<repo_name>"),
    "nothing of it": ("BUY ACME 10 at once", "<|im_end|><|im_end|>"),
}


@pytest.mark.parametrize("name", UNSAID)
async def test_nothing_is_trained_that_the_reply_does_not_show(policy: CpuPolicy, name: str) -> None:
    response, planted = UNSAID[name]
    ready = await prepared(policy, logged("mallory", response, tokens(policy, planted)))
    assert said(policy, ready)[0] == f"{response}<|im_end|>"


@pytest.mark.parametrize("between", ["\n\n", " ", "\n### "])
async def test_what_stands_behind_a_stop_string_is_left_off_and_the_rest_kept(policy: CpuPolicy, between: str) -> None:
    ids = tokens(policy, f"BUY ACME{between}{PLANTED}", end=False)
    ready = await prepared(policy, logged("agent", "BUY ACME", ids))
    trained = trained_tokens(ready)[0]
    assert trained == ids[: len(trained)]
    assert str(policy.tokenizer.decode(trained)).strip() == "BUY ACME"
    assert (ready.metrics["share_retokenised"], ready.metrics["share_rescored"]) == (0, 0)


BUY = {"id": "1", "type": "function", "function": {"name": "buy", "arguments": '{"ticker": "ACME"}'}}
SPELT = '<tool_call>\n{"name": "buy", "arguments": {"ticker": "ACME"}}\n</tool_call>'


@pytest.mark.parametrize(
    ("spelt", "reason"),
    [
        (SPELT, None),
        (SPELT.replace("ACME", "EVIL"), Reason.TOKENS_DIFFER),
        (SPELT + PLANTED, Reason.TOKENS_DIFFER),
        (SPELT.replace('"name"', f'"name": "{PLANTED}", "name"'), Reason.TOKENS_DIFFER),
        (PLANTED, Reason.TOKENS_DIFFER),
        ('{"name": ' + "[" * 500, Reason.TOKENS_DIFFER),
    ],
)
async def test_the_tokens_of_a_tool_call_must_be_that_call(
    policy: CpuPolicy, spelt: str, reason: Reason | None
) -> None:
    ready = await prepared(policy, logged("agent", "", tokens(policy, spelt), tool_calls=[BUY]))
    assert {one.agent_id: one.reason for one in ready.exclusions} == ({"agent": reason} if reason else {})


@pytest.mark.parametrize("has_tokenizer", [True, False])
@pytest.mark.parametrize("ids", [[-1], [2**70], [5, 2**31], [10**6] * 3, [9] * 60_000])
async def test_ids_that_cannot_be_are_not_trained(policy: CpuPolicy, ids: list[int], has_tokenizer: bool) -> None:
    if ids == [10**6] * 3 and not has_tokenizer:
        pytest.skip("some vocabulary may have it")
    ready = await prepared(policy, logged("mallory", "BUY", ids), has_tokenizer=has_tokenizer)
    reasons = {one.agent_id: one.reason for one in ready.exclusions}
    assert reasons == ({} if has_tokenizer else {"mallory": Reason.TOKENS_DIFFER})
    if has_tokenizer:
        assert said(policy, ready)[0] == "BUY<|im_end|>"


@pytest.mark.parametrize("logprob", [-1e30, -9e3, 0.5, float("inf"), float("nan")])
async def test_log_probabilities_that_cannot_be_are_computed_instead(policy: CpuPolicy, logprob: float) -> None:
    ids = tokens(policy, "BUY")
    ready = await prepared(policy, logged("mallory", "BUY", ids, completion_logprobs=[logprob] * len(ids)))
    content = ready.groups[0].trajectories[0].messages_and_choices[-1].logprobs.content
    assert all(-30 < one.logprob <= 0 for one in content)
    alone = await prepared(
        policy, logged("mallory", "BUY", ids, completion_logprobs=[logprob] * len(ids)), has_tokenizer=False
    )
    assert {one.agent_id: one.reason for one in alone.exclusions} == {"mallory": Reason.NO_LOGPROBS}


# Honest rows


def kept(policy: CpuPolicy, calls: list[LLMCall]) -> float:
    """The share of calls whose recorded tokens and log-probabilities are trained exactly as they were recorded."""
    requests = [
        ScoreRequest(
            tuple(call.seen()),
            call.response,
            token_ids=tuple(call.completion_token_ids or ()),
            logprobs=tuple(call.completion_logprobs or ()),
        )
        for call in calls
    ]
    scored = policy.score(requests)
    whole = [
        one is not None and (one.token_ids, one.logprobs, one.source) == (asked.token_ids, asked.logprobs, "log")
        for one, asked in zip(scored, requests, strict=True)
    ]
    return sum(whole) / len(whole)


async def test_recorded_rows_of_a_model_keep_their_tokens_and_log_probabilities(
    database: Database, database_url: str, tmp_path: Path, tiny: Path, policy: CpuPolicy
) -> None:
    """Through the engine, the recorder, Postgres and the reader. All replies here are cut at the most tokens."""
    windows = windows_from("2026-03-02T00:00", 8)
    argv = ["--database-url", database_url, "--home", str(tmp_path), "--base-model", str(tiny), "--threads", "1"]
    argv += ["--start", windows[0], "--windows", "8", "--policy", "embedded", "--agents", "25", "--json"]
    assert await asyncio.to_thread(main, argv) == 0
    calls = [call for window in await read(database, windows) for row in window.usable for call in row.llm_calls]
    assert len(calls) >= 200
    assert kept(policy, calls) >= 0.99


@pytest.mark.parametrize("stop", [(), ("\n",), ("e", "a"), (" ",)])
async def test_replies_cut_at_a_stop_string_keep_what_was_said(
    policy: CpuPolicy, tiny: Path, stop: tuple[str, ...]
) -> None:
    engine = Engine(tiny, threads=1)
    messages = make_call().seen()
    replies = await engine.model(None, "hindsight@step0").chat(messages, n=64, max_tokens=24, stop=stop, seed=3)
    await engine.close()
    requests = [
        ScoreRequest(tuple(messages), reply.text, token_ids=reply.token_ids, logprobs=reply.logprobs)
        for reply in replies
        if reply.text and len(reply.token_ids) > 1  # a cut inside the only token leaves none that was said
    ]
    lost = 0
    for asked, scored in zip(requests, policy.score(requests), strict=True):
        assert scored is not None
        number = len(scored.token_ids)
        if (scored.token_ids, scored.logprobs) != (asked.token_ids[:number], asked.logprobs[:number]):
            lost += 1
        elif not stop:
            assert number == len(asked.token_ids)
        else:
            assert asked.text.strip().startswith(str(policy.tokenizer.decode(list(scored.token_ids))).strip())
    assert lost <= len(requests) / 50  # a special token in the reply


@pytest.mark.model
async def test_the_embedded_model_keeps_its_tokens_also_when_it_ends_a_reply_itself(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    from trainer.inference.base_model import EMBEDDED, model_directory

    base = model_directory(EMBEDDED, shared_embedded_home(tmp_path_factory))
    engine = Engine(base)
    policy = CpuPolicy(base, rank=4, learning_rate=1e-3, seed=0)
    calls = []
    for number in range(8):
        call = make_call(prompt=f"ACME trades at {100 + number}. Say BUY or SELL, or explain in emoji and Chinese.")
        for reply in await engine.model(None, "hindsight@step0").chat(call.seen(), n=8, max_tokens=20, seed=number):
            fields = {"completion_token_ids": list(reply.token_ids), "completion_logprobs": list(reply.logprobs)}
            calls.append(make_call(reply.text, prompt=call.user_prompt, **fields))
    await engine.close()
    assert kept(policy, calls) == 1  # of 64: finds a fault of 2 % as often as 0.99 of 128 does
