"""What a step on the CPU would raise, without making it: the trials by which the rows at fault are found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from trainer.faults import may_be_a_rows
from trainer.inference.policy import CpuPolicy
from trainer.train.backends.cpu_step import NotFinite, StepSettings, backward
from trainer.train.backends.packing import PackedSequence

if TYPE_CHECKING:
    import art


def fault_of_step(
    policy: CpuPolicy, groups: Sequence[art.TrajectoryGroup], settings: StepSettings, *, seed: str
) -> BaseException | None:
    """What a step on ``groups`` would raise, if anything. Computes the gradients and changes no weight."""
    try:
        sequences = settings.pack(groups, policy.tokenizer, seed=seed)
        return _fault_of_gradients(policy, [one for one in sequences if one.trainable_tokens], settings)
    except Exception as error:
        if not may_be_a_rows(error):
            raise
        return error
    finally:
        policy.optimizer.zero_grad(set_to_none=True)


def _fault_of_gradients(
    policy: CpuPolicy, sequences: Sequence[PackedSequence], settings: StepSettings
) -> BaseException | None:
    policy.optimizer.zero_grad(set_to_none=True)
    for sequence in sequences:
        backward(policy, sequence, settings)
        gradients = (one.grad for one in policy.parameters() if one.grad is not None)
        if not all(bool(one.isfinite().all()) for one in gradients):
            return NotFinite()
    return None


def control_fault(policy: CpuPolicy, settings: StepSettings) -> BaseException | None:
    """What a step on a reply that is certainly sound would raise: where even that fails, no row is to blame."""
    end = int(policy.tokenizer.eos_token_id or 0)
    sequence = PackedSequence(
        {
            "tokens": torch.tensor([[end, end, end]]),
            "group_ids": torch.tensor([[0, 1, 1]]),
            "parent_ids": torch.zeros(1, 3, dtype=torch.long),
            "input_pos": torch.tensor([[0, 1, 2]]),
            "assistant_mask": torch.tensor([[False, True, True]]),
            "logprobs": torch.tensor([[float("nan"), -1.0, -1.0]]),
            "advantages": torch.ones(1, 3),
            "weights": torch.ones(1, 3),
        }
    )
    try:
        return _fault_of_gradients(policy, [sequence], settings)
    except Exception as error:
        if not may_be_a_rows(error):
            raise
        return error
    finally:
        policy.optimizer.zero_grad(set_to_none=True)
