"""One request on its way through the engine. The caller's thread imports this too, so it loads nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from data_bridge.errors import BackendError
from data_bridge.models import ChatMessage
from trainer.types import Completion

if TYPE_CHECKING:
    from trainer.inference.wave import Reply


class PromptRefused(BackendError, ValueError):
    """The request is at fault, not the model: its prompt is too long, or is no chat."""


@dataclass(slots=True, eq=False)
class EngineRequest:
    """A request, and where its replies go."""

    messages: Sequence[ChatMessage]
    adapter: Path | None
    model_name: str
    samples: int
    temperature: float
    max_tokens: int
    stop: tuple[str, ...]
    seed: int | None
    tell: Callable[[int, str], None] | None
    """Called with the number of a reply and its text so far, after each of its tokens."""
    finish: Callable[[list[Completion] | BaseException], None]
    is_cancelled: bool = False
    replies: list[Reply] = field(default_factory=list)

    @property
    def is_answered(self) -> bool:
        return all(reply.finish_reason is not None for reply in self.replies)
