"""The game's JSON text → the types of ``models``: steps, the judge's ground truth, news.

Nearly every row takes the fast path, one typed msgspec decode. What JavaScript writes and strict parsers
reject (a lone surrogate, a number in quotes, a null for a list) takes the lenient path, which gives the
same types. Whatever the text, these functions return or raise ``Undecodable``; nothing else.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from data_bridge.models import Action, ChatMessage, EnvironmentState, LLMCall, NewsEvent, Step
from data_bridge.quality import Reason

_FAST = msgspec.json.Decoder(list[Step])
_ANY = msgspec.json.Decoder()
_SURROGATE = re.compile("[\ud800-\udfff]")
_DEEPEST = 200  # levels of nesting; deeper text is not something a recorder wrote

_HEADLINE_KEYS = ("headline", "title", "event", "text", "content", "description", "summary")
_MOMENT_KEYS = ("timestamp", "publishedAt", "createdAt", "time", "date")

T = TypeVar("T", bound=msgspec.Struct)
V = TypeVar("V")


class Undecodable(ValueError):
    """The text gives no steps; ``reason`` says what the row is counted under."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class _Metadata(msgspec.Struct):
    """What is read of ``metadataJson``: the recorder nests the ground truth, the plugin logger does not."""

    gameKnowledge: dict[str, Any] | None = None
    trueProbabilities: Any = None
    actualOutcomes: Any = None
    futureOutcomes: Any = None
    hiddenVariables: Any = None
    role: Any = None
    agentRole: Any = None


_METADATA = msgspec.json.Decoder(_Metadata)


def decode_steps(text: str | bytes) -> list[Step]:
    """The steps of a ``stepsJson``: at least one. Unfinished (``pending``) actions are left out of their steps."""
    try:
        steps = _FAST.decode(text)
    except (ValueError, RecursionError):  # msgspec's errors and lone surrogates are ValueErrors
        steps = _lenient_steps(text)
    if not steps:
        raise Undecodable(Reason.NO_STEPS, "stepsJson is an empty list")
    for place, step in enumerate(steps):
        action = step.action
        # The first letter spares nearly every action the closer look: this loop runs over millions.
        if action is not None and action.action_type[:1] in "pP \t\n" and action.is_pending:
            steps[place] = msgspec.structs.replace(step, action=None)
    return steps


def decode_metadata(text: str | None) -> tuple[dict[str, Any] | None, str | None]:
    """The judge's ground truth and the agent's role, as far as ``metadataJson`` tells.

    Text that cannot be read is no fault of the trajectory: it says nothing, like an empty one.
    """
    if not text or text in ("{}", "null"):
        return None, None
    try:
        found = _METADATA.decode(text)
    except (ValueError, RecursionError):
        try:
            parsed = _parse(text)
        except Undecodable:
            return None, None
        if not isinstance(parsed, dict):
            return None, None
        known = {name: parsed.get(name) for name in _Metadata.__struct_fields__}
        if not isinstance(known["gameKnowledge"], dict):
            known["gameKnowledge"] = None
        found = _Metadata(**known)
    role = next((value for value in (found.role, found.agentRole) if isinstance(value, str) and value), None)
    truth = {
        "trueProbabilities": found.trueProbabilities,
        "actualOutcomes": found.actualOutcomes,
        "futureOutcomes": found.futureOutcomes,
        "hiddenVariables": found.hiddenVariables,
    }
    stated = {name: value for name, value in truth.items() if value} | (found.gameKnowledge or {})
    return stated or None, role


def decode_news(text: str | None) -> tuple[NewsEvent, ...]:
    """The headlines of a ``newsEvents``, whose shape the game does not fix: texts, objects, or an object of them."""
    if not text:
        return ()
    try:
        parsed = _ANY.decode(text)
    except (ValueError, RecursionError):
        try:
            parsed = _parse(text)
        except Undecodable:
            return ()
    if isinstance(parsed, dict):
        inner = next((parsed[key] for key in ("events", "news", "newsEvents", "items") if key in parsed), None)
        parsed = inner if isinstance(inner, list) else [parsed]
    if not isinstance(parsed, list):
        parsed = [parsed]
    return tuple([event for item in parsed if (event := _news_event(item)) is not None])


def _news_event(item: Any) -> NewsEvent | None:
    if isinstance(item, str):
        return NewsEvent(item.strip()) if item.strip() else None
    if not isinstance(item, dict):
        return None
    headline = _first(item, _HEADLINE_KEYS, _stripped)
    if headline is None:
        return None
    sentiment = item.get("sentiment")
    return NewsEvent(
        headline,
        timestamp=_first(item, _MOMENT_KEYS, _moment),
        sentiment=sentiment if isinstance(sentiment, str) else None,
    )


