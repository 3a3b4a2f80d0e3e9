"""Which backend is taken and why, where its checkpoints are served, and what stays unimported until then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import SecretStr

from data_bridge.errors import ConfigurationError
from tests.builders_training import opened_backend
from trainer.config.commands import TrainSettings
from trainer.config.settings import settings_from
from trainer.config.training import AddressSettings, BackendSettings, ModelSettings, TrainingSettings
from trainer.train.backends import choose
from trainer.train.backends import choose as gpu
from trainer.train.backends.art_interface import learning_rate_of, local_arguments, serverless_arguments
from trainer.train.backends.choose import choose_backend
from trainer.types import Checkpoint, Serving

serving = Checkpoint.served_at

KEY = SecretStr("a-wandb-key")


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "why_no_gpu", lambda: "there is no NVIDIA GPU on this machine")


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "why_no_gpu", lambda: None)


@pytest.mark.usefixtures("a_gpu")
def test_a_wandb_key_comes_before_a_gpu() -> None:
    choice = choose_backend(BackendSettings(), ModelSettings(), KEY)
    assert str(choice) == "serverless (WANDB_API_KEY is set), training OpenPipe/Qwen3-14B-Instruct"


@pytest.mark.usefixtures("a_gpu")
def test_a_gpu_comes_before_the_cpu() -> None:
    assert choose_backend(BackendSettings(), ModelSettings(), None).name == "local"


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("key", [None, SecretStr("")])
def test_with_neither_it_is_the_cpu_and_the_embedded_model(key: SecretStr | None) -> None:
    choice = choose_backend(BackendSettings(), ModelSettings(), key)
    assert (choice.name, choice.base_model) == ("cpu", "smollm2-135m-instruct")
    assert choice.reason == "no WANDB_API_KEY, and there is no NVIDIA GPU on this machine"


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("name", ["cpu", "local", "serverless"])
def test_what_was_asked_for_is_taken_whatever_there_is(name: str) -> None:
    choice = choose_backend(BackendSettings.model_validate({"backend": name}), ModelSettings(), KEY)
    assert (choice.name, choice.reason) == (name, f"--backend {name}")


@pytest.mark.parametrize("name", ["cpu", "local", "serverless"])
def test_a_base_model_that_was_set_is_never_replaced(name: str) -> None:
    settings = BackendSettings.model_validate({"backend": name})
    model = ModelSettings(base_model="smollm2-135m-instruct")
    assert choose_backend(settings, model, None).base_model == "smollm2-135m-instruct"


async def test_local_without_a_gpu_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ConfigurationError, match="--backend local cannot be used: there is no NVIDIA GPU"):
        async with opened_backend(settings_from(TrainSettings, backend="local", home=tmp_path)):
            pass


async def test_serverless_without_a_key_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="WANDB_API_KEY is not set"):
        async with opened_backend(settings_from(TrainSettings, backend="serverless", home=tmp_path)):
            pass


# -- finding a GPU


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without a GPU: no driver directory, no nvidia-smi. A test adds what it needs."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpu, "_DRIVER", tmp_path / "driver")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    return tmp_path


def nvidia_smi(machine: Path, script: str) -> None:
    command = machine / "bin" / "nvidia-smi"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)


def test_a_machine_without_a_driver_has_no_gpu(machine: Path) -> None:
    assert gpu.why_no_gpu() == "there is no NVIDIA GPU on this machine"


def test_a_driver_without_a_card_has_no_gpu(machine: Path) -> None:
    nvidia_smi(machine, "echo 'No devices were found'; exit 6")
    assert gpu.why_no_gpu() == "there is no NVIDIA GPU on this machine"


@pytest.mark.parametrize("found_by", ["driver", "nvidia-smi"])
def test_a_gpu_without_the_packages_says_how_to_get_them(
    machine: Path, monkeypatch: pytest.MonkeyPatch, found_by: str
) -> None:
    if found_by == "driver":
        (machine / "driver" / "0000:01:00.0").mkdir(parents=True)
    else:
        nvidia_smi(machine, "echo 'GPU 0: NVIDIA H100'")
    monkeypatch.setattr(gpu, "_NEEDED", ("a_package_that_nobody_has",))
    reason = gpu.why_no_gpu()
    assert reason is not None
    assert "a_package_that_nobody_has is not installed" in reason
    assert "`pip install .[gpu]`" in reason


def test_a_gpu_is_used_only_if_torch_can(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine / "driver" / "0000:01:00.0").mkdir(parents=True)
    monkeypatch.setattr(gpu, "_NEEDED", ())
    torch = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert "torch cannot use it" in (gpu.why_no_gpu() or "")
    torch.cuda.is_available = lambda: True
    assert gpu.why_no_gpu() is None


def test_a_hidden_gpu_is_none(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine / "driver" / "0000:01:00.0").mkdir(parents=True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert gpu.why_no_gpu() == "there is no NVIDIA GPU on this machine"


def test_choosing_imports_neither_torch_nor_art() -> None:
    program = (
        "import sys; from trainer.train.backends.choose import choose_backend;"
        "from trainer.config.training import BackendSettings, ModelSettings;"
        "from trainer.types import Serving;"
        "choose_backend(BackendSettings(), ModelSettings(), None);"
        "print(sorted({'torch', 'art', 'openai', 'transformers'} & set(sys.modules)))"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == "[]"


# -- what ART is told, and what agents are told


def test_the_learning_rate_for_the_embedded_model_is_not_used_for_a_large_one() -> None:
    assert learning_rate_of(TrainingSettings()) == 5e-6
    assert learning_rate_of(TrainingSettings(learning_rate=7e-4)) == 7e-4


def test_cispo_keeps_arts_own_clip_range_unless_one_was_set() -> None:
    assert serverless_arguments(TrainingSettings(loss="ppo"))["epsilon"] == 0.2
    assert serverless_arguments(TrainingSettings(loss="cispo"))["epsilon"] is None
    assert serverless_arguments(TrainingSettings(loss="cispo", epsilon=0.5))["epsilon"] == 0.5
    assert local_arguments(TrainingSettings(loss="cispo", kl=0.1))["kl_penalty_coef"] == 0.1


def test_rewards_are_not_scaled_unless_asked() -> None:
    assert serverless_arguments(TrainingSettings())["scale_rewards"] is False
    assert local_arguments(TrainingSettings())["scale_rewards"] is False


def test_a_serverless_checkpoint_is_served_by_wandb_and_the_others_at_our_url() -> None:
    settings = AddressSettings(serve_url="http://models.example/v1")
    location = "wandb-artifact:///team/game/hindsight:step3"
    remote = Checkpoint("hindsight", 3, "OpenPipe/Qwen3-14B-Instruct", "serverless", location)
    assert serving(remote, settings) == Serving("https://api.training.wandb.ai/v1", location)
    for backend in ("cpu", "local"):
        ours = Checkpoint("hindsight", 3, "base", backend, "/checkpoints/0003")
        assert serving(ours, settings) == Serving("http://models.example/v1", "hindsight@step3")
