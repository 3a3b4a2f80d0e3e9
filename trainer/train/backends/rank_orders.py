"""What the first rank of a step tells the others, and what they answer: one answer for each order, and heartbeats."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from trainer.train.backends.cpu_step import Numbered, StepSettings, StepTally


@dataclass(frozen=True, slots=True)
class LoadModel:
    """The first order: the policy that all ranks hold at step 0."""

    base: Path
    lora_rank: int
    seed: int
    threads: int


@dataclass(frozen=True, slots=True)
class Meet:
    """Join a process group."""

    place: Path
    rank: int
    size: int


@dataclass(frozen=True, slots=True)
class Start:
    """A step begins: hold the weights with this digest, from the checkpoint (None: step 0) if it must be."""

    checkpoint: Path | None
    digest: str


@dataclass(frozen=True, slots=True)
class Share:
    """Compute the gradient of these sequences of an update that trains so many tokens altogether."""

    numbered: Sequence[Numbered]
    trained: int
    settings: StepSettings


@dataclass(frozen=True, slots=True)
class Sum:
    """Every rank has its gradient: sum them, and make the update."""


@dataclass(frozen=True, slots=True)
class RollCall:
    """Answer with this number: by that the first rank knows that earlier answers were read, too."""

    number: int


@dataclass(frozen=True, slots=True)
class Done:
    """The answer to an order that was carried out."""

    noted: dict[int, StepTally] | None = None
    digest: str | None = None
    called: int | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The answer to an order that raised: perhaps because of a row."""

    error: Exception


def send(connection: Connection, message: object) -> None:
    """Not ``Connection.send``: once torch's own pickler is imported, that passes tensors by shared memory."""
    connection.send_bytes(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))


def receive(connection: Connection) -> Any:
    """The next message; None for a heartbeat."""
    received = connection.recv_bytes()
    return pickle.loads(received) if received else None
