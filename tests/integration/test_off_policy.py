"""Stale and off-temperature replies on a tiny model: what is kept, what is computed, what is masked and counted."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch

from data_bridge.art_converter import BEHAVIOUR
from data_bridge.authorship import RAW, Sampling
from data_bridge.models import AgentTrajectory
from data_bridge.quality import Reason
from data_bridge.scoring import Scored, ScoreRequest
from tests.builders import make_call, make_step, make_trajectory
from tests.builders_training import judged, make_batch, make_trainee
from tests.tiny_model import shared_tiny_model
from trainer.inference.rescoring import drawn_logprobs
from trainer.train.backends.correction import BEHAVIOUR_INPUT, DEFAULT_REGION
from trainer.train.backends.cpu import CpuBackend
from trainer.train.backends.packing import pack
from trainer.types import PreparedBatch

REPLIES = ("BUY ACME 10", "SELL ACME 5", "WAIT")
SCORES = (1.0, 0.4, 0.1)


async def receipt(_: str) -> None:
    """The ledger's part, which these tests do not need."""


@pytest.fixture
async def backend(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[CpuBackend]:
    trainee = make_trainee(tmp_path, shared_tiny_model(tmp_path_factory), learning_rate=5e-3, min_spread=0.0)
    backend = CpuBackend(trainee, "http://127.0.0.1:1/v1")
    await backend.open()
    yield backend
    await backend.close()


async def scored(backend: CpuBackend, reply: str, **fields: Any) -> Scored:
    request = ScoreRequest(tuple(make_call(reply).seen()), reply, **fields)
    [one] = await backend._backend.scorer.score([request])
    assert one is not None
    return one


async def logged(backend: CpuBackend, agent: str, reply: str, model: str, **call: Any) -> AgentTrajectory:
    """A row with the tokens of its reply and what the current policy says of them."""
    one = await scored(backend, reply)
    tokens: dict[str, Any] = {"completion_token_ids": list(one.token_ids), "completion_logprobs": list(one.logprobs)}
    steps = [make_step(calls=[make_call(reply, model=model, **(tokens | call))])]
    return make_trajectory(agent, trajectory_id=agent, steps=steps)


async def rows(backend: CpuBackend, model: str = "hindsight@step0", **call: Any) -> list[AgentTrajectory]:
    return [await logged(backend, f"agent-{place}", reply, model, **call) for place, reply in enumerate(REPLIES)]


async def train(backend: CpuBackend, members: list[AgentTrajectory], number: int = 0) -> dict[str, float]:
    prepared = await prepare(backend, members, policy_step=number)
    return (await backend.train(prepared, on_submitted=receipt)).metrics


async def prepare(backend: CpuBackend, members: list[AgentTrajectory], policy_step: int) -> PreparedBatch:
    batch = make_batch(judged(members, SCORES), batch_id=f"batch-{policy_step}", policy_step=policy_step)
    return await backend.prepare(batch)


def then_of(prepared: PreparedBatch, member: int) -> list[float | None] | None:
    """What the first reply of a member carries of its behaviour policy."""
    tokens = prepared.groups[0].trajectories[member].messages_and_choices[-1].logprobs.content
    extras: list[Any] = [(token.model_extra or {}).get("extra_logprobs") for token in tokens]
    return None if extras[0] is None else [extra[BEHAVIOUR] for extra in extras]


async def test_a_log_is_trained_as_before_while_it_is_fresh(backend: CpuBackend) -> None:
    members = await rows(backend)
    prepared = await prepare(backend, members, policy_step=4)
    assert [then_of(prepared, place) for place in range(3)] == [None] * 3
    sequences = pack(prepared.groups, backend._backend._loaded.policy.tokenizer, scale_rewards=False, seed="0")
    assert all(BEHAVIOUR_INPUT not in sequence.inputs for sequence in sequences)


async def test_a_stale_log_keeps_what_it_says_and_is_weighted_by_what_has_changed_since(backend: CpuBackend) -> None:
    members = await rows(backend)
    for step in range(5):
        await train(backend, members, step)
    prepared = await prepare(backend, members, policy_step=5)
    assert prepared.metrics["share_stale"] == 1
    assert prepared.metrics["share_rescored"] == 0
    for place, reply in enumerate(REPLIES):
        now, call = await scored(backend, reply), members[place].llm_calls[0]
        tokens = prepared.groups[0].trajectories[place].messages_and_choices[-1].logprobs.content
        assert [token.logprob for token in tokens] == pytest.approx(now.logprobs, abs=1e-5)
        assert then_of(prepared, place) == call.completion_logprobs
    metrics = (await backend.train(prepared, on_submitted=receipt)).metrics
    assert metrics["ratio"] == pytest.approx(1.0, abs=1e-4)  # of the update itself, around where it starts
    assert metrics["share_ratio_one"] == 0
    assert metrics["kl_behaviour"] > 1e-4
    assert metrics["behaviour_weight"] != pytest.approx(1.0, abs=1e-4)


async def test_tokens_that_have_moved_far_in_the_direction_they_are_pushed_are_masked(backend: CpuBackend) -> None:
    """The log is changed instead of the policy: tokens a nat likelier or less likely than when they were sampled."""
    members = []
    for place, (reply, moved) in enumerate(zip(REPLIES, (1.0, 1.0, -1.0), strict=True)):
        one = await scored(backend, reply)
        then = [value - moved for value in one.logprobs]
        members.append(await logged(backend, f"agent-{place}", reply, "hindsight@step0", completion_logprobs=then))
    prepared = await prepare(backend, members, policy_step=9)
    packed = pack(
        prepared.groups,
        backend._backend._loaded.policy.tokenizer,
        scale_rewards=False,
        seed="0",
        region=DEFAULT_REGION,
    )
    for sequence in packed:
        inputs = sequence.inputs
        trained, good = inputs["assistant_mask"], inputs["advantages"] > 0
        moved = inputs["logprobs"] - inputs[BEHAVIOUR_INPUT]
        expected = trained & (((moved > 0) & good) | ((moved < 0) & ~good))
        assert torch.equal(inputs["pushed"], expected)
        assert bool(((inputs["weights"] == 0) == (expected | ~trained)).all())
    assert sum(int(sequence.inputs["pushed"].sum()) for sequence in packed) > 0
    metrics = (await backend.train(prepared, on_submitted=receipt)).metrics
    assert 0 < metrics["share_pushed"] < 1
    assert metrics["share_truncated"] > 0  # e is more than the largest weight
    assert metrics["share_hopeless"] == 0


async def test_a_reply_that_has_nothing_to_say_to_this_policy_is_left_out_as_stale(backend: CpuBackend) -> None:
    members = await rows(backend)
    claimed = [-29.0] * len(members[2].llm_calls[0].completion_logprobs or ())
    members[2] = await logged(backend, "mallory", "WAIT", "hindsight@step0", completion_logprobs=claimed)
    prepared = await prepare(backend, members, policy_step=9)
    assert [(one.agent_id, one.reason) for one in prepared.exclusions] == [("mallory", Reason.STALE)]


async def test_another_models_tokens_enter_no_ratio(backend: CpuBackend) -> None:
    members = await rows(backend)
    members[0] = await logged(backend, "foreign", REPLIES[0], "gpt-9", completion_logprobs=None)
    for step in range(5):
        await train(backend, await rows(backend, "hindsight@step5"), step)
    prepared = await prepare(backend, members, policy_step=5)
    assert then_of(prepared, 0) == [None] * prepared_tokens(prepared, 0)
    metrics = (await backend.train(prepared, on_submitted=receipt)).metrics
    assert metrics["share_foreign"] > 0
    assert metrics["share_ratio_one"] == pytest.approx(metrics["share_foreign"])


def prepared_tokens(prepared: PreparedBatch, member: int) -> int:
    return len(prepared.groups[0].trajectories[member].messages_and_choices[-1].logprobs.content)


async def test_agents_on_the_base_model_are_step_0_with_their_bad_replies_and_their_tokens(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tiny = shared_tiny_model(tmp_path_factory)
    backend = CpuBackend(
        make_trainee(tmp_path, tiny, min_spread=0.0, base_names=("our-base",)), "http://127.0.0.1:1/v1"
    )
    await backend.open()
    for name in (str(tiny), tiny.name.upper(), "team/our-base"):
        prepared = await prepare(backend, await rows(backend, name), policy_step=0)
        assert prepared.exclusions == ()
        assert (prepared.metrics["share_foreign"], prepared.metrics["share_rescored"]) == (0, 0), name
    await backend.close()


# Temperature and top-p


def test_temperature_and_top_p_make_the_distribution_that_was_sampled_from() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]])).repeat(4, 1)
    every = torch.arange(4)
    assert drawn_logprobs(logits, every, RAW).exp().tolist() == pytest.approx([0.5, 0.3, 0.15, 0.05])
    halved = drawn_logprobs(logits, every, Sampling(0, 0.5)).exp()
    squares = torch.tensor([0.25, 0.09, 0.0225, 0.0025])
    assert halved.tolist() == pytest.approx((squares / squares.sum()).tolist())
    top = drawn_logprobs(logits, every, Sampling(0, 1.0, 0.7)).exp()
    assert top.tolist() == pytest.approx([0.625, 0.375, 0.15, 0.05])  # the last two cannot have been drawn


