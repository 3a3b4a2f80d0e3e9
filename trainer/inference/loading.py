"""Loads a base model and its tokenizer from a directory, in fp32; what is wrong with the directory is one sentence."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from data_bridge.errors import ConfigurationError
from data_bridge.models import ChatMessage, as_dicts

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

logger = logging.getLogger(__name__)


def load_tokenizer(directory: Path) -> PreTrainedTokenizerBase:
    """The tokenizer in ``directory``; it must bring a chat template, since agents talk in chat messages."""
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
    """``messages`` as the model is given them, up to where its reply begins."""
    encoded = tokenizer.apply_chat_template(as_dicts(messages), add_generation_prompt=True, return_dict=True)
    return tuple(encoded["input_ids"])


@contextmanager
def _quiet_loading() -> Iterator[None]:
    """transformers draws a progress bar over our own output."""
    from transformers.utils import logging as transformers_logging

    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()
