"""Records the chat completions of an OpenAI client, whatever agent framework calls it.

    client = record_openai(AsyncOpenAI(base_url=…))
    async with trajectory.step(state):
        await client.chat.completions.create(model=…, messages=…)   # logged to that step

The hook is the client's ``request``, which every way to get a completion uses: ``create``, ``parse``, ``stream``,
``with_raw_response`` (LangChain's), ``beta``, and the same on copies made by ``with_options``. If recording fails, the
log gets a warning: the agent never loses an answer that has been paid for.

Token ids and log-probabilities are kept where the endpoint returns them: vLLM's ``token_ids``, its
``token_id:123`` spelling in the log-probabilities, and OpenAI's plain log-probabilities (without ids).

With ``lessons``, what was learnt earlier is put into the system text of each completion, as of the step's time. It is
logged as it was sent.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from data_bridge.lesson_client import Decider, LessonLookup, put_lessons
from data_bridge.models import ChatMessage, LLMCall
from data_bridge.recording import StepRecording, current_step, last_text

if TYPE_CHECKING:
    from openai import AsyncOpenAI

logger = logging.getLogger(__name__)

_CHAT_COMPLETIONS = "/chat/completions"
_TOKEN_ID = "token_id:"


def record_openai(
    client: AsyncOpenAI,
    step: StepRecording | None = None,
    *,
    purpose: str = "action",
    ask_for_tokens: bool = False,
    logprobs_temperature: float = 1.0,
    lessons: LessonLookup | None = None,
) -> AsyncOpenAI:
    """A copy of ``client`` whose chat completions are logged to ``step``, or to the step whose block is running.

    ``ask_for_tokens`` makes vLLM and similar servers return token ids and log-probabilities. Their temperature
    is 1 unless the endpoint is configured to scale them. ``lessons`` are looked up for every completion. The given
    client is not changed.
    """
    return _Recording(step, purpose, ask_for_tokens, logprobs_temperature, lessons).copy_of(client)


@dataclass(frozen=True, slots=True)
class _Recording:
    """How the calls of a client, and of all its copies, are recorded."""

    step: StepRecording | None
    purpose: str
    ask_for_tokens: bool
    logprobs_temperature: float
    lessons: LessonLookup | None = None

    def copy_of(self, client: AsyncOpenAI) -> AsyncOpenAI:
        from openai._legacy_response import LegacyAPIResponse

        recorded = client.with_options()
        send, copy = recorded.request, recorded.copy

        async def send_and_log(cast_to: Any, options: Any, *, stream: bool = False, **how: Any) -> Any:
            await self.put_lessons(options)
            call = self.begin(options)
            if call is not None:
                options.post_parser = _logging_parser(call, options.post_parser, stream=stream)
            answer = await send(cast_to, options, stream=stream, **how)
            if call is not None and isinstance(answer, LegacyAPIResponse) and not stream:
                with suppress(Exception):  # the agent gets the same error when it parses the answer
                    answer.parse()  # the agent may never do so
            return answer

        def copy_and_record(**changes: Any) -> AsyncOpenAI:
            return self.copy_of(copy(**changes))

        # Only on this copy of the client.
        recorded.request = send_and_log  # type: ignore[method-assign]
        recorded.copy = recorded.with_options = copy_and_record  # type: ignore[method-assign]
        return recorded

    async def put_lessons(self, options: Any) -> None:
        """Put lessons into the request's system text, unless it has no step: the time of a decision is its step's."""
        target = self.step or current_step.get()
        if self.lessons is None or target is None or not _is_chat(options):
            return
        with _at_worst_a_warning("lessons could not be put into a chat completion"):
            given = list(options.json_data.get("messages", ()))
            decider = Decider(target.agent_id, target.at, target.role)
            shown, found = await put_lessons([_message(one) for one in given], self.lessons, decider)
            if found:  # only the system text changes; everything else is sent as the agent gave it
                first = {"role": "system", "content": shown[0].content}
                rest = given if len(shown) > len(given) else given[1:]
                options.json_data = {**options.json_data, "messages": [first, *rest]}

    def begin(self, options: Any) -> _Call | None:
        """The call behind a request with these ``options``; None if it is not to be recorded."""
        if not _is_chat(options):
            return None
        target = self.step or current_step.get()
        if target is None:
            logger.warning("a chat completion outside any step is not recorded")
            return None
        if self.ask_for_tokens:
            options.json_data = {"logprobs": True, **options.json_data}
            options.extra_json = {"return_token_ids": True, **(options.extra_json or {})}
        request = {**options.json_data, **(options.extra_json or {})}
        return _Call(target, request, self.purpose, self.logprobs_temperature, time.monotonic())


def _logging_parser(call: _Call, parser: Any, *, stream: bool) -> Callable[[Any], Any]:
    """A parser that logs every answer, whichever method requested it, and then calls the agent's own ``parser``."""

    def log_and_parse(answer: Any) -> Any:
        if stream:
            return _RecordedStream(answer, call)
        call.log_completion(answer)
        return parser(answer) if callable(parser) else answer  # openai's NOT_GIVEN is not callable

    return log_and_parse


