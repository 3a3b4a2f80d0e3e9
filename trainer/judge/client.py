"""One request to an OpenAI-compatible endpoint, in a dialect that it understands, and what a failure means.

The caller makes the retries, because it counts and records every call. The ``openai`` package is imported when an
endpoint is opened, since that takes a second.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from data_bridge.errors import ConfigurationError, HindsightError, JudgeError
from data_bridge.quality import Reason
from data_bridge.redaction import redact, register_secret
from trainer.judge.prompt import CUT_OFF, Prompt
from trainer.judge.reply import schema
from trainer.judge.text import clean, count_tokens
from trainer.ledger.verdicts import CallResult

if TYPE_CHECKING:
    from openai import APIConnectionError, APIStatusError

logger = logging.getLogger(__name__)

OPENAI = "https://api.openai.com/v1"

CONNECT_TIMEOUT = 5.0  # seconds: a host that is cut off the network does not even refuse a connection
_MAX_MESSAGE = 300  # characters of an endpoint's message
_MAX_TOKENS = 100_000_000  # per call: an endpoint that reports more has miscounted
_OVER_CONTEXT = ("context_length", "context length", "maximum context", "too many tokens", "prompt is too long")
_FILTERED = (
    *("content_filter", "content filter", "content management policy", "responsibleaipolicy"),  # Azure
    *("content_policy", "invalid_prompt", "usage policy", "usage policies"),  # OpenAI
    *("requires moderation", "was flagged"),  # OpenRouter, with status 403
)


@dataclass(frozen=True, slots=True)
class JudgeReply:
    """The endpoint's reply. ``fault`` is set if it is not a judgement: a refusal, or cut off."""

    text: str
    fault: str | None
    used: Tokens
    tokens_estimated: bool
    latency_ms: float


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a call, as the endpoint counts them."""

    prompt: int
    completion: int
    cached: int = 0
    """Of the prompt's, those that the provider's prefix cache served."""


@dataclass(eq=False)
class CallFailed(Exception):
    """No answer. At most one of ``again`` (retry immediately), ``reason`` and ``fatal`` is set; none: retry later.

    With the result FILTERED, the endpoint may answer if it is not shown one of the trajectories.
    ``used`` is the usage that the endpoint reports anyway; without it, ``may_be_billed`` says whether the request may
    have been processed.
    """

    result: CallResult
    fault: str
    _: KW_ONLY
    retry_after: float | None = None
    again: bool = False
    reason: Reason | None = None
    fatal: HindsightError | None = None
    used: Tokens | None = None
    may_be_billed: bool = False
    is_cut: bool = False  # there was no connection, or it was lost: unlike a slow endpoint, this one may be gone
    latency_ms: float = 0.0

    def __str__(self) -> str:
        return self.fault


class Structure(StrEnum):
    JSON_SCHEMA = "json_schema"
    JSON_MODE = "json_object"
    TEXT = "text"


_POORER = {Structure.JSON_SCHEMA: Structure.JSON_MODE, Structure.JSON_MODE: Structure.TEXT}


@dataclass(frozen=True, slots=True)
class Dialect:
    """The part of the chat completions API that an endpoint supports: learnt from its refusals, and remembered.

    The first request uses the richest dialect: a strict JSON schema. Endpoints that do not support it answer 400; then
    JSON mode is tried, then plain text. Reasoning models need another name for the token limit and no temperature.
    """

    structure: Structure = Structure.JSON_SCHEMA
    limit_name: str = "max_completion_tokens"
    temperature: float | None = 0.0

    def fields(self, reply_tokens: int, *, with_correction: bool = False, with_steps: bool = False) -> dict[str, Any]:
        """The request's fields besides model and messages."""
        fields: dict[str, Any] = {self.limit_name: reply_tokens}
        if self.temperature is not None:
            fields["temperature"] = self.temperature
        if self.structure is Structure.JSON_SCHEMA:
            shape = schema(with_correction=with_correction, with_steps=with_steps)
            wanted = {"name": "scores", "strict": True, "schema": shape}
            fields["response_format"] = {"type": "json_schema", "json_schema": wanted}
        elif self.structure is Structure.JSON_MODE:
            fields["response_format"] = {"type": "json_object"}
        return fields

    def poorer(self, refusal: str) -> Dialect | None:
        """The next dialect to try after the endpoint refused this one with this message; None if there is none left."""
        words = refusal.lower()
        if "max_completion_tokens" in words and self.limit_name == "max_completion_tokens":
            return replace(self, limit_name="max_tokens")
        if "temperature" in words and self.temperature is not None:
            return replace(self, temperature=None)
        structure = _POORER.get(self.structure)
        return None if structure is None else replace(self, structure=structure)