def _first(item: dict[str, Any], keys: tuple[str, ...], read: Callable[[Any], V | None]) -> V | None:
    """What ``read`` makes of the first of ``keys`` that it can make something of."""
    for key in keys:
        if key in item and (found := read(item[key])) is not None:
            return found
    return None


def _stripped(value: Any) -> str | None:
    return value.strip() or None if isinstance(value, str) else None


def _moment(value: Any) -> datetime | None:
    """A time as JavaScript writes it (milliseconds, or ISO 8601) as aware UTC."""
    try:
        if isinstance(value, str):
            moment = datetime.fromisoformat(value)
            return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        milliseconds = _number(value)
        return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None


# The lenient path


def _parse(text: str | bytes) -> Any:
    """JSON as JavaScript means it. A lone surrogate becomes U+FFFD, which is what the agent's own client sent."""
    try:
        parsed = json.loads(text)
        return _clean(parsed, 0)
    except RecursionError:
        raise Undecodable(Reason.MALFORMED_JSON, "nested too deeply") from None
    except ValueError as error:
        where = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise Undecodable(Reason.MALFORMED_JSON, f"not JSON{where}") from None


def _clean(value: Any, depth: int) -> Any:
    if depth > _DEEPEST:
        raise Undecodable(Reason.MALFORMED_JSON, "nested too deeply")
    if isinstance(value, str):
        return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, list):
        return [_clean(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {_clean(key, depth): _clean(item, depth + 1) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _lenient_steps(text: str | bytes) -> list[Step]:
    parsed = _parse(text)
    if parsed is None:
        raise Undecodable(Reason.NO_STEPS, "stepsJson is null")
    if not isinstance(parsed, list):
        raise Undecodable(Reason.MALFORMED_JSON, "stepsJson is not a list")
    return [_struct(Step, item) for item in parsed]


def _struct(cls: type[T], raw: Any) -> T:
    """``raw`` as ``cls``. Numbers and flags bend; what would change a prompt, a reply or an action does not."""
    if not isinstance(raw, dict):
        raise Undecodable(Reason.MALFORMED_JSON, f"a {cls.__name__} is not an object")
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(cls):
        value = raw.get(field.encode_name)
        if value is not None:
            values[field.name] = _coerce(field.type, value, field.encode_name)
    return cls(**{name: value for name, value in values.items() if value is not None})


def _coerce(kind: Any, value: Any, name: str) -> Any:
    if kind is Any:
        return value
    return _COERCIONS[kind](value, name)


def _text(value: Any, name: str) -> str:
    if isinstance(value, str):
        return value
    raise Undecodable(Reason.MALFORMED_JSON, f"{name} is not text")


def _note(value: Any, name: str) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any, name: str = "") -> float | None:
    if not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _whole(value: Any, name: str) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


def _flag(value: Any, name: str) -> bool:
    return value.strip().lower() in ("true", "1", "yes") if isinstance(value, str) else bool(value)


def _object(value: Any, name: str) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise Undecodable(Reason.MALFORMED_JSON, f"{name} is not an object")


def _list(value: Any, name: str) -> list[Any]:
    if isinstance(value, list):
        return value
    raise Undecodable(Reason.MALFORMED_JSON, f"{name} is not a list")


def _numbers(value: Any, name: str) -> list[float]:
    numbers = [_number(item) for item in _list(value, name)]
    if any(number is None for number in numbers):
        raise Undecodable(Reason.MALFORMED_JSON, f"{name} holds something that is not a number")
    return [number for number in numbers if number is not None]


def _content(value: Any, name: str) -> str | list[Any]:
    return value if isinstance(value, list) else _text(value, name)


_COERCIONS: dict[Any, Callable[[Any, str], Any]] = {
    str: _text,
    str | None: _note,
    str | list[Any] | None: _content,
    int: _whole,
    bool: _flag,
    float | None: _number,
    dict[str, Any]: _object,
    list[dict[str, Any]] | None: lambda value, name: [_object(item, name) for item in _list(value, name)],
    list[int] | None: lambda value, name: [int(number) for number in _numbers(value, name)],
    list[float] | None: _numbers,
    list[ChatMessage] | None: lambda value, name: [_struct(ChatMessage, item) for item in _list(value, name)],
    list[LLMCall]: lambda value, name: [_struct(LLMCall, item) for item in _list(value, name)],
    EnvironmentState: lambda value, name: _struct(EnvironmentState, value) if isinstance(value, dict) else None,
    Action | None: lambda value, name: _struct(Action, value),
}