async def test_replies_sampled_at_another_temperature_get_the_log_probabilities_of_their_sampling(
    backend: CpuBackend,
) -> None:
    members = await rows(backend, temperature=0.5, top_p=0.9)
    before = {reply: await scored(backend, reply) for reply in REPLIES}
    for step in range(2):
        await train(backend, await rows(backend), step)
    prepared = await prepare(backend, members, policy_step=2)
    assert prepared.metrics["share_corrected"] == 1
    assert (prepared.metrics["share_off_temperature"], prepared.metrics["share_off_top_p"]) == (0, 0)
    tokens = prepared.groups[0].trajectories[0].messages_and_choices[-1].logprobs.content
    assert [token.logprob for token in tokens] == pytest.approx(
        before[REPLIES[0]].logprobs, abs=1e-5
    )  # fresh: the log's
    cold = await scored(backend, REPLIES[0], sampling=Sampling(0, 0.5, 0.9))
    assert then_of(prepared, 0) == pytest.approx(list(cold.behaviour), abs=1e-5)
    assert then_of(prepared, 0) != pytest.approx(before[REPLIES[0]].logprobs, abs=1e-3)


async def test_what_cannot_be_corrected_is_counted_by_reason(backend: CpuBackend) -> None:
    unknown = await prepare(backend, await rows(backend, "hindsight", temperature=0.5), policy_step=0)
    assert (unknown.metrics["share_off_temperature"], unknown.metrics["share_off_top_p"]) == (1, 0)
    gone = await prepare(backend, await rows(backend, "hindsight@step3", top_p=0.5), policy_step=4)
    assert (gone.metrics["share_off_temperature"], gone.metrics["share_off_top_p"]) == (0, 1)
    assert gone.metrics["share_corrected"] == 0


