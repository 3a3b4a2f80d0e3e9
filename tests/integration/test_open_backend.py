"""Opening the chosen backend through the one door that the pipeline uses."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from tests.builders_art import judged_batch
from tests.builders_training import opened_backend
from tests.fakes.wandb_server import wandb_server
from tests.tiny_model import shared_tiny_model
from trainer.config.commands import TrainSettings
from trainer.config.settings import settings_from
from trainer.train.backends.choose import choose_backend
from trainer.types import Checkpoint

serving = Checkpoint.served_at


async def ignore(receipt: str) -> None:
    """Stands in for a ledger."""


async def test_the_cpu_backend_comes_opened(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    base_model = str(shared_tiny_model(tmp_path_factory))
    settings = settings_from(TrainSettings, home=tmp_path / "home", base_model=base_model, backend="cpu", threads=1)
    async with opened_backend(settings) as backend:
        assert (backend.name, await backend.current_step()) == ("cpu", 0)


async def test_a_serverless_checkpoint_answers_where_its_agents_are_told_to_ask(tmp_path: Path) -> None:
    from openai import AsyncOpenAI

    with wandb_server() as server:
        key = SecretStr(server.key)
        settings = settings_from(TrainSettings, home=tmp_path, wandb_api_key=key, wandb_base_url=server.url)
        assert choose_backend(settings.backend, settings.model, key).name == "serverless"
        async with opened_backend(settings) as backend:
            prepared = await backend.prepare(judged_batch(logged_tokens=True))
            checkpoint = (await backend.train(prepared, on_submitted=ignore)).checkpoint
        where = serving(checkpoint, settings.promotion)
        async with AsyncOpenAI(base_url=where.base_url, api_key=server.key) as client:
            reply = await client.chat.completions.create(
                model=where.model, messages=[{"role": "user", "content": "What do you do?"}], logprobs=True
            )
        assert reply.model == "wandb-artifact:///default-entity/hindsight/hindsight:step1"
        assert reply.choices[0].message.content == "HOLD"