class Endpoint:
    """The judge's model at its endpoint. Remembers which dialect it speaks."""

    def __init__(
        self,
        model: str,
        base_url: str | None,
        api_key: str,
        timeout: timedelta,
        reply_tokens: int,
        structure: Structure = Structure.JSON_SCHEMA,
    ) -> None:
        import httpx
        from openai import AsyncOpenAI, DefaultAioHttpClient

        _freeze_imports()
        register_secret(api_key)
        self._model = model
        self.base_url, login = _without_login(base_url or OPENAI)
        self._timeout = timeout.total_seconds()
        self._reply_tokens = reply_tokens
        try:
            self._client = AsyncOpenAI(
                api_key=api_key,
                base_url=self.base_url,
                default_headers=login,
                max_retries=0,
                timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT),  # ``_request`` has its own for the answer
                http_client=DefaultAioHttpClient(),  # with 64 calls in flight httpx's own pool takes most of the time
            )
        except (OSError, ValueError, httpx.InvalidURL) as error:
            raise ConfigurationError(
                f"The judge's client cannot be created ({redact(str(error))}): "
                "check JUDGE_BASE_URL, SSL_CERT_FILE and the proxy variables."
            ) from error
        self._dialect = Dialect(structure)
        self._understood: set[Dialect] = set()

    @property
    def label(self) -> str:
        """The endpoint's host, safe to print."""
        return urlsplit(self.base_url).hostname or "the endpoint"

    async def send(self, prompt: Prompt) -> JudgeReply:
        """The answer to one prompt. CallFailed says whether and when to retry."""
        started = time.monotonic()
        dialect = self._dialect
        try:
            body = await self._request(prompt, dialect)
            reply = _reply(body, prompt, (time.monotonic() - started) * 1000)
        except CallFailed as failure:
            failure.latency_ms = (time.monotonic() - started) * 1000
            raise
        self._understood.add(dialect)
        return reply

    async def close(self) -> None:
        await self._client.close()

    async def _request(self, prompt: Prompt, dialect: Dialect) -> str:
        import httpx
        from openai import APIConnectionError, APIStatusError

        messages = [{"role": "system", "content": prompt.system}, {"role": "user", "content": prompt.user}]
        fields = dialect.fields(
            self._reply_tokens, with_correction=prompt.with_correction, with_steps=bool(prompt.decisions)
        )
        body = {"model": self._model, "messages": messages, **fields}
        try:
            async with asyncio.timeout(self._timeout):
                # Not ``chat.completions.create``: its typed transformation of our plain fields costs milliseconds.
                response = await self._client.post("/chat/completions", body=body, cast_to=httpx.Response)
                return response.text
        except TimeoutError as error:
            fault = f"no answer within {self._timeout:g} s"
            raise CallFailed(CallResult.TIMEOUT, fault, may_be_billed=True) from error
        except APIStatusError as error:
            raise self._explain(error, dialect) from error
        except APIConnectionError as error:
            fault = f"the connection to {self.label} failed ({_origin(error)})"
            raise CallFailed(CallResult.FAILED, fault, may_be_billed=_was_sent(error), is_cut=True) from error

    def _explain(self, error: APIStatusError, dialect: Dialect) -> CallFailed:
        status = error.status_code
        message = redact(clean(_message(error)))
        signs, words = message.lower(), message[:_MAX_MESSAGE]
        fault = f"{self.label} answered {status}: {words}"
        if status == 429 and "insufficient_quota" not in words:
            return CallFailed(CallResult.BUSY, fault, retry_after=retry_after_of(error.response.headers))
        if status in (408, 409, 425) or (status >= 500 and status != 501):
            return CallFailed(CallResult.FAILED, fault, retry_after=retry_after_of(error.response.headers))
        if any(sign in signs for sign in _OVER_CONTEXT) or status == 413:
            return CallFailed(CallResult.REFUSED, fault, reason=Reason.OVER_CONTEXT)
        if status not in (401, 402, 404) and any(sign in signs for sign in _FILTERED):
            return CallFailed(CallResult.FILTERED, fault, reason=Reason.JUDGE_FILTERED)
        if status in (400, 415, 422, 501):
            return self._not_understood(fault, words, dialect)
        return CallFailed(CallResult.REFUSED, fault, fatal=self._fatal(status, words))

    def _not_understood(self, fault: str, words: str, dialect: Dialect) -> CallFailed:
        """In a dialect that has worked before, the content was refused; otherwise a poorer dialect is tried."""
        if dialect in self._understood:
            return CallFailed(CallResult.FILTERED, fault, reason=Reason.JUDGE_UNAVAILABLE)
        if dialect != self._dialect:  # another call has already changed it
            return CallFailed(CallResult.REFUSED, fault, again=True)
        poorer = dialect.poorer(words)
        if poorer is None:
            return CallFailed(
                CallResult.REFUSED,
                fault,
                fatal=JudgeError(f"The judge refuses our requests ({fault}); check JUDGE_MODEL and JUDGE_BASE_URL."),
            )
        logger.info("judge %s: %s; trying %s", self._model, fault, poorer)
        self._dialect = poorer
        return CallFailed(CallResult.REFUSED, fault, again=True)

    def _fatal(self, status: int, words: str) -> HindsightError:
        if status == 401:
            return ConfigurationError(f"{self.label} does not accept the judge's key (401): set JUDGE_API_KEY.")
        if status == 403:
            return ConfigurationError(
                f"{self.label} does not allow this key to use the model {self._model} (403): {_unstopped(words)}; "
                "check JUDGE_API_KEY and JUDGE_MODEL."
            )
        if status == 404:
            return ConfigurationError(
                f"{self.label} has no model {self._model} (404): check JUDGE_MODEL and JUDGE_BASE_URL."
            )
        if status in (402, 429):
            return JudgeError(f"The judge's account at {self.label} has no credit left ({status}): top it up.")
        return JudgeError(f"The judge at {self.label} answered {status}: {_unstopped(words)}; check JUDGE_BASE_URL.")


