"""Batches as the remote backends get them: small art groups whose turns carry tokens and log-probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.builders import WINDOW, make_call, make_outcomes, make_step, make_trajectory
from trainer.train.backends.art_interface import import_art
from trainer.types import Batch, Group, JudgedGroup, JudgeIdentity, PreparedBatch, Verdict

if TYPE_CHECKING:
    import art


def judged_batch(*, logged_tokens: bool, rewards: tuple[float, ...] = (0.1, 0.9)) -> Batch:
    """A judged batch of one group, before it is prepared; its log has tokens and log-probabilities, or only text."""
    tokens: dict[str, Any] = {}
    if logged_tokens:
        tokens = {"completion_token_ids": [3, 4, 2], "completion_logprobs": [-0.5] * 3}
    trajectories = tuple(
        make_trajectory(f"agent-{number}", steps=[make_step(calls=[make_call(f"BUY ACME {number}", **tokens)])])
        for number in range(len(rewards))
    )
    verdicts = tuple(
        Verdict(trajectory.trajectory_id, reward, 0.0, "")
        for trajectory, reward in zip(trajectories, rewards, strict=True)
    )
    group = Group("group-1", WINDOW, trajectories, make_outcomes())
    identity = JudgeIdentity("outcome", "trading", "1", "1", is_llm=False)
    return Batch("batch-1", "hindsight", 0, (JudgedGroup(group, verdicts, identity, "key"),))


def art_trajectory(reward: float, text: str = "BUY ACME") -> art.Trajectory:
    """One turn, trained: a ``Choice`` with a log-probability for each of its tokens."""
    art = import_art()
    from openai.types.chat.chat_completion import Choice

    tokens = [{"token": f"token_id:{index}", "logprob": -0.5, "top_logprobs": []} for index in range(3, 6)]
    choice = Choice.model_validate(
        {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": text},
            "logprobs": {"content": tokens, "refusal": None},
        }
    )
    return art.Trajectory(
        messages_and_choices=[{"role": "user", "content": "What do you do?"}, choice], reward=reward, metrics={}
    )


def prepared_batch(
    batch_id: str = "batch-1", *, policy_step: int = 0, rewards: tuple[float, ...] = (0.1, 0.9)
) -> PreparedBatch:
    """A batch of one group that could be sent. Batches of different ids have different content."""
    art = import_art()
    group = art.TrajectoryGroup([art_trajectory(reward, f"{batch_id}: {reward}") for reward in rewards])
    return PreparedBatch(Batch(batch_id, "hindsight", policy_step, ()), [group], (), trainable_tokens=3 * len(rewards))