async def test_greedy_replies_were_certain(backend: CpuBackend) -> None:
    assert set((await scored(backend, REPLIES[0], sampling=Sampling(0, 0.0))).behaviour) == {0.0}


async def test_a_reply_of_a_kept_checkpoint_without_log_probabilities_gets_those_of_that_checkpoint(
    backend: CpuBackend,
) -> None:
    before = await scored(backend, REPLIES[0])
    for step in range(2):
        await train(backend, await rows(backend), step)
    after = await scored(backend, REPLIES[0])
    prepared = await prepare(backend, await rows(backend, completion_logprobs=None), policy_step=2)
    assert then_of(prepared, 0) == pytest.approx(before.logprobs, abs=1e-5)
    tokens = prepared.groups[0].trajectories[0].messages_and_choices[-1].logprobs.content
    assert [token.logprob for token in tokens] == pytest.approx(after.logprobs, abs=1e-5)
    assert math.isclose(prepared.metrics["share_rescored"], 1)
    again = await scored(backend, REPLIES[0])
    assert again.logprobs == after.logprobs  # the policy is as it was


# The end of a reply


@pytest.mark.parametrize(
    ("call", "ends"),
    [
        ({}, True),
        ({"finish_reason": "length"}, False),
        ({"completion_tokens": 64}, False),
        ({"max_tokens": 4}, False),  # only the number of tokens tells
        ({"max_tokens": 4, "finish_reason": "stop"}, True),
    ],
)
async def test_a_reply_cut_at_its_limit_is_not_trained_to_end_there(
    backend: CpuBackend, call: dict[str, Any], ends: bool
) -> None:
    end = backend._backend._loaded.policy.tokenizer.eos_token_id
    text = [await logged(backend, f"agent-{place}", reply, "gpt-9", **call) for place, reply in enumerate(REPLIES)]
    prepared = await prepare(backend, text, policy_step=0)
    tokens = prepared.groups[0].trajectories[0].messages_and_choices[-1].logprobs.content
    assert (tokens[-1].token == f"token_id:{end}") is ends


async def test_a_logged_end_that_the_log_itself_denies_is_left_off(backend: CpuBackend) -> None:
    end = backend._backend._loaded.policy.tokenizer.eos_token_id
    whole = await prepare(backend, await rows(backend), policy_step=0)
    denied = await prepare(backend, await rows(backend, finish_reason="length"), policy_step=0)
    assert whole.trainable_tokens == denied.trainable_tokens + len(REPLIES)
    tokens = denied.groups[0].trajectories[0].messages_and_choices[-1].logprobs.content
    assert f"token_id:{end}" not in [token.token for token in tokens]
