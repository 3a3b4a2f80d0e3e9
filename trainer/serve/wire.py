"""The shapes of the OpenAI chat API: what a request may say, how a reply and an error look.

A field that would be ignored is refused with its name: a reply that leaves out what was asked for looks right and is
wrong, not least to train on. A value that asks for nothing (``top_p`` 1) and notes to the provider are let through.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from data_bridge.models import ChatMessage
from data_bridge.redaction import redact
from trainer.types import Completion

MOST_REPLIES = 32
MOST_TOKENS = 2_048
MOST_MESSAGES = 1_024

_ASKS_FOR_NOTHING: dict[str, tuple[Any, ...]] = {
    "top_p": (1,),
    "top_k": (-1, 0),
    "min_p": (0,),
    "repetition_penalty": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "response_format": ({"type": "text"},),
}
_NOTES = {"metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls"}
_NOTES_OF_A_MESSAGE = {"refusal", "annotations"}


class RequestError(Exception):
    """A request that cannot be answered, as the client is told."""

    def __init__(self, status: int, message: str, *, kind: str = "invalid_request_error", param: str | None = None):
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param

    def body(self) -> dict[str, Any]:
        return {"error": {"message": redact(str(self)), "type": self.kind, "param": self.param, "code": None}}


def not_served(name: str) -> RequestError:
    return RequestError(404, f"The model {name[:256]!r} is not served here; see /v1/models.", param="model")


class _Message(BaseModel):
    model_config = ConfigDict(extra="allow")

    role: Literal["system", "user", "assistant"]
    content: str
    name: str | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _only_text(cls, value: object) -> object:
        """Text parts are joined; only the text is kept while the request waits."""
        if not isinstance(value, list):
            return value
        if any(not isinstance(part, dict) or part.get("type") != "text" for part in value):
            raise ValueError("a part of the message is not text, and this server reads nothing else")
        return ChatMessage("user", value).text()

    def chat(self) -> ChatMessage:
        return ChatMessage(self.role, self.content, self.name)


class ChatCompletionRequest(BaseModel):
    """The part of OpenAI's request that a small model on a CPU can honour."""

    model_config = ConfigDict(extra="allow")

    model: str = Field(max_length=256)
    messages: list[_Message] = Field(min_length=1, max_length=MOST_MESSAGES)
    n: int = Field(default=1, ge=1, le=MOST_REPLIES)
    temperature: float = Field(default=1.0, ge=0, le=2, allow_inf_nan=False)
    max_tokens: int | None = Field(default=None, ge=1, le=MOST_TOKENS)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=MOST_TOKENS)
    stop: list[str] = Field(default_factory=list, max_length=4)
    seed: int | None = None
    logprobs: bool = False
    return_tokens_as_token_ids: bool = False
    """vLLM's: log-probabilities name tokens ``token_id:N`` instead of by their text."""
    return_token_ids: bool = False
    """vLLM's: the reply's token ids, which also come with log-probabilities."""
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    user: str | None = Field(default=None, max_length=1_024)
    """The agent's id: decides whether it belongs to a canary."""

    @field_validator("stop", mode="before")
    @classmethod
    def _one_stop_is_a_list(cls, value: object) -> object:
        if value is None:
            return []
        return [value] if isinstance(value, str) else value

    @field_validator(
        *("n", "temperature", "logprobs", "return_tokens_as_token_ids", "return_token_ids", "stream"), mode="before"
    )
    @classmethod
    def _null_is_the_default(cls, value: object, info: Any) -> object:
        return cls.model_fields[info.field_name].default if value is None else value

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
        request = ChatCompletionRequest.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or None
        message = first["msg"].removeprefix("Value error, ")
        raise RequestError(400, f"{place}: {message}" if place else message, param=place) from None
    _refuse_others(request, _NOTES)
    for number, said in enumerate(request.messages):
        _refuse_others(said, _NOTES_OF_A_MESSAGE, f"messages.{number}.")
    return request


def _refuse_others(part: BaseModel, notes: set[str], place: str = "") -> None:
    """Refuse fields that would be ignored; forget the rest, so that a waiting request holds only what it needs."""
    others = part.model_extra or {}
    for name, value in others.items():
        if value is None or name in notes or value in _ASKS_FOR_NOTHING.get(name, ()):
            continue
        param = f"{place}{name[:64]}"
        raise RequestError(400, f"{param} is not supported by this server: leave it out", param=param)
    others.clear()


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
            whole = _choice(index, reply, self._request)
            end["choices"][0] |= {key: whole[key] for key in ("logprobs", "token_ids") if whole.get(key) is not None}
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
    if request.logprobs or request.return_token_ids:
        choice["token_ids"] = list(reply.token_ids)
    if request.logprobs:
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
