"""A model small enough for tests: two random layers under SmolLM2's real tokenizer and chat template."""

from __future__ import annotations

import fcntl
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.inference.base_model import EMBEDDED, gguf_file, model_directory

if TYPE_CHECKING:
    import pytest


def shared_tiny_model(factory: pytest.TempPathFactory, *, seed: int = 0, width: int = 64) -> Path:
    """The tiny model, built once for all workers and all later runs on this machine. Only to be read.

    Building one takes 3 s of CPU, most of it for the tokenizer.
    """
    recipe = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    target = factory.getbasetemp().parent.parent / f"hindsight-tiny-model-{width}-{seed}-{recipe}"
    with target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            tiny_model_directory(factory.mktemp("tiny"), seed=seed, width=width).rename(target)
    return target


def shared_embedded_home(factory: pytest.TempPathFactory) -> Path:
    """A home in which the embedded model is converted once for all workers of this test run. Only to be read."""
    home = factory.getbasetemp().parent / "home of the embedded model"
    model_directory(EMBEDDED, home)
    return home


def tiny_model_directory(path: Path, *, seed: int = 0, width: int = 64) -> Path:
    """Write the tiny model into ``path`` (made if needed) and return it: a value for ``--base-model``.

    The same seed gives the same weights, so a restarted process may build it again.
    """
    if (path / "model.safetensors").is_file():
        return path
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from trainer.inference.gguf_conversion import tokenizer_of

    path.mkdir(parents=True, exist_ok=True)
    tokenizer_of(gguf_file()).save_pretrained(path)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=width // 4,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        tie_word_embeddings=True,
        initializer_range=0.1,  # wide enough that the untrained model is not simply uniform
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        LlamaForCausalLM(config).save_pretrained(path)
    return path
