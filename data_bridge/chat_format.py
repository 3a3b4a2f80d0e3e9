"""An agent's call as chat messages: exactly what its model saw, in the shape that chat templates take."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from data_bridge.models import ChatMessage, LLMCall

_CHECKPOINT = re.compile(r"(?P<model>.*?)[@:]step(?P<step>\d+)")


class NotText(ValueError):
    """A message has parts that are not text, such as an image."""


@dataclass(frozen=True, slots=True)
class Author:
    """Who wrote a reply: the model's name and, where it tells, the checkpoint's step."""

    model: str
    step: int | None


def author_of(call: LLMCall) -> Author:
    """``hindsight@step3`` and ``wandb-artifact:///team/project/hindsight:step3`` are both step 3 of hindsight."""
    name = call.model.rsplit("/", 1)[-1]
    match = _CHECKPOINT.fullmatch(name)
    return Author(name, None) if match is None else Author(match["model"], int(match["step"]))


def seen_messages(call: LLMCall) -> list[ChatMessage]:
    """The messages the model was given. Some writers append the reply itself to the log; it was not seen."""
    messages = call.chat()
    if call.messages and messages[-1].role == "assistant" and text_of(messages[-1]) == call.response:
        return messages[:-1]
    return messages


def as_dicts(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Messages as chat templates take them: text content, no nulls, nothing that was not said."""
    shaped: list[dict[str, Any]] = []
    for message in messages:
        entry: dict[str, Any] = {"role": message.role, "content": text_of(message)}
        for key in ("name", "tool_calls", "tool_call_id"):
            if (value := getattr(message, key)) is not None:
                entry[key] = value
        shaped.append(entry)
    return shaped


def text_of(message: ChatMessage) -> str:
    """The text of a message; parts are joined as they stand. NotText if one is something else."""
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    texts = []
    for part in message.content:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            raise NotText(f"a {message.role} message has a part that is not text")
    return "".join(texts)
