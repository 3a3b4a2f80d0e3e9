"""Batches as the remote backends get them: small art groups whose turns carry tokens and log-probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.backends.art_import import import_art
from trainer.backends.base import PreparedBatch
from trainer.types import Batch

if TYPE_CHECKING:
    import art


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