def retry_after_of(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Seconds that the endpoint asks us to wait, from any of the headers that can say so."""
    milliseconds = headers.get("retry-after-ms")
    given = headers.get("retry-after")
    try:
        if milliseconds is not None:
            return float(milliseconds) / 1000
        if given is None:
            return None
        return float(given)
    except ValueError:
        pass
    try:
        return (parsedate_to_datetime(given or "") - (now or datetime.now(UTC))).total_seconds()
    except (TypeError, ValueError):
        return None


def _without_login(url: str) -> tuple[str, dict[str, str]]:
    """The URL without user and password, and a header with them instead: aiohttp refuses credentials in both places."""
    parts = urlsplit(url)
    if parts.username is None:
        return url, {}
    user, password = unquote(parts.username), unquote(parts.password or "")
    register_secret(password)
    said = b64encode(f"{user}:{password}".encode()).decode()
    register_secret(said)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl(), {"Authorization": f"Basic {said}"}


@cache
def _freeze_imports() -> None:
    """Exclude everything imported so far from garbage collection, once: scanning it stops all calls for 0.1 s."""
    gc.collect()
    gc.freeze()


def _reply(body: str, prompt: Prompt, latency_ms: float) -> JudgeReply:
    told: Tokens | None = None
    try:
        reply = json.loads(body)
        told = _usage(reply.get("usage"))
        error = reply.get("error") or (reply.get("choices") or [{}])[0].get("error")
        if error:
            raise _error_in_answer(error, told)
        choice = reply["choices"][0]
        message = choice["message"]
        text = message.get("content") or ""
        if not isinstance(text, str):
            raise TypeError("content is no text")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CallFailed(
            CallResult.FAILED, "the answer was no chat completion", used=told, may_be_billed=True
        ) from error
    fault = None
    if message.get("refusal") or choice.get("finish_reason") == "content_filter":
        fault = "it was a refusal"
    elif choice.get("finish_reason") == "length":
        fault = CUT_OFF
    used = told or Tokens(count_tokens(prompt.system + prompt.user), count_tokens(text))
    return JudgeReply(text, fault, used, told is None, latency_ms)


def _error_in_answer(error: Any, told: Tokens | None) -> CallFailed:
    """A provider's error behind a status of 200: the gateway had begun to answer."""
    parts = [error.get(name) for name in ("message", "code", "metadata")] if isinstance(error, dict) else [error]
    message = redact(clean(" ".join(str(part) for part in parts if part)))
    fault = f"the answer was an error: {message[:_MAX_MESSAGE]}"
    if any(sign in message.lower() for sign in _FILTERED):
        return CallFailed(CallResult.FILTERED, fault, reason=Reason.JUDGE_FILTERED, used=told)
    return CallFailed(CallResult.FAILED, fault, used=told, may_be_billed=True)


def _usage(used: Any) -> Tokens | None:
    """Tokens of the prompt and of the reply as the endpoint counts them; None if it gives none or invalid counts."""
    if not isinstance(used, dict):
        return None
    counted = used.get("prompt_tokens"), used.get("completion_tokens")
    match counted:
        case (int(asked), int(answered)) if 0 <= asked <= _MAX_TOKENS and 0 <= answered <= _MAX_TOKENS:
            return Tokens(asked, answered, min(asked, _cached(used)))
    return None


def _cached(used: dict[str, Any]) -> int:
    """Tokens of the prompt that came from the prefix cache: OpenAI's name for it, DeepSeek's and Anthropic's."""
    details = used.get("prompt_tokens_details")
    told = [details.get("cached_tokens") if isinstance(details, dict) else None]
    told += [used.get("prompt_cache_hit_tokens"), used.get("cache_read_input_tokens")]
    return next((count for count in told if isinstance(count, int) and 0 < count <= _MAX_TOKENS), 0)


def _was_sent(error: APIConnectionError) -> bool:
    """Whether the request may have reached the endpoint before its connection was lost."""
    import aiohttp

    causes = list(_causes(error))
    is_lost = any(isinstance(cause, aiohttp.ClientConnectionError | aiohttp.ClientPayloadError) for cause in causes)
    unconnected = aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError
    return is_lost and not any(isinstance(cause, unconnected) for cause in causes)


def _origin(error: BaseException) -> str:
    *_, origin = _causes(error)
    return type(origin).__name__


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and the errors it wraps, the original one last."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _message(error: APIStatusError) -> str:
    """The endpoint's own message, with its error code if it gives one."""
    body: Any = error.body
    if isinstance(body, dict):
        told = [body.get("message"), body.get("code"), body.get("type")]
        if any(told):
            return " ".join(str(part) for part in told if part)
    return error.response.text or error.message


def _unstopped(words: str) -> str:
    return words.rstrip(". ")
