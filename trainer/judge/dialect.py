"""What an endpoint understands of the chat completions API: found out by its refusals, remembered, pure.

Every request starts in the richest dialect: a strict JSON schema. Endpoints that cannot do it say so with a
400; then JSON mode, then plain text. Reasoning models want another name for the token limit and no temperature.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from trainer.judge.reply import SCHEMA


class Structure(StrEnum):
    JSON_SCHEMA = "json_schema"
    JSON_MODE = "json_object"
    TEXT = "text"


_POORER = {Structure.JSON_SCHEMA: Structure.JSON_MODE, Structure.JSON_MODE: Structure.TEXT}


@dataclass(frozen=True, slots=True)
class Dialect:
    structure: Structure = Structure.JSON_SCHEMA
    limit_name: str = "max_completion_tokens"
    temperature: float | None = 0.0

    def fields(self, reply_tokens: int) -> dict[str, Any]:
        """The request's fields beside model and messages."""
        fields: dict[str, Any] = {self.limit_name: reply_tokens}
        if self.temperature is not None:
            fields["temperature"] = self.temperature
        if self.structure is Structure.JSON_SCHEMA:
            wanted = {"name": "scores", "strict": True, "schema": SCHEMA}
            fields["response_format"] = {"type": "json_schema", "json_schema": wanted}
        elif self.structure is Structure.JSON_MODE:
            fields["response_format"] = {"type": "json_object"}
        return fields

    def poorer(self, refusal: str) -> Dialect | None:
        """The next dialect to try after the endpoint refused this one with these words; None if there is none left."""
        words = refusal.lower()
        if "max_completion_tokens" in words and self.limit_name == "max_completion_tokens":
            return replace(self, limit_name="max_tokens")
        if "temperature" in words and self.temperature is not None:
            return replace(self, temperature=None)
        structure = _POORER.get(self.structure)
        return None if structure is None else replace(self, structure=structure)
