"""Where the trainer scores: what ART is told about stale and unlogged replies, and what it makes of them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from data_bridge.models import AgentTrajectory
from data_bridge.quality import Reason
from tests.builders_training import judged, make_batch, make_trainee, replying
from tests.tiny_model import shared_tiny_model
from trainer.inference.base_model import load_tokenizer
from trainer.train.backends.deferred import TokenisingScorer, decoupled, prepare_deferred, prepare_logged
from trainer.types import PreparedBatch


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_tiny_model(tmp_path_factory)


@pytest.fixture(scope="module")
def tokenizer(tiny: Path) -> Any:
    return load_tokenizer(tiny)


def logged(tokenizer: Any, agent: str, reply: str, model: str = "hindsight@step0") -> AgentTrajectory:
    ids = [*tokenizer.encode(reply, add_special_tokens=False), tokenizer.eos_token_id]
    return replying(agent, reply, model=model, completion_token_ids=ids, completion_logprobs=[-0.5] * len(ids))


async def deferred(tiny: Path, members: list[AgentTrajectory], policy_step: int) -> PreparedBatch:
    batch = make_batch(judged(members, [1.0, 0.4, 0.1][: len(members)]), policy_step=policy_step)
    return await prepare_deferred(batch, make_trainee(min_spread=0.0), TokenisingScorer(str(tiny), marks=True))


def logprobs(prepared: PreparedBatch, member: int) -> list[float]:
    return [one.logprob for one in prepared.groups[0].trajectories[member].messages_and_choices[-1].logprobs.content]


async def test_a_fresh_log_is_trained_as_it_is(tiny: Path, tokenizer: Any) -> None:
    prepared = await deferred(tiny, [logged(tokenizer, "a", "BUY"), logged(tokenizer, "b", "SELL")], 4)
    assert decoupled(prepared, make_trainee().training) == {"precalculate_logprobs": False}


async def test_a_stale_log_is_the_behaviour_of_what_the_trainer_scores(tiny: Path, tokenizer: Any) -> None:
    prepared = await deferred(tiny, [logged(tokenizer, "a", "BUY"), logged(tokenizer, "b", "SELL")], 5)
    told = decoupled(prepared, make_trainee().training)
    assert told == {"precalculate_logprobs": True, "truncated_importance_sampling": 1.3}
    assert set(logprobs(prepared, 0)) == {-0.5}


async def test_beside_a_log_a_reply_without_log_probabilities_enters_no_ratio(tiny: Path, tokenizer: Any) -> None:
    from art.preprocessing.tokenize import tokenize_trajectory_groups

    prepared = await deferred(tiny, [replying("a", "BUY", model="gpt-9"), logged(tokenizer, "b", "SELL")], 0)
    assert decoupled(prepared, make_trainee().training)["truncated_importance_sampling"] == 1.3
    assert all(map(math.isnan, logprobs(prepared, 0)))
    assert set(logprobs(prepared, 1)) == {-0.5}
    results = tokenize_trajectory_groups(
        tokenizer, prepared.groups, allow_training_without_logprobs=False, scale_rewards=False
    )
    assert sum(sum(one.assistant_mask) for one in results) == prepared.trainable_tokens  # all of them are trained


async def test_a_group_without_any_still_parts_where_its_replies_part(tiny: Path, tokenizer: Any) -> None:
    """ART would take what replies have in common for a part of the prompt if none had a log-probability there."""
    members = [replying("a", "BUY ACME 1", model="gpt-9"), replying("b", "BUY ACME 2", model="hindsight")]
    batch = make_batch(
        judged(members, [1.0, 0.0], group_id="unlogged"),
        judged([logged(tokenizer, "c", "WAIT"), logged(tokenizer, "d", "HOLD")], [1.0, 0.0], group_id="logged"),
    )
    prepared = await prepare_deferred(batch, make_trainee(min_spread=0.0), TokenisingScorer(str(tiny), marks=True))
    assert "truncated_importance_sampling" in decoupled(prepared, make_trainee().training)
    first, *rest = logprobs(prepared, 0)
    assert first == 0.0
    assert all(map(math.isnan, rest))


async def test_without_any_log_the_trainer_only_scores(tiny: Path) -> None:
    prepared = await deferred(tiny, [replying("a", "BUY"), replying("b", "SELL")], 9)
    assert decoupled(prepared, make_trainee().training) == {"precalculate_logprobs": True}


async def test_a_trainer_that_would_forget_the_log_gets_no_reply_to_score_beside_stale_ones(
    tiny: Path, tokenizer: Any
) -> None:
    members = [logged(tokenizer, "a", "BUY"), logged(tokenizer, "b", "SELL"), replying("c", "HOLD")]
    scorer = TokenisingScorer(str(tiny))
    for policy_step, left_out in ((4, []), (5, [("c", Reason.NO_LOGPROBS)])):
        batch = make_batch(judged(members, [1.0, 0.4, 0.1]), policy_step=policy_step)
        prepared = await prepare_logged(batch, make_trainee(min_spread=0.0), scorer)
        assert [(one.agent_id, one.reason) for one in prepared.exclusions] == left_out
