"""The settings of lessons: of which game they are, what embeds them, how many are kept."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import BeforeValidator, SecretStr

from data_bridge.lesson_prompts import LessonsPolicy
from trainer.config.settings import Duration, Section, setting


class EmbeddingSettings(Section):
    """Embeddings: what turns lessons into vectors."""

    embedding_model: str | None = setting(
        None,
        "Model of an OpenAI-compatible embeddings endpoint; unset: the embedded all-MiniLM-L6-v2.",
        env="EMBEDDING_MODEL",
    )
    embedding_base_url: str | None = setting(
        None, "Address of that endpoint; unset: OpenAI's.", env="EMBEDDING_BASE_URL", metavar="URL"
    )
    embedding_dimensions: int | None = setting(
        None, "Length of its vectors; unset: as its first answer has it.", ge=8, le=16_000
    )


class GameSettings(Section):
    """Lessons: of which game."""

    game: str = setting("game", "Name of the game: lessons of one are never shown in another.", min_length=1)


def _policy(value: object) -> object:
    """The policy's whole name; empty for ``off``."""
    if not isinstance(value, str):
        return value
    return "" if value.strip().lower() in ("off", "") else LessonsPolicy.parse(value).name


Policy = Annotated[str | None, BeforeValidator(_policy)]


class ShownLessons(Section):
    """Lessons: what agents are shown."""

    lessons: Policy = setting(
        None,
        "Lessons in the agents' prompts, as NUMBER-KINDS-WORDING: `2-all-notes`, or `off`; unset: as in what was "
        "promoted, none at first.",
        metavar="POLICY",
    )


class UsedLessons(GameSettings, ShownLessons):
    """Lessons: what agents are shown."""


class DistilSettings(GameSettings):
    """Lessons: what judged decisions teach."""

    distil: Literal["off", "template", "judge"] = setting(
        "template",
        "Keep lessons of judged groups: by template, free and offline; or in the judge's words, one more call a group.",
    )
    lesson_scope: Literal["game", "role", "agent"] = setting(
        "game", "For whom a lesson is: all agents of the game, those of the same role, or the agent alone."
    )


class TrainedLessons(DistilSettings, ShownLessons):
    """Lessons: what judged decisions teach, and what agents are shown."""


class KeptLessons(Section):
    """Lessons: how many are kept, and for how long."""

    max_lessons: int = setting(10_000, "Lessons kept in one scope (game, role, agent); the least valuable go.", ge=1)
    lesson_half_life: Duration = setting(
        "28d", "Time after which an unused lesson is worth half, in the game's clock.", gt=timedelta(0)
    )
    keep_retired: Duration = setting("90d", "How long a retired lesson is kept before it is deleted.", gt=timedelta(0))


class EmbeddingSecrets(Section):
    """Embeddings: what turns lessons into vectors."""

    embedding_api_key: SecretStr | None = setting(
        None, "Key of the embeddings endpoint; unset: none is sent.", env="EMBEDDING_API_KEY"
    )
