"""Who is compared: candidate, incumbent and base model opened where each of them runs, and the baseline."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from data_bridge.database import Database
from trainer.config.sections import EvaluateSettings, TrainSettings
from trainer.evaluate.blind_trial import LoggedPolicy, ModelPolicy, Policy
from trainer.evaluate.divergence import SampledReplies, divergence_from_base
from trainer.evaluate.evaluation import MeasureKL
from trainer.evaluate.simulated_replay import NewsScript, SimulatedReplay
from trainer.evidence import Role
from trainer.inference.base_model import model_directory
from trainer.inference.open import ARTIFACT, EndpointModel, adapter_of, open_chat_model, open_engine
from trainer.inference.serving import serving as serving_of
from trainer.ledger.checkpoints import find_checkpoint
from trainer.types import ChatModel, Checkpoint, Release

Settings = TrainSettings | EvaluateSettings


async def open_contestants(
    stack: AsyncExitStack,
    database: Database,
    settings: Settings,
    candidate: Release,
    incumbent: Release | None,
    replay: SimulatedReplay | None,
) -> dict[Role, Policy]:
    """The base model stands in for an incumbent that there is not; it is asked once all the same."""
    base = await find_checkpoint(database, candidate.model, 0)
    wanted = {
        Role.CANDIDATE: candidate.checkpoint,
        Role.INCUMBENT: incumbent.checkpoint if incumbent is not None else base,
    }
    if incumbent is not None:
        wanted[Role.BASE] = base
    engine = None
    if any(checkpoint.backend == "cpu" for checkpoint in wanted.values()):
        engine = await stack.enter_async_context(open_engine(settings))
    open_local = partial(open_chat_model, settings=settings, engine=engine)

    async def open_model(checkpoint: Checkpoint) -> ChatModel:
        if checkpoint.backend == "cpu" or checkpoint.location.startswith(ARTIFACT):
            return await stack.enter_async_context(open_local(checkpoint))
        at = serving_of(checkpoint, settings)
        model = EndpointModel(at.base_url, at.model, "none", name=checkpoint.name)
        stack.push_async_callback(model.close)
        return model

    policies: dict[Role, Policy] = {
        role: ModelPolicy(await open_model(checkpoint)) for role, checkpoint in wanted.items()
    }
    policies[Role.BASELINE] = NewsScript(replay) if replay is not None else LoggedPolicy()
    return policies


def kl_meter(candidate: Release, base_model: str, home: Path) -> MeasureKL | None:
    """Measures the candidate's KL from the base model; None where it does not run on this machine."""
    if candidate.checkpoint.backend != "cpu":
        return None
    base, adapter = model_directory(base_model, home), adapter_of(candidate.checkpoint)

    async def measure(answered: Sequence[SampledReplies]) -> float | None:
        return await asyncio.to_thread(divergence_from_base, base, adapter, answered)

    return measure
