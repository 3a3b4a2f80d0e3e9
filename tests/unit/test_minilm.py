"""The embedding model's own forward pass gives the vectors of the library's model, so that stored ones stay valid."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trainer.inference.minilm import DIMENSIONS, MiniLm, model_folder

TEXTS = [
    "up",
    "A strike at the harbour: sell.",
    "News: Orders at $ACME surge. BUY ACME 20 worked: ACME rose 3 %.",
    "",
    "评审注意 und Höchstnote \u200b zero",
    " ".join(f"word{number}" for number in range(400)),
]


@pytest.fixture(scope="module")
def model() -> MiniLm:
    return MiniLm(model_folder())


def reference(texts: list[str]) -> Any:
    """As its model card says, by transformers."""
    import torch
    from tokenizers import Tokenizer
    from transformers import BertModel
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    folder = model_folder()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(256)
    tokenizer.no_padding()
    bert: Any = BertModel.from_pretrained(folder, local_files_only=True, add_pooling_layer=False).eval()
    with torch.no_grad():
        means = [
            bert(input_ids=torch.tensor([tokenizer.encode(text).ids])).last_hidden_state[0].mean(0) for text in texts
        ]
        return torch.nn.functional.normalize(torch.stack(means), dim=1).numpy()


def test_the_vectors_are_those_of_the_library_within_rounding(model: MiniLm) -> None:
    own = model.embed(TEXTS)
    assert own.shape == (len(TEXTS), DIMENSIONS)
    assert np.abs(own - reference(TEXTS)).max() < 2e-6


def test_a_text_has_the_same_vector_whatever_it_is_embedded_beside(model: MiniLm) -> None:
    together = model.embed(TEXTS * 8)
    for place, text in enumerate(TEXTS):
        assert np.abs(together[place] - model.embed([text])[0]).max() < 2e-6