def _is_chat(options: Any) -> bool:
    return options.url == _CHAT_COMPLETIONS and isinstance(options.json_data, Mapping)


@contextmanager
def _at_worst_a_warning(said: str = "a chat completion could not be recorded") -> Iterator[None]:
    try:
        yield
    except Exception:
        logger.warning(said, exc_info=True)


@dataclass(slots=True)
class _Call:
    """One request in flight, and what has been received for it."""

    step: StepRecording
    request: Mapping[str, Any]
    purpose: str
    logprobs_temperature: float
    started: float
    text: str = ""
    reasoning: str = ""
    model: str = ""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None
    is_logged: bool = False

    def log_completion(self, completion: Any) -> None:
        """Log a complete answer, once. The agent continues with the first choice, so only that one is logged."""
        if self.is_logged:  # an agent may parse a raw response several times
            return
        self.is_logged = True
        with _at_worst_a_warning():
            self.add(completion)
            if completion.choices:
                message = completion.choices[0].message
                self.text = message.content or ""
                self.reasoning = getattr(message, "reasoning_content", None) or ""
                self.tool_calls = [call.model_dump(exclude_none=True) for call in message.tool_calls or ()]
            self.log()

    def log_chunks(self, chunks: Sequence[Any]) -> None:
        """Log a streamed answer: all of it, or nothing if a chunk cannot be parsed."""
        with _at_worst_a_warning():
            for chunk in chunks:
                self.add_chunk(chunk)
            self.log()

    def add_chunk(self, chunk: Any) -> None:
        self.add(chunk)
        if chunk.choices and chunk.choices[0].index == 0:
            delta = chunk.choices[0].delta
            self.text += delta.content or ""
            self.reasoning += getattr(delta, "reasoning_content", None) or ""
            for part in delta.tool_calls or ():
                _merge_tool_call(self.tool_calls, part.model_dump(exclude_none=True))

    def add(self, answer: Any) -> None:
        """Add what answers and chunks have in common: model, usage, tokens."""
        self.model = answer.model or self.model
        if answer.usage is not None:
            self.prompt_tokens = answer.usage.prompt_tokens
            self.completion_tokens = answer.usage.completion_tokens
        if not answer.choices or answer.choices[0].index != 0:
            return
        choice = answer.choices[0]
        self.finish_reason = choice.finish_reason or self.finish_reason
        content = (choice.logprobs.content if choice.logprobs is not None else None) or []
        self.logprobs += [token.logprob for token in content]
        self.token_ids += token_ids_of(choice)

    def log(self) -> None:
        has_ids, has_both = bool(self.token_ids), len(self.token_ids) == len(self.logprobs)
        if has_ids and self.logprobs and not has_both:
            logger.warning("the endpoint gave %d token ids, %d logprobs", len(self.token_ids), len(self.logprobs))
        messages = [_message(message) for message in self.request.get("messages", ())]
        self.step.log_llm_call(
            LLMCall(
                model=self.model or str(self.request.get("model", "")),
                system_prompt=last_text(messages, "system"),
                user_prompt=last_text(messages, "user"),
                messages=None if _is_plain(messages) else messages,
                response=self.text,
                reasoning=self.reasoning or None,
                purpose=self.purpose,
                temperature=_number(self.request.get("temperature"), 1.0),
                max_tokens=_number(self.request.get("max_completion_tokens") or self.request.get("max_tokens"), 0),
                top_p=_number(self.request.get("top_p"), None),
                latency_ms=round(1000 * (time.monotonic() - self.started), 1),
                prompt_tokens=self.prompt_tokens,
                completion_tokens=self.completion_tokens,
                tool_calls=self.tool_calls or None,
                completion_token_ids=self.token_ids if has_ids else None,
                completion_logprobs=self.logprobs if has_ids and has_both else None,
                logprobs_temperature=self.logprobs_temperature if has_ids and has_both else None,
                finish_reason=self.finish_reason,
            )
        )


