"""Scoring a step's groups one after the other reads their common instructions once, and changes no number by it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from data_bridge.models import ChatMessage
from data_bridge.scoring import ScoreRequest
from tests.tiny_model import shared_tiny_model
from trainer.inference.policy import CpuPolicy

INSTRUCTIONS = ChatMessage(role="system", content="You trade. Reply with BUY or SELL and a name. " * 8)


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> CpuPolicy:
    return CpuPolicy(shared_tiny_model(tmp_path_factory), rank=4, learning_rate=1e-3, seed=0)


def asked(hour: int) -> ScoreRequest:
    return ScoreRequest((INSTRUCTIONS, ChatMessage(role="user", content=f"ACME is at {hour}.")), "BUY ACME")


def test_instructions_are_read_once_for_many_groups(policy: CpuPolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    read = policy._hidden

    def counting(tokens: torch.Tensor, *rest: Any) -> torch.Tensor:
        lengths.append(tokens.shape[1])
        return read(tokens, *rest)

    monkeypatch.setattr(policy, "_hidden", counting)
    for hour in range(5):
        policy.score([asked(hour)])
    assert len(lengths) == 6, "the instructions, then each hour's question with its reply"
    assert max(lengths[1:]) < lengths[0]


def test_read_apart_or_together_the_log_probabilities_are_the_same(policy: CpuPolicy) -> None:
    [[one], [two]] = [policy.score([asked(hour)]) for hour in (1, 2)]
    for alone, together in zip((one, two), policy.score([asked(1), asked(2)]), strict=True):
        assert alone is not None
        assert together is not None
        prompt = policy.prompt_of(asked(1 if alone is one else 2), len(alone.token_ids))
        assert prompt is not None
        whole = policy.read_replies(prompt, [alone.token_ids]).logprobs.tolist()
        assert alone.logprobs == pytest.approx(whole, abs=1e-4)
        assert together.logprobs == pytest.approx(whole, abs=1e-4)
