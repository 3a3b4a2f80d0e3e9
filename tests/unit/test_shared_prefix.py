"""The memory of replies takes what was written, not what may be."""

from __future__ import annotations

import gc
from copy import deepcopy

import pytest
import torch

from trainer.inference.shared_prefix import Layer, Prompts, ReplyMemory, that_begin_alike

HEADS, SIZE, LAYERS = 2, 16, 3
BYTES_PER_TOKEN = 2 * LAYERS * HEADS * SIZE * 4


def made_prompts(*lengths: int) -> Prompts:
    """Prompts whose keys and values are those of their tokens: equal prompts are remembered equally."""
    tokens = [tuple(range(length)) for length in lengths]
    known = torch.randn(1, HEADS, max(lengths), SIZE, generator=torch.Generator().manual_seed(0))
    rows = known.repeat(len(lengths), 1, 1, 1)
    return Prompts(tokens, [(rows, rows) for _ in range(LAYERS)])


def write(memory: ReplyMemory, rows: int, tokens: int) -> None:
    for _ in range(tokens):
        memory.tokens += 1
        for layer in range(LAYERS):
            query, key, value = (torch.randn(rows, heads, 1, SIZE) for heads in (2 * HEADS, HEADS, HEADS))
            memory.attend(layer, query, key, value, 1.0)


def bytes_of_tensors() -> int:
    gc.collect()
    storages = [thing.untyped_storage() for thing in gc.get_objects() if type(thing) is torch.Tensor]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


@pytest.mark.parametrize("tokens", [1, 100, 300])
def test_memory_follows_the_tokens_written_and_the_rows_kept(tokens: int) -> None:
    prompts = made_prompts(5)
    before = bytes_of_tensors()
    memory = ReplyMemory(prompts, torch.zeros(64, dtype=torch.long))
    write(memory, 64, tokens)
    assert bytes_of_tensors() - before < 64 * (tokens + 64) * BYTES_PER_TOKEN + 50_000
    memory.keep(torch.arange(4))
    assert bytes_of_tensors() - before < 4 * tokens * BYTES_PER_TOKEN + 50_000


def one_more(memory: ReplyMemory, token: Layer) -> torch.Tensor:
    """What the rows attend to when they all read ``token``."""
    memory.tokens += 1
    return memory.attend(0, torch.cat([token[0], token[0]], dim=1), *token, 1.0)


def test_joined_rows_attend_to_what_they_attended_to_alone() -> None:
    torch.manual_seed(0)
    ahead, behind = (ReplyMemory(made_prompts(*lengths), torch.tensor([0, 1])) for lengths in ((4, 9), (7, 9)))
    write(ahead, 2, 70)
    write(behind, 2, 5)
    key, value = torch.randn(2, 4, HEADS, 1, SIZE)
    alone = [one_more(deepcopy(ahead), (key[:2], value[:2])), one_more(deepcopy(behind), (key[2:], value[2:]))]
    ahead.join(behind)
    assert torch.allclose(one_more(ahead, (key, value)), torch.cat(alone), atol=1e-5)


def test_the_memory_of_rows_that_were_ahead_ends_with_them() -> None:
    torch.manual_seed(0)
    ahead, behind = (ReplyMemory(made_prompts(length), torch.tensor([0])) for length in (4, 3))
    write(ahead, 1, 500)
    write(behind, 1, 5)
    token = (torch.randn(1, HEADS, 1, SIZE), torch.randn(1, HEADS, 1, SIZE))
    alone = one_more(deepcopy(behind), token)
    ahead.join(behind)
    ahead.keep(torch.tensor([1]))
    assert ahead.tokens == 5
    assert torch.allclose(one_more(ahead, token), alone, atol=1e-5)


def test_prompts_of_one_day_are_read_together_and_those_of_the_next_apart() -> None:
    monday, tuesday = tuple(range(100)), (0, 1, 2, *range(200, 297))
    prompts = [(*monday, 7), (*tuesday, 8), (*monday, 9), (*tuesday, 5, 6)]
    assert sorted(map(sorted, that_begin_alike(prompts))) == [[0, 2], [1, 3]]
    assert that_begin_alike([monday]) == [[0]]
