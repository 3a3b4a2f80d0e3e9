"""Replies of the untrained base model that were given before: it never changes, so a question need not be asked twice.

Kept in a file under the home, one for each set of weights, by everything that a reply depends on. A file that is
damaged, foreign or cannot be written costs time and nothing else. Whoever may write it may write the checkpoints too.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from data_bridge.models import ChatMessage
from trainer.inference.chat_models import EngineModel
from trainer.types import ChatModel, Completion

logger = logging.getLogger(__name__)

_LARGEST = 1 << 24
"""No file of ours is larger."""

Known = dict[str, tuple[str, ...]]
"""The texts of the replies, by request."""


@contextmanager
def remembered(model: ChatModel, home: Path) -> Iterator[ChatModel]:
    """``model``, answering from memory what it was asked before; itself unless it is a base model on this machine."""
    if not isinstance(model, EngineModel) or model.adapter is not None:
        yield model
        return
    file = home / "replies" / f"{_weights(model.engine.base)}.json"
    known = _load(file)
    asked = RememberedModel(model, dict(known))
    try:
        yield asked
    finally:
        if asked.known != known:
            _store(file, asked.known)


@dataclass(frozen=True, slots=True)
class RememberedModel:
    """A ``ChatModel`` that knows some replies. Only their texts are kept: to be read, not to be trained."""

    model: EngineModel
    known: Known

    @property
    def name(self) -> str:
        return self.model.name

    async def chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        n: int = 1,
        temperature: float = 1.0,
        max_tokens: int = 64,
        stop: Sequence[str] = (),
        seed: int | None = None,
    ) -> list[Completion]:
        asked = msgspec.json.encode((tuple(messages), n, temperature, max_tokens, tuple(stop), seed))
        key = hashlib.sha256(asked).hexdigest()
        if len(known := self.known.get(key, ())) == n:
            return [Completion(text, model=self.name) for text in known]
        replies = await self.model.chat(
            messages, n=n, temperature=temperature, max_tokens=max_tokens, stop=stop, seed=seed
        )
        if seed is not None or temperature <= 0:  # otherwise the next one may be another
            self.known[key] = tuple(reply.text for reply in replies)
        return replies

    async def close(self) -> None:
        await self.model.close()


def _weights(base: Path) -> str:
    """A name for the files of a model as they are now: other weights under the same path have another."""
    files = sorted((file.name, *_size_and_time(file)) for file in base.iterdir() if file.is_file())
    return hashlib.sha256(repr((str(base.resolve()), files)).encode()).hexdigest()[:32]


def _size_and_time(file: Path) -> tuple[int, int]:
    found = file.stat()
    return found.st_size, found.st_mtime_ns


def _load(file: Path) -> Known:
    try:
        if file.stat().st_size > _LARGEST:
            return {}
        return msgspec.json.decode(file.read_bytes(), type=Known)
    except (OSError, msgspec.DecodeError, RecursionError):
        return {}


def _store(file: Path, known: Known) -> None:
    temporary = file.with_suffix(f".{os.getpid()}.tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(msgspec.json.encode(known))
        os.replace(temporary, file)
    except OSError as error:
        logger.warning("replies of the base model could not be kept: %s", error)
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
