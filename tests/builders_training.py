"""Builders for training: judged groups and batches of short replies, with the tokens the model would have sampled."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from data_bridge.models import AgentTrajectory
from tests.builders import WINDOW, make_call, make_outcomes, make_step, make_trajectory
from trainer.config.commands import TrainSettings
from trainer.config.settings import settings_from
from trainer.config.training import CpuTrainee
from trainer.run.train import trainee_of
from trainer.train.backends.choose import open_backend
from trainer.types import Batch, Group, JudgedGroup, JudgeIdentity, TrainingBackend, Verdict

IDENTITY = JudgeIdentity("outcome", "outcome", "1", "1", is_llm=False)


def make_settings(home: Path, base_model: Path | str, **fields: Any) -> TrainSettings:
    values: dict[str, Any] = {
        "home": home,
        "base_model": str(base_model),
        "backend": "cpu",
        "threads": 1,
        "lora_rank": 4,
    }
    return settings_from(TrainSettings, **(values | fields))


def make_trainee(home: Path = Path("unused"), base_model: Path | str = "tiny", **fields: Any) -> CpuTrainee:
    """What a backend is handed of such settings."""
    return trainee_of(make_settings(home, base_model, **fields))


def opened_backend(settings: TrainSettings) -> AbstractAsyncContextManager[TrainingBackend]:
    """The backend that the settings ask for, opened as the training does it."""
    return open_backend(trainee_of(settings), settings.backend, settings.promotion, settings.secrets.wandb_api_key)


def replying(agent_id: str, *replies: str, prompt: str = "ACME trades at 100.", **call: Any) -> AgentTrajectory:
    """An agent that gave one reply a step, each to the same prompt for every agent."""
    steps = [
        make_step(number, calls=[make_call(reply, prompt=f"{prompt} Step {number}.", **call)])
        for number, reply in enumerate(replies)
    ]
    return make_trajectory(agent_id, trajectory_id=f"{agent_id}-{prompt}", steps=steps)


def judged(
    trajectories: Sequence[AgentTrajectory], scores: Sequence[float], *, group_id: str = "group-1"
) -> JudgedGroup:
    group = Group(group_id, WINDOW, tuple(trajectories), make_outcomes())
    verdicts = [
        Verdict(trajectory.trajectory_id, score, 0.0, f"explanation of {trajectory.agent_id}")
        for trajectory, score in zip(trajectories, scores, strict=True)
    ]
    return JudgedGroup(group, tuple(verdicts), IDENTITY, verdict_key=f"key-of-{group_id}")


def make_batch(*groups: JudgedGroup, batch_id: str = "batch-1", policy_step: int = 0) -> Batch:
    return Batch(batch_id, "hindsight", policy_step, tuple(groups))


def good_and_bad_batch(batch_id: str = "batch-1", *, policy_step: int = 0, hours: int = 2) -> Batch:
    """Groups of four agents in which BUY was right and HOLD was wrong."""
    groups = []
    for hour in range(hours):
        prompt = f"Hour {hour}: ACME trades at {100 + hour}."
        agents = [
            replying("buyer", "BUY ACME 10", prompt=prompt),
            replying("seller", "SELL ACME 5", prompt=prompt),
            replying("waiter", "WAIT", prompt=prompt),
            replying("holder", "HOLD for now", prompt=prompt),
        ]
        groups.append(judged(agents, [1.0, 0.6, 0.3, 0.0], group_id=f"{batch_id}-{hour}"))
    return make_batch(*groups, batch_id=batch_id, policy_step=policy_step)
