"""What the server and an engine process say to each other over their pair of sockets, one pickle a message."""

from __future__ import annotations

import asyncio
import pickle
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_bridge.models import ChatMessage
from trainer.types import Completion

_LENGTH = struct.Struct(">Q")


@dataclass(frozen=True, slots=True)
class LoadBase:
    """The first message: the model that the process runs."""

    base: Path
    threads: int


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What is asked of an engine; as ``EngineRequest``, but for what only one process can hold."""

    messages: Sequence[ChatMessage]
    adapter: Path | None
    model_name: str
    samples: int
    temperature: float
    max_tokens: int
    stop: tuple[str, ...]
    seed: int | None
    is_streamed: bool


@dataclass(frozen=True, slots=True)
class AnswerThis:
    """Answer this request, under this number."""

    number: int
    request: ChatRequest


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Nobody waits for the answer with this number any more."""

    number: int


@dataclass(frozen=True, slots=True)
class TextSoFar:
    """What one reply to a streamed request says by now."""

    number: int
    reply: int
    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The replies to a request, or why there are none."""

    number: int
    replies: list[Completion] | Exception


@dataclass(frozen=True, slots=True)
class StillHere:
    """Said every few seconds, so that an engine that hangs is told from one that has nothing to say."""


def framed(message: object) -> bytes:
    packed = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(packed)) + packed


async def next_message(reader: asyncio.StreamReader) -> Any:
    """The next message. IncompleteReadError or OSError when the other side is gone."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    return pickle.loads(await reader.readexactly(length))
