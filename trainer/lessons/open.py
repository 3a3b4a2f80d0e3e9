"""Opens the lessons of a database with the embedder that the settings select."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from data_bridge.database import Database
from data_bridge.errors import ConfigurationError
from trainer.config.lessons import EmbeddingSecrets, EmbeddingSettings
from trainer.ledger.lessons import vector_type
from trainer.lesson import Embedder
from trainer.lessons.embedding import EmbeddedModel, EmbeddingEndpoint
from trainer.lessons.retrieval import Lessons


def embedder_of(settings: EmbeddingSettings, secrets: EmbeddingSecrets) -> Embedder:
    """Nothing is loaded or called before the first text. ConfigurationError for an address without a model."""
    if settings.embedding_model is None:
        if settings.embedding_base_url is not None:
            raise ConfigurationError("EMBEDDING_BASE_URL needs EMBEDDING_MODEL: name the model that embeds.")
        return EmbeddedModel()
    secret = secrets.embedding_api_key
    key = "none" if secret is None else secret.get_secret_value().strip()
    return EmbeddingEndpoint(settings.embedding_model, settings.embedding_base_url, key, settings.embedding_dimensions)


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
