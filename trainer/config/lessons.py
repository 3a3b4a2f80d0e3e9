"""The settings of lessons: of which game they are, what embeds them, how many are kept; and of their command."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, SecretStr

from data_bridge.lesson_prompts import LessonsPolicy
from trainer.config.sections import (
    DatabaseCommand,
    DatabaseSecrets,
    EvaluatedWindows,
    EvaluationSecrets,
    JudgedSettings,
    WandbSecrets,
)
from trainer.config.settings import Duration, Section, setting
from trainer.config.training import AddressSettings, ChanceSettings, EvaluationSettings, GateSettings, ModelSettings


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


class LessonDeeds(Section):
    """What is done."""

    action: Literal["list", "search", "distil", "consolidate", "gate", "retire", "export"] = setting(
        ..., "list, search, distil, consolidate, gate, retire or export.", positional=True
    )
    target: str | None = setting(
        None,
        "search: what is looked for; retire: the lesson's id; list: only lessons with these words.",
        positional=True,
    )
    kind: Literal["episodic", "semantic", "procedural"] | None = setting(
        None, "List and search: only this kind.", flag_only=True
    )
    agent: str | None = setting(None, "List and gate: only this agent's own; search: as this agent.", flag_only=True)
    role: str | None = setting(None, "Search: as an agent of this role.", flag_only=True)
    state: Literal["shown", "waiting", "retired", "all"] = setting(
        "shown",
        "List: those that agents are shown, those from outside that are not gated, the retired, or all.",
        flag_only=True,
    )
    as_of: str | None = setting(
        None,
        "Search: what was known at this UTC time (ISO 8601) of the game; unset: now.",
        metavar="TIME",
        flag_only=True,
    )
    limit: int = setting(20, "List and search: maximum number of lessons.", ge=1, le=1000, flag_only=True)
    reason: str | None = setting(None, "Retire: why; kept with the lesson.", flag_only=True)
    asked: bool = setting(
        False, "Gate: what somebody asked for on the console or through the API, instead of what waits.", flag_only=True
    )
    whole: bool = setting(False, "Consolidate: also compare what was compared before.", flag_only=True)
    export_file: Path | None = setting(
        None,
        "Export: where to write, one JSON line per lesson; unset: standard output.",
        flag="--output",
        metavar="FILE",
        flag_only=True,
    )


class LessonSecrets(DatabaseSecrets, EvaluationSecrets, WandbSecrets, EmbeddingSecrets):
    """The secrets of all services that lessons call."""


class LessonsCommand(DatabaseCommand):
    """lessons."""

    ignored = ("held_out_share",)
    deed: LessonDeeds
    lessons: TrainedLessons
    embedding: EmbeddingSettings
    kept: KeptLessons
    model: ModelSettings
    windows: EvaluatedWindows
    judge: JudgedSettings
    chance: ChanceSettings
    evaluation: EvaluationSettings
    gate: GateSettings
    promotion: AddressSettings
    secrets: LessonSecrets
