"""What a row claims about its own probability cannot make its tokens outweigh those of all others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from data_bridge.models import AgentTrajectory
from data_bridge.scoring import ScoreRequest
from tests.builders import make_call, make_step, make_trajectory
from tests.builders_training import judged, make_batch, make_settings, make_trainee, opened_backend
from tests.tiny_model import shared_tiny_model
from trainer.inference.policy import CpuPolicy
from trainer.train.backends.art_interface import largest_ratio_of, local_arguments, serverless_arguments


def logged(agent: str, policy: CpuPolicy, reply: str, claimed: float | None) -> AgentTrajectory:
    """A row with the tokens of its reply, and the log-probabilities of the policy or those that it claims."""
    call = make_call(reply)
    [scored] = policy.score([ScoreRequest(tuple(call.seen()), reply)])
    assert scored is not None
    logprobs = scored.logprobs if claimed is None else [claimed] * len(scored.token_ids)
    fields: dict[str, Any] = {"completion_token_ids": list(scored.token_ids), "completion_logprobs": list(logprobs)}
    return make_trajectory(agent, trajectory_id=agent, steps=[make_step(calls=[make_call(reply, **fields)])])


async def _submitted(_: str) -> None:
    return None


async def gain(home: Path, tiny: Path, claimed: float | None, **options: Any) -> tuple[float, dict[str, float]]:
    """How much likelier the good reply is after a step in which another, bad one claims ``claimed``."""
    async with opened_backend(make_settings(home, tiny, min_spread=0.0, **options)) as backend:
        policy: CpuPolicy = backend._backend._loaded.policy  # type: ignore[attr-defined]
        rows = [
            logged("good", policy, "BUY ACME 10", None),
            logged("fair", policy, "WAIT", None),
            logged("mallory", policy, "SELL everything now", claimed),
        ]
        good = ScoreRequest(tuple(make_call().seen()), "BUY ACME 10")
        before = policy.score([good])[0]
        prepared = await backend.prepare(make_batch(judged(rows, [1.0, 0.5, 0.0])))
        result = await backend.train(prepared, on_submitted=_submitted)
        after = policy.score([good])[0]
        assert before is not None
        assert after is not None
        return sum(after.logprobs) - sum(before.logprobs), result.metrics


@pytest.mark.parametrize(("claimed", "level"), [(-29.0, "token"), (-18.0, "sequence")])
async def test_a_claim_does_not_take_the_step_from_the_others(
    claimed: float, level: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Before, the ratio was e^18 or more, and clipping the gradient's norm left nothing of the other rows' gradient."""
    tiny = shared_tiny_model(tmp_path_factory)
    honest, _ = await gain(tmp_path_factory.mktemp("honest"), tiny, None, importance_level=level)
    attacked, metrics = await gain(tmp_path_factory.mktemp("attacked"), tiny, claimed, importance_level=level)
    assert honest > 0
    assert attacked > honest / 2
    assert abs(metrics["loss"]) < 3
    assert metrics["clip_share"] > 0


def test_every_backend_has_the_bound_and_a_wider_clip_range_keeps_its_room() -> None:
    def of(**fields: Any) -> Any:
        return make_trainee(**fields).training

    name = "max_negative_advantage_importance_sampling_weight"
    assert local_arguments(of())[name] == serverless_arguments(of())[name] == 3.0
    assert largest_ratio_of(of(epsilon_high=4.0)) == 5.0
    assert largest_ratio_of(of(loss="cispo")) is None  # which bounds the ratio itself, in both directions
