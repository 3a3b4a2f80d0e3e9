"""The shapes of the OpenAI chat API: what a request may say, how a reply and an error look.

Strict where a wrong value would change the answer, tolerant of fields that other servers have and we do not.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from data_bridge.models import ChatMessage
from trainer.types import Completion

MOST_REPLIES = 32
MOST_TOKENS = 2_048


class RequestError(Exception):
    """A request that cannot be answered, as the client is told."""

    def __init__(self, status: int, message: str, *, kind: str = "invalid_request_error", param: str | None = None):
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param

    def body(self) -> dict[str, Any]:
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": None}}


class _Message(BaseModel):
    role: str = Field(min_length=1, max_length=32)
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _only_text(self) -> _Message:
        self.chat().text()
        return self

    def chat(self) -> ChatMessage:
        return ChatMessage(**self.model_dump())


class ChatCompletionRequest(BaseModel):
    """The part of OpenAI's request that a small model on a CPU can honour."""

    model_config = ConfigDict(extra="ignore")

    model: str
    messages: list[_Message] = Field(min_length=1)
    n: int = Field(default=1, ge=1, le=MOST_REPLIES)
    temperature: float = Field(default=1.0, ge=0, le=2, allow_inf_nan=False)
    max_tokens: int | None = Field(default=None, ge=1, le=MOST_TOKENS)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=MOST_TOKENS)
    stop: list[str] = Field(default_factory=list, max_length=4)
    seed: int | None = None
    logprobs: bool = False
    return_tokens_as_token_ids: bool = False
    """vLLM's: log-probabilities name tokens ``token_id:N`` instead of by their text."""
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    user: str | None = None
    """The agent's id: decides whether it belongs to a canary."""
    tools: list[Any] | None = None
    functions: list[Any] | None = None
    response_format: dict[str, Any] | None = None
    top_p: float = Field(default=1.0, ge=0, le=1)
    top_logprobs: int = Field(default=0, ge=0, le=20)
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    logit_bias: dict[str, float] | None = None

    @field_validator("stop", mode="before")
    @classmethod
    def _one_stop_is_a_list(cls, value: object) -> object:
        if value is None:
            return []
        return [value] if isinstance(value, str) else value

    @field_validator(
        *("n", "temperature", "logprobs", "return_tokens_as_token_ids", "stream", "top_p", "top_logprobs"),
        *("presence_penalty", "frequency_penalty"),
        mode="before",
    )
    @classmethod
    def _null_is_the_default(cls, value: object, info: Any) -> object:
        return cls.model_fields[info.field_name].default if value is None else value

    @model_validator(mode="after")
    def _nothing_that_would_be_left_out(self) -> ChatCompletionRequest:
        """A reply that ignores what was asked for would look right and be wrong, not least to train on."""
        plain = self.response_format is None or self.response_format.get("type") == "text"
        asked = {
            "tools": self.tools,
            "functions": self.functions,
            "response_format": not plain,
            "top_p": self.top_p != 1,
            "top_logprobs": self.top_logprobs,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "logit_bias": self.logit_bias,
        }
        for name, is_asked in asked.items():
            if is_asked:
                raise ValueError(f"{name} is not supported by this server: leave it out")
        return self

    @property
    def token_limit(self) -> int:
        return self.max_completion_tokens or self.max_tokens or 256

    @property
    def wants_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.get("include_usage"))

    def chat(self) -> list[ChatMessage]:
        return [message.chat() for message in self.messages]


def parse_request(body: bytes) -> ChatCompletionRequest:
    """The request in ``body``, or a RequestError that names the parameter at fault."""
    try:
        return ChatCompletionRequest.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or None
        message = first["msg"].removeprefix("Value error, ")
        raise RequestError(400, f"{place}: {message}" if place else message, param=place) from None


def response_of(request: ChatCompletionRequest, replies: Sequence[Completion]) -> dict[str, Any]:
    """The whole reply. ``model`` names the exact checkpoint; each choice also has its ``token_ids``."""
    return _head("chat.completion", replies[0].model) | {
        "choices": [_choice(index, reply, request) for index, reply in enumerate(replies)],
        "usage": _usage(replies),
    }


class Chunks:
    """The replies to one request as the chunks of a stream: the role, text as it grows, then why it ended."""

    def __init__(self, request: ChatCompletionRequest, model: str) -> None:
        self._request = request
        self._frame = _head("chat.completion.chunk", model)
        self._sent = [""] * request.n
        self._held_back = max((len(stop) for stop in request.stop), default=1) - 1

    def opening(self) -> list[dict[str, Any]]:
        return [self._delta(index, {"role": "assistant", "content": ""}) for index in range(self._request.n)]

    def growth(self, index: int, text: str) -> list[dict[str, Any]]:
        """What is new in ``text``. The end is held back while it may be half a character or half a stop string."""
        certain = text.rstrip("\ufffd")
        certain = certain[: len(certain) - self._held_back] if self._held_back else certain
        return self._new(index, certain)

    def ending(self, replies: Sequence[Completion]) -> list[dict[str, Any]]:
        """What was held back, why each reply ended, log-probabilities and usage if asked for."""
        chunks: list[dict[str, Any]] = []
        for index, reply in enumerate(replies):
            chunks += self._new(index, reply.text)
            end = self._delta(index, {}, reply.finish_reason)
            if self._request.logprobs:
                whole = _choice(index, reply, self._request)
                end["choices"][0] |= {"logprobs": whole["logprobs"], "token_ids": whole["token_ids"]}
            chunks.append(end)
        if self._request.wants_usage:
            chunks.append(self._frame | {"choices": [], "usage": _usage(replies)})
        return chunks

    def _new(self, index: int, text: str) -> list[dict[str, Any]]:
        if len(text) <= len(self._sent[index]) or not text.startswith(self._sent[index]):
            return []
        added, self._sent[index] = text[len(self._sent[index]) :], text
        return [self._delta(index, {"content": added})]

    def _delta(self, index: int, delta: dict[str, str], finish_reason: str | None = None) -> dict[str, Any]:
        return self._frame | {"choices": [{"index": index, "delta": delta, "finish_reason": finish_reason}]}


def _head(kind: str, model: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": model}


def _choice(index: int, reply: Completion, request: ChatCompletionRequest) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "index": index,
        "message": {"role": "assistant", "content": reply.text, "refusal": None},
        "finish_reason": reply.finish_reason,
        "logprobs": None,
    }
    if request.logprobs:
        choice["token_ids"] = list(reply.token_ids)
        names = [f"token_id:{token}" for token in reply.token_ids]
        spelt = names if request.return_tokens_as_token_ids else reply.token_texts
        choice["logprobs"] = {
            "content": [
                {"token": token, "logprob": logprob, "bytes": _bytes(text), "top_logprobs": []}
                for token, text, logprob in zip(spelt, reply.token_texts, reply.logprobs, strict=True)
            ],
            "refusal": None,
        }
    return choice


def _bytes(text: str) -> list[int] | None:
    """None for a token that is only a part of a character."""
    return None if "\ufffd" in text else list(text.encode())


def _usage(replies: Sequence[Completion]) -> dict[str, int]:
    read, written = replies[0].prompt_tokens, sum(len(reply.token_ids) for reply in replies)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
