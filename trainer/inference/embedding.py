"""Vectors for texts: from the embedded model in a process of its own, or from an OpenAI-compatible endpoint.

Nothing here imports torch. Texts that are asked for while others are embedded go together in the next call.
"""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from data_bridge.child_environment import child_environment
from data_bridge.errors import BackendError, ConfigurationError
from data_bridge.redaction import redact, register_secret
from trainer.config.lessons import EmbeddingSecrets, EmbeddingSettings
from trainer.inference.minilm import DIMENSIONS, LENGTH, NAME, model_folder
from trainer.ledger.verdicts import Together

if TYPE_CHECKING:
    from trainer.lesson import Embedder, Vectors

_PATIENCE = 120.0
"""Seconds for its process to start, and for each of its answers."""
_REMEMBERED = 1024
_AT_ONCE = 256
"""Texts in one call: a long list does not hold up a decision for more than a moment."""


class EmbeddedModel:
    """all-MiniLM-L6-v2. Its process starts with the first text. The vectors of the last single texts are remembered:
    agents of an hour, and contestants at a decision, ask about the same."""

    def __init__(self, patience: float = _PATIENCE) -> None:
        self._patience = patience
        self._process: asyncio.subprocess.Process | None = None
        self._calls = Together(self._embed_all)
        self._remembered: OrderedDict[str, Vectors] = OrderedDict()

    @property
    def name(self) -> str:
        return NAME

    @property
    def dimensions(self) -> int:
        return DIMENSIONS

    async def embed(self, texts: Sequence[str]) -> Vectors:
        if len(texts) != 1:
            return await self._embed(texts)
        (text,) = texts
        vectors = self._remembered.pop(text, None)
        if vectors is None:
            vectors = await self._embed(texts)
        self._remembered[text] = vectors
        while len(self._remembered) > _REMEMBERED:
            self._remembered.popitem(last=False)
        return vectors

    async def _embed(self, texts: Sequence[str]) -> Vectors:
        parts = [
            await self._calls.ask(tuple(texts[start : start + _AT_ONCE])) for start in range(0, len(texts), _AT_ONCE)
        ]
        return np.concatenate(parts) if parts else np.zeros((0, DIMENSIONS), np.float32)

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), 5)
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _embed_all(self, asked: list[tuple[str, ...]]) -> list[Vectors]:
        texts = [text for one in asked for text in one]
        try:
            process = await self._running()
            assert process.stdin is not None
            sent = msgspec.msgpack.encode(texts)
            process.stdin.write(LENGTH.pack(len(sent)) + sent)
            await process.stdin.drain()
            async with asyncio.timeout(self._patience):
                answer = await _read(process)
        except (OSError, EOFError, TimeoutError, asyncio.CancelledError) as error:
            await self._abandon()  # an answer that comes later must not be taken for the next one's
            if isinstance(error, asyncio.CancelledError):
                raise
            raise BackendError("The embedding model's process ended or did not answer: try again.") from error
        vectors = np.frombuffer(answer, np.float32).reshape(len(texts), DIMENSIONS)
        ends = np.cumsum([len(one) for one in asked])
        return [vectors[end - len(one) : end] for one, end in zip(asked, ends, strict=True)]

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            model_folder()
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "trainer.inference.minilm"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env=child_environment(),
                start_new_session=True,  # a Ctrl-C is for whoever started us; the process ends with our pipe
                limit=2**24,
            )
            async with asyncio.timeout(self._patience):
                await _read(self._process)
        return self._process

    async def _abandon(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()


async def _read(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    head = await process.stdout.readexactly(LENGTH.size)
    return await process.stdout.readexactly(LENGTH.unpack(head)[0])


class EmbeddingEndpoint:
    """A model behind an OpenAI-compatible API. Its dimension is learnt from the first answer, and kept to."""

    def __init__(self, model: str, base_url: str | None, api_key: str, dimensions: int | None = None) -> None:
        from openai import AsyncOpenAI

        register_secret(api_key)
        self._model, self._dimensions = model, dimensions
        self._client = AsyncOpenAI(api_key=api_key, base_url=base_url, max_retries=2, timeout=30.0)

    @property
    def name(self) -> str:
        return self._model

    @property
    def dimensions(self) -> int:
        """0 before the first answer."""
        return self._dimensions or 0

    async def embed(self, texts: Sequence[str]) -> Vectors:
        from openai import OpenAIError

        found: list[Vectors] = []
        for start in range(0, len(texts), _AT_ONCE):
            part = list(texts[start : start + _AT_ONCE])
            try:
                answer = await self._client.embeddings.create(model=self._model, input=part, encoding_format="float")
            except OpenAIError as error:
                said = redact(" ".join(str(error).split())[:300])
                raise BackendError(f"The embeddings endpoint failed for {self._model!r}: {said}") from error
            found.append(self._checked(answer, len(part)))
        return np.concatenate(found) if found else np.zeros((0, self.dimensions), np.float32)

    def _checked(self, answer: Any, number: int) -> Vectors:
        rows = sorted(answer.data or [], key=lambda one: one.index)
        sizes = {len(one.embedding) for one in rows}
        if len(rows) != number or len(sizes) != 1:
            raise BackendError(f"The embeddings endpoint answered {len(rows)} vectors to {number} texts.")
        (size,) = sizes
        if self._dimensions not in (None, size):
            raise ConfigurationError(
                f"{self._model!r} gives vectors of {size} numbers instead of {self._dimensions}: correct "
                "--embedding-dimensions, or the endpoint."
            )
        vectors = np.array([one.embedding for one in rows], np.float32)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        if not np.isfinite(vectors).all() or not (lengths > 0).all():
            raise BackendError(f"The embeddings endpoint gave a vector of {self._model!r} that is not one.")
        self._dimensions = size
        unit: Vectors = vectors / lengths
        return unit

    async def close(self) -> None:
        await self._client.close()


def embedder_of(settings: EmbeddingSettings, secrets: EmbeddingSecrets) -> Embedder:
    """Nothing is loaded or called before the first text. ConfigurationError for an address without a model."""
    if settings.embedding_model is None:
        if settings.embedding_base_url is not None:
            raise ConfigurationError("EMBEDDING_BASE_URL needs EMBEDDING_MODEL: name the model that embeds.")
        return EmbeddedModel()
    secret = secrets.embedding_api_key
    key = "none" if secret is None else secret.get_secret_value().strip()
    return EmbeddingEndpoint(settings.embedding_model, settings.embedding_base_url, key, settings.embedding_dimensions)
