"""The local backend: everything but the GPU is real.

The unmodified ``art.LocalBackend`` registers, tokenises, packs and calls its model service; only that service
(unsloth and vLLM) is a stand-in. What unsloth learns and what vLLM serves is not tested here.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from data_bridge.errors import BackendError, ConfigurationError
from tests.builders_art import judged_batch, prepared_batch
from tests.fakes import unsloth_service
from tests.fakes.unsloth_service import UnslothService, write_adapter
from tests.tiny_model import shared_tiny_model
from trainer.config.commands import TrainSettings
from trainer.config.settings import settings_from
from trainer.run.train import trainee_of
from trainer.train.backends.adapter_files import is_whole
from trainer.train.backends.local import LocalBackend


@pytest.fixture(scope="session")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_tiny_model(tmp_path_factory)


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMPORT_UNSLOTH", "0")  # ART sets it; taken back after the test
    for name, module in unsloth_service.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(UnslothService, "fault", None)
    monkeypatch.setattr(UnslothService, "trained", [])
    monkeypatch.setattr(UnslothService, "configs", [])


@asynccontextmanager
async def opened(home: Path, base_model: Path, **changes: object) -> AsyncIterator[LocalBackend]:
    settings = settings_from(TrainSettings, home=home, base_model=str(base_model), backend="local", **changes)
    backend = LocalBackend(trainee_of(settings), in_process=True)
    await backend.open()
    try:
        yield backend
    finally:
        await backend.close()


class Receipts(list[str]):
    async def __call__(self, receipt: str) -> None:
        self.append(receipt)


async def test_steps_are_trained_and_a_new_process_goes_on_from_the_last(tmp_path: Path, base_model: Path) -> None:
    async with opened(tmp_path, base_model) as backend:
        result = await backend.train(prepared_batch(), on_submitted=Receipts())
        assert result.checkpoint.step == 1
        assert is_whole(Path(result.checkpoint.location))
        assert result.trainable_tokens == 6
        assert result.metrics["loss"] == 0.25
    async with opened(tmp_path, base_model) as backend:
        assert await backend.open() == 1
        assert (await backend.train(prepared_batch("batch-2"), on_submitted=Receipts())).checkpoint.step == 2
    assert len(UnslothService.trained) == 2


async def test_art_is_told_what_the_settings_say(tmp_path: Path, base_model: Path) -> None:
    changes = {"loss": "ppo", "epsilon": 0.3, "kl": 0.05, "lora_rank": 24, "learning_rate": 1e-5, "max_grad_norm": 0.7}
    async with opened(tmp_path, base_model, **changes) as backend:
        await backend.train(prepared_batch(), on_submitted=Receipts())
    told = UnslothService.trained[0]
    assert (told["ppo"], told["epsilon"], told["kl_penalty_coef"], told["learning_rate"]) == (True, 0.3, 0.05, 1e-5)
    assert told["scale_rewards"] is False
    assert told["tensors"]["num_sequences"] >= 1
    config = UnslothService.configs[0]
    assert (config["peft_args"]["r"], config["engine_args"]["max_lora_rank"]) == (24, 32)
    assert config["trainer_args"]["max_grad_norm"] == 0.7


async def test_replies_without_log_probabilities_are_scored_by_the_trainer(tmp_path: Path, base_model: Path) -> None:
    async with opened(tmp_path, base_model) as backend:
        prepared = await backend.prepare(judged_batch(logged_tokens=False))
        assert prepared.metrics["share_rescored"] == 1
        assert (await backend.train(prepared, on_submitted=Receipts())).trainable_tokens == prepared.trainable_tokens
        await backend.train(prepared_batch("batch-2"), on_submitted=Receipts())
    assert [told["precalculate_logprobs"] for told in UnslothService.trained] == [True, False]


async def test_nothing_is_printed_on_our_stdout(
    tmp_path: Path, base_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with opened(tmp_path, base_model) as backend:
        await backend.train(prepared_batch(), on_submitted=Receipts())
    assert capsys.readouterr().out == ""


async def test_a_step_that_trained_nothing_is_an_error_and_leaves_no_step(tmp_path: Path, base_model: Path) -> None:
    """ART copies the last checkpoint to a new step and calls it trained."""
    async with opened(tmp_path, base_model) as backend:
        await backend.train(prepared_batch(), on_submitted=Receipts())
        with pytest.raises(BackendError, match="made no gradient step"):
            await backend.train(prepared_batch("flat", rewards=(0.5, 0.5)), on_submitted=Receipts())
        assert await backend.current_step() == 1


async def test_a_training_that_broke_before_its_checkpoint_may_be_sent_again(tmp_path: Path, base_model: Path) -> None:
    receipts = Receipts()
    UnslothService.fault = "before_saving"
    async with opened(tmp_path, base_model) as backend:
        with pytest.raises(BackendError, match="CUDA out of memory"):
            await backend.train(prepared_batch(), on_submitted=receipts)
    async with opened(tmp_path, base_model) as backend:
        assert await backend.settle("batch-1", receipts[-1], 0) is None
        UnslothService.fault = None
        assert (await backend.train(prepared_batch(), on_submitted=receipts)).checkpoint.step == 1


async def test_a_full_disk_at_the_checkpoint_leaves_the_last_good_one(tmp_path: Path, base_model: Path) -> None:
    receipts = Receipts()
    async with opened(tmp_path, base_model) as backend:
        await backend.train(prepared_batch(), on_submitted=Receipts())
        UnslothService.fault = "saving"
        with pytest.raises(BackendError, match="No space left on device"):
            await backend.train(prepared_batch("batch-2"), on_submitted=receipts)
        assert await backend.current_step() == 1
    UnslothService.fault = None
    async with opened(tmp_path, base_model) as backend:
        assert await backend.open() == 1
        assert await backend.settle("batch-2", receipts[-1], 0) is None
        result = await backend.train(prepared_batch("batch-2"), on_submitted=receipts)
        assert result.checkpoint.step == 2
        assert is_whole(Path(result.checkpoint.location))


async def test_a_training_that_was_done_before_something_else_broke_is_not_done_again(
    tmp_path: Path, base_model: Path
) -> None:
    receipts = Receipts()
    UnslothService.fault = "after_saving"
    async with opened(tmp_path, base_model) as backend:
        result = await backend.train(prepared_batch(), on_submitted=receipts)
        assert result.checkpoint.step == 1
        settled = await backend.settle("batch-1", receipts[-1], 0)
        assert settled is not None
        assert (settled.checkpoint, settled.trainable_tokens) == (result.checkpoint, 6)
    assert len(UnslothService.trained) == 1


async def test_a_service_that_does_not_start_is_one_sentence(
    tmp_path: Path, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(self: UnslothService, config: object) -> tuple[str, int]:
        raise RuntimeError("no kernel image\nfor this GPU")

    monkeypatch.setattr(UnslothService, "start_openai_server", refuse)
    with pytest.raises(BackendError, match=r"did not start \(RuntimeError no kernel image for this GPU\)"):
        async with opened(tmp_path, base_model):
            pass


async def test_a_rank_that_cannot_be_served_is_refused(tmp_path: Path, base_model: Path) -> None:
    with pytest.raises(ConfigurationError, match="--lora-rank 1000"):
        async with opened(tmp_path, base_model, lora_rank=1000):
            pass


def test_a_checkpoint_is_whole_only_with_all_of_its_files(tmp_path: Path) -> None:
    write_adapter(tmp_path / "0001")
    assert is_whole(tmp_path / "0001")
    weights = tmp_path / "0001" / "adapter_model.safetensors"
    content = weights.read_bytes()
    for broken in (content[:-1], content[:30], b"", content + b"x"):
        weights.write_bytes(broken)
        assert not is_whole(tmp_path / "0001")
    weights.write_bytes(content)
    (tmp_path / "0001" / "adapter_config.json").write_text('{"peft_type":')
    assert not is_whole(tmp_path / "0001")
    assert not is_whole(tmp_path / "0002")
