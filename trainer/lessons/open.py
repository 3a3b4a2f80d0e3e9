"""Opens the lessons of a database with the embedder that the settings select."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from data_bridge.database import Database
from trainer.config.lessons import EmbeddingSecrets, EmbeddingSettings
from trainer.inference.embedding import embedder_of
from trainer.ledger.lessons import vector_type
from trainer.lessons.retrieval import Lessons


@asynccontextmanager
async def open_lessons(
    database: Database, settings: EmbeddingSettings, secrets: EmbeddingSecrets
) -> AsyncIterator[Lessons]:
    """The lessons of ``database``; the embedder is closed at the end."""
    embedder = embedder_of(settings, secrets)
    try:
        yield Lessons(database, await vector_type(database.pool), embedder)
    finally:
        await embedder.close()
