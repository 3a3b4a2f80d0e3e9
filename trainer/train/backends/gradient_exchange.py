"""What ranks of one step exchange: the sum of their gradients, by gloo on this machine, and a digest of their weights.

A process group of our own instead of torch's global one: it can be left and formed again with fewer ranks. The ranks
find each other by a file in a private folder, and listen on the loopback address alone.
"""

from __future__ import annotations

import hashlib
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from trainer.inference.policy import CpuPolicy

if TYPE_CHECKING:
    from torch import Tensor

PATIENCE = 30.0
"""Seconds for all ranks to meet, and for one sum: it takes milliseconds, and every rank was ready for it."""


def meet(place: Path, rank: int, size: int) -> Any:
    """The process group of ``size`` ranks that were told the same ``place``, a file that does not exist yet."""
    gloo: Any = distributed.ProcessGroupGloo  # torch types no part of its options
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname="127.0.0.1")]
    options._timeout = timedelta(seconds=PATIENCE)
    options._threads = 1
    store = distributed.FileStore(str(place), size)  # type: ignore[attr-defined]  # exported, but not in __all__
    store.set_timeout(timedelta(seconds=PATIENCE))
    return gloo(store, rank, size, options)


def sum_gradients(group: Any, policy: CpuPolicy, loss: float) -> float:
    """Replace every gradient by its sum over the ranks, in one flat message; the sum of their losses."""
    parameters = policy.parameters()
    flat = torch.cat([*(_gradient(one).reshape(-1) for one in parameters), torch.tensor([loss])])
    group.allreduce([flat]).wait()
    sizes = [one.numel() for one in parameters]
    for parameter, part in zip(parameters, torch.split(flat[:-1], sizes), strict=True):
        parameter.grad = part.view_as(parameter)
    return float(flat[-1])


def _gradient(parameter: Any) -> Tensor:
    """Zeros for a rank without a sequence."""
    gradient: Tensor = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    return gradient


def digest_of(policy: CpuPolicy) -> str:
    """Of the adapter and the optimizer's state, to the bit."""
    digest = hashlib.sha256()
    for parameter in policy.parameters():
        digest.update(_bytes(parameter.detach()))
        for name, value in sorted(policy.optimizer.state.get(parameter, {}).items()):
            digest.update(name.encode())
            digest.update(_bytes(torch.as_tensor(value)))
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().numpy().tobytes()
