"""What is asked of the prompt policy: a prompt by its text or its embedding, checked before anything else sees it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, RootModel, Tag

from trainer.console.operations import TEXT

ACTIONS = ("keep", "try_catch", "context_reduction", "expansion", "constraint_addition", "task_decomposition")
"""As ``trainer.prompts.experience`` has them (a test compares): that module brings numpy, the first page must not."""
DIMENSIONS = 1536
_LARGEST = 1e6
"""Of a number in an embedding, and of a reward: far beyond what either can be."""

Mask = tuple[Literal[True], bool, bool, bool, bool, bool]
Number = Annotated[float, Field(strict=True, ge=-_LARGEST, le=_LARGEST, allow_inf_nan=False)]
Embedding = Annotated[list[Number], Field(min_length=DIMENSIONS, max_length=DIMENSIONS, description="1536 numbers.")]


class EmbeddedState(BaseModel):
    """A prompt by its embedding, and which mutations apply to it."""

    model_config = ConfigDict(extra="forbid")

    embedding: Embedding
    action_mask: Mask | None = Field(default=None, description="Which actions are allowed; unset: all.")


class WrittenState(BaseModel):
    """A prompt by its text: it is embedded here."""

    model_config = ConfigDict(extra="forbid")

    prompt: str = Field(min_length=1, max_length=100_000, pattern=TEXT)
    action_mask: Mask | None = Field(
        default=None, description="Which actions are allowed; unset: those that our operators could make of the prompt."
    )


class _Draw(BaseModel):
    model_config = ConfigDict(extra="forbid")

    deterministic: bool = Field(default=False, description="The most likely action instead of a drawn one.")
    seed: int | None = Field(default=None, ge=0, le=2**31 - 1, description="To draw the same action again.")


class EmbeddedSelect(EmbeddedState, _Draw):
    """A prompt to choose a mutation for, by its embedding."""


class WrittenSelect(WrittenState, _Draw):
    """A prompt to choose a mutation for, by its text."""


def _given_as(body: object) -> str | None:
    """Which of the two a body means, so that a refusal is about that one."""
    given = body if isinstance(body, dict) else {}
    return next((f"({name})" for name in ("prompt", "embedding") if name in given), None)


_GIVEN_AS = Discriminator(
    _given_as,
    custom_error_type="no_prompt",
    custom_error_message="Give a prompt, as its text or as its embedding",
)


class StateBody(
    RootModel[
        Annotated[
            Annotated[EmbeddedState, Tag("(embedding)")] | Annotated[WrittenState, Tag("(prompt)")],
            _GIVEN_AS,
        ]
    ]
):
    """A prompt."""


class SelectBody(
    RootModel[
        Annotated[
            Annotated[EmbeddedSelect, Tag("(embedding)")] | Annotated[WrittenSelect, Tag("(prompt)")],
            _GIVEN_AS,
        ]
    ]
):
    """A prompt to choose a mutation for."""