class _RecordedStream:
    """Wraps the endpoint's stream and logs it when it ends or is closed. Otherwise it behaves like the original."""

    def __init__(self, stream: Any, call: _Call) -> None:
        self._stream = stream
        self._call = call
        self._chunks = self._read()

    async def _read(self) -> AsyncIterator[Any]:
        seen: list[Any] = []
        try:
            async for chunk in self._stream:
                seen.append(chunk)
                yield chunk
        finally:
            self._call.log_chunks(seen)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._chunks

    async def __anext__(self) -> Any:
        return await self._chunks.__anext__()

    async def __aenter__(self) -> _RecordedStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await cast(Any, self._chunks).aclose()
        await self._stream.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def token_ids_of(choice: Any) -> list[int]:
    """The token ids of an answer's choice: vLLM's ``token_ids``, or from names like ``token_id:123``. Empty if neither
    is given: a token's text does not identify the token."""
    if given := getattr(choice, "token_ids", None):
        return list(given)
    content = (choice.logprobs.content if choice.logprobs is not None else None) or []
    names = [token.token.removeprefix(_TOKEN_ID) for token in content if token.token.startswith(_TOKEN_ID)]
    return [int(name) for name in names if name.isdecimal()]


def _message(message: Any) -> ChatMessage:
    parts = message if isinstance(message, Mapping) else message.model_dump(exclude_none=True)
    return ChatMessage(
        role=parts["role"],
        content=parts.get("content"),
        name=parts.get("name"),
        tool_calls=list(parts["tool_calls"]) if parts.get("tool_calls") else None,
        tool_call_id=parts.get("tool_call_id"),
    )


def _is_plain(messages: Sequence[ChatMessage]) -> bool:
    """Whether system and user prompt are the whole conversation, as the game's recorder assumes."""
    return [message.role for message in messages] in (["user"], ["system", "user"]) and all(
        isinstance(message.content, str) and message.name is None for message in messages
    )


def _number(value: Any, default: float | None) -> float | None:
    return value if isinstance(value, int | float) else default


def _merge_tool_call(calls: list[dict[str, Any]], part: dict[str, Any]) -> None:
    """Merge one part of a streamed tool call, identified by its index; the arguments are pieces of one text."""
    index = part.pop("index", len(calls))
    while len(calls) <= index:
        calls.append({"type": "function", "function": {"name": "", "arguments": ""}})
    function = part.pop("function", {})
    calls[index] |= part
    for key, text in function.items():
        calls[index]["function"][key] = calls[index]["function"].get(key, "") + text
