"""The output layer in blocks: the numbers and gradients of ``log_softmax``, and no vocabulary kept for each token."""

from __future__ import annotations

import pytest
import torch

from trainer.inference.head import chosen_logprobs

VOCABULARY, SIZE = 1000, 16


@pytest.mark.parametrize("tokens", [0, 1, 128, 300])
def test_values_and_gradients_are_those_of_log_softmax(tokens: int) -> None:
    chance = torch.Generator().manual_seed(tokens)
    hidden = torch.randn(tokens, SIZE, generator=chance, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(VOCABULARY, SIZE, generator=chance, dtype=torch.float64)
    wanted = torch.randint(0, VOCABULARY, (tokens,), generator=chance)
    factors = torch.randn(tokens, generator=chance, dtype=torch.float64)

    whole = torch.log_softmax(hidden @ weight.t(), dim=-1)
    expected = whole.gather(1, wanted[:, None])[:, 0]
    [gradient] = torch.autograd.grad((expected * factors).sum(), hidden)

    logprobs, entropies = chosen_logprobs(hidden, weight, wanted)
    torch.testing.assert_close(logprobs, expected)
    torch.testing.assert_close(entropies, -(whole.exp() * whole).sum(dim=-1))
    assert not entropies.requires_grad
    torch.testing.assert_close(torch.autograd.grad((logprobs * factors).sum(), hidden)[0], gradient)


def test_what_is_kept_for_the_backward_pass_is_as_large_as_the_input() -> None:
    kept: list[int] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel())
        return tensor

    hidden = torch.randn(300, SIZE, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        chosen_logprobs(hidden, torch.randn(VOCABULARY, SIZE), torch.zeros(300, dtype=torch.long))
    assert kept == [300 * SIZE]


def test_a_broken_input_gives_no_number_for_its_token_alone() -> None:
    hidden = torch.randn(3, SIZE)
    hidden[1] = torch.nan
    logprobs, _ = chosen_logprobs(hidden, torch.randn(VOCABULARY, SIZE), torch.tensor([1, 2, 3]))
    assert logprobs.isfinite().tolist() == [True, False, True]
