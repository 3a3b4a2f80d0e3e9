"""A row of ``trajectories`` → an ``AgentTrajectory``, or the reason why it gives none.

Nearly every row's JSON takes the fast path, one typed msgspec decode. What JavaScript writes and strict parsers
reject (a lone surrogate, a number in quotes, a null for a list) takes the lenient path, which gives the
same types. Whatever the text, these functions return or raise ``Undecodable``; nothing else.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from itertools import accumulate
from typing import Any, Protocol, TypeVar

import msgspec
from xxhash import xxh3_128_hexdigest

from data_bridge.models import Action, AgentTrajectory, ChatMessage, EnvironmentState, LLMCall, Step, UnreadableRow
from data_bridge.quality import Reason
from data_bridge.worlds.market import MARKET
from data_bridge.worlds.world import World

# Postgres has years that Python has not.
_MOMENT = "least(greatest({0}, '0002-01-01'), '9998-12-31') AT TIME ZONE 'UTC' AS {0}"
TRAJECTORY_COLUMNS = f"""
  "trajectoryId", "agentId", "windowId", "windowHours", "scenarioId",
  {", ".join(_MOMENT.format(column) for column in ('"startTime"', '"endTime"', '"createdAt"'))},
  octet_length("stepsJson") AS size,
  CASE WHEN octet_length("stepsJson") + octet_length("metadataJson") <= $1
       THEN textsend("stepsJson") END AS steps,
  CASE WHEN octet_length("stepsJson") + octet_length("metadataJson") <= $1 THEN "metadataJson" END AS metadata,
  left("finalStatus", 100) AS "finalStatus", "finalBalance", "finalPnL",
  "isTrainingData", "isEvaluation", "usedInTraining"
"""
"""With the most bytes of JSON as $1: of a larger row Postgres sends (and even loads) none.

The steps come as the bytes that Postgres sends for text (UTF-8: asyncpg asks for no other): they are decoded and
hashed as such, and making a string of them first would cost a third more.
"""

_FAST = msgspec.json.Decoder(list[Step])


class _StateOfStep(msgspec.Struct):
    environmentState: Any = None


_STATES = msgspec.json.Decoder(list[_StateOfStep])
_SURROGATE = re.compile("[\ud800-\udfff]")
_DEEPEST = 200  # levels of nesting; deeper text is not something a recorder wrote

_MOST_STEPS, _MOST_CALLS = 5_000, 100
"""Of a row, and of a step: a step a second is more than a game takes."""
_MOST_CONTAINERS, _MOST_VALUES = 20_000, 250_000
"""Objects and lists, and values of any kind, that one row's JSON may become. A container takes a hundred times the
memory of the two bytes it is written with, a value ten times."""
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)

_DEPTH = [(byte in b"[{") - (byte in b"]}") for byte in range(256)]

T = TypeVar("T", bound=msgspec.Struct)
V = TypeVar("V")


class Undecodable(ValueError):
    """The text gives no steps; ``reason`` says what the row is counted under."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class _Metadata(msgspec.Struct):
    """What is read of ``metadataJson``. Not its ``gameKnowledge``: an agent's row is no source of the truth."""

    role: Any = None
    agentRole: Any = None
    sentBy: Any = None


_METADATA = msgspec.json.Decoder(_Metadata)


class Row(Protocol):
    """A row by column name: asyncpg's Record, or a dict."""

    def __getitem__(self, name: str, /) -> Any: ...


def trajectory_of(
    row: Row, window_id: str, agent_name: str | None, world: World = MARKET
) -> AgentTrajectory | UnreadableRow:
    """One row of ``trajectories`` that belongs to ``window_id``, or why it cannot be read."""
    text: bytes | None = row["steps"]
    if text is None:
        return unreadable(row, window_id, Reason.OVERSIZED, f"{row['size'] / 1e6:.1f} MB of stepsJson")
    try:
        steps = decode_steps(text)
    except Undecodable as error:
        return unreadable(row, window_id, error.reason, error.detail)
    if world.reads_state:
        steps = with_states(steps, text, world)
    metadata = _metadata_of(row["metadata"])
    return AgentTrajectory(
        trajectory_id=row["trajectoryId"],
        agent_id=row["agentId"],
        window_id=window_id,
        window_hours=row["windowHours"],
        start_time=row["startTime"],
        end_time=row["endTime"],
        created_at=row["createdAt"],
        steps=steps,
        content_hash=xxh3_128_hexdigest(text),
        size_bytes=row["size"],
        agent_name=agent_name,
        role=_role_in(metadata) or steps[0].state.role,
        scenario_id=row["scenarioId"],
        final_status=row["finalStatus"],
        final_balance=finite(row["finalBalance"]),
        lifetime_pnl=finite(row["finalPnL"]),
        is_training_data=row["isTrainingData"],
        is_evaluation=row["isEvaluation"],
        used_in_training=row["usedInTraining"],
        is_sent=metadata.sentBy == SENT_BY_AGENT["sentBy"],
    )


def unreadable(row: Row, window_id: str, reason: Reason, detail: str) -> UnreadableRow:
    return UnreadableRow(row["trajectoryId"], row["agentId"], window_id, reason.value, detail)


def finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None


def decode_steps(text: str | bytes) -> list[Step]:
    """The steps of a ``stepsJson``: at least one. Unfinished (``pending``) actions are left out of their steps."""
    check_amount(text)
    try:
        steps = _FAST.decode(text)
    except (ValueError, RecursionError):  # msgspec's errors and lone surrogates are ValueErrors
        steps = _lenient_steps(text)
    if not steps:
        raise Undecodable(Reason.NO_STEPS, "stepsJson is an empty list")
    if len(steps) > _MOST_STEPS:
        raise Undecodable(Reason.OVERSIZED, f"{len(steps)} steps, of at most {_MOST_STEPS}")
    for place, step in enumerate(steps):
        if len(step.llm_calls) > _MOST_CALLS:
            raise Undecodable(Reason.OVERSIZED, f"{len(step.llm_calls)} calls in a step, of at most {_MOST_CALLS}")
        action = step.action
        # The first letter spares nearly every action the closer look: this loop runs over millions.
        if action is not None and action.action_type[:1] in "pP \t\n" and action.is_pending:
            steps[place] = msgspec.structs.replace(step, action=None)
    return steps


def with_states(steps: list[Step], text: str | bytes, world: World) -> list[Step]:
    """The steps with their whole states, of which ``world`` reads more than a market does.

    A second pass over the text, so that a market's rows, which are millions, cost what they did.
    """
    try:
        states = [one.environmentState for one in _STATES.decode(text)]
    except (ValueError, RecursionError):
        raw = parse_json(text)
        states = [one.get("environmentState") if isinstance(one, dict) else None for one in raw]
    return [
        msgspec.structs.replace(step, state=_state_of(step.state, state, world)) if isinstance(state, dict) else step
        for step, state in zip(steps, states, strict=True)
    ]


def _state_of(read: EnvironmentState, whole: dict[str, Any], world: World) -> EnvironmentState:
    custom = whole.get("custom")
    whole = {**custom, **whole} if isinstance(custom, dict) else whole
    role = whole.get(world.role_key) if world.role_key else None
    return msgspec.structs.replace(
        read,
        everything=whole,
        balance=number_of(whole.get(world.resource_key)) if world.resource_key else None,
        role=read.role or (str(role) if isinstance(role, str | int) and role != "" else None),
    )


def check_amount(text: str | bytes, containers: int = _MOST_CONTAINERS, values: int = _MOST_VALUES) -> None:
    """Undecodable before JSON is made into more objects and lists, or more values, than it may have.

    A text of few bytes cannot hold many, and of the longer ones nearly all can be told by a mere count; only then is
    what stands in strings, where prompts have brackets and commas of their own, left out of it.
    """
    if len(text) < 3 * containers:
        return
    raw = text.encode(errors="replace") if isinstance(text, str) else text
    if raw.count(b"{") + raw.count(b"[") <= containers and raw.count(b",") <= values:
        return
    bare = _STRING.sub(b"", raw)
    for what, found, most in (
        ("objects and lists", bare.count(b"{") + bare.count(b"["), containers),
        ("values", bare.count(b","), values),
    ):
        if found > most:
            if max(accumulate(_DEPTH[byte] for byte in bare)) > _DEEPEST:
                raise Undecodable(Reason.MALFORMED_JSON, "nested too deeply")
            raise Undecodable(Reason.OVERSIZED, f"{found} {what}, of at most {most}")


SENT_BY_AGENT = {"sentBy": "agent"}
"""Added by the console to the metadata of every row that it is sent: such a row is the agent's own word."""


def is_sent(text: str | None) -> bool:
    """Whether ``metadataJson`` says that the agent sent the row itself."""
    return bool(_metadata_of(text).sentBy == SENT_BY_AGENT["sentBy"])


def role_of(text: str | None) -> str | None:
    """The agent's role, as far as ``metadataJson`` tells."""
    return _role_in(_metadata_of(text))


def _metadata_of(text: str | None) -> _Metadata:
    """Text that cannot be read is no fault of the trajectory: it says nothing, like an empty one."""
    if not text or text in ("{}", "null"):
        return _Metadata()
    try:
        check_amount(text)
        return _METADATA.decode(text)
    except Undecodable:
        return _Metadata()
    except (ValueError, RecursionError):
        try:
            parsed = parse_json(text)
        except Undecodable:
            return _Metadata()
        known = parsed if isinstance(parsed, dict) else {}
        return _Metadata(**{name: known.get(name) for name in _Metadata.__struct_fields__})


def _role_in(found: _Metadata) -> str | None:
    return next((value for value in (found.role, found.agentRole) if isinstance(value, str) and value), None)


# The lenient path


def parse_json(text: str | bytes) -> Any:
    """JSON as JavaScript means it. A lone surrogate becomes U+FFFD, which is what the agent's own client sent."""
    try:
        return _clean(json.loads(text), 0)
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
    parsed = parse_json(text)
    if parsed is None:
        raise Undecodable(Reason.NO_STEPS, "stepsJson is null")
    return [_struct(Step, item) for item in _list(parsed, "stepsJson")]


def _struct(cls: type[T], raw: Any) -> T:
    """``raw`` as ``cls``. Numbers and flags bend; what would change a prompt, a reply or an action does not."""
    if not isinstance(raw, dict):
        raise Undecodable(Reason.MALFORMED_JSON, f"a {cls.__name__} is not an object")
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(cls):
        value = raw.get(field.encode_name)
        if value is not None:
            values[field.name] = _COERCIONS[field.type](value, field.encode_name)
        elif field.required:
            raise Undecodable(Reason.MALFORMED_JSON, f"a {cls.__name__} has no {field.encode_name}")
    return cls(**{name: value for name, value in values.items() if value is not None})


def _must_be(kind: type[V], what: str) -> Callable[[Any, str], V]:
    """Reads a value that has to be of ``kind``, which a message calls ``what``."""

    def read(value: Any, name: str) -> V:
        if isinstance(value, kind):
            return value
        raise Undecodable(Reason.MALFORMED_JSON, f"{name} is not {what}")

    return read


_text, _object, _list = _must_be(str, "text"), _must_be(dict, "an object"), _must_be(list, "a list")


def number_of(value: Any, name: str = "") -> float | None:
    if not isinstance(value, int | float | str):
        return None
    try:
        return finite(float(value))
    except (ValueError, OverflowError):
        return None


def _whole(value: Any, name: str) -> int | None:
    number = number_of(value)
    return None if number is None else int(number)


def _flag(value: Any, name: str) -> bool:
    return value.strip().lower() in ("true", "1", "yes") if isinstance(value, str) else bool(value)


def _numbers(value: Any, name: str) -> list[float]:
    numbers = [number_of(item) for item in _list(value, name)]
    if any(number is None for number in numbers):
        raise Undecodable(Reason.MALFORMED_JSON, f"{name} holds something that is not a number")
    return [number for number in numbers if number is not None]


def _content(value: Any, name: str) -> str | list[Any]:
    return value if isinstance(value, list) else _text(value, name)


_COERCIONS: dict[Any, Callable[[Any, str], Any]] = {
    Any: lambda value, name: value,
    str: _text,
    str | None: lambda value, name: value if isinstance(value, str) else None,
    str | list[Any] | None: _content,
    int: _whole,
    bool: _flag,
    float | None: number_of,
    dict[str, Any]: _object,
    list[dict[str, Any]] | None: lambda value, name: [_object(item, name) for item in _list(value, name)],
    list[int] | None: lambda value, name: [int(number) for number in _numbers(value, name)],
    list[float] | None: _numbers,
    list[ChatMessage] | None: lambda value, name: [_struct(ChatMessage, item) for item in _list(value, name)],
    list[LLMCall]: lambda value, name: [_struct(LLMCall, item) for item in _list(value, name)],
    EnvironmentState: lambda value, name: _struct(EnvironmentState, value) if isinstance(value, dict) else None,
    Action | None: lambda value, name: _struct(Action, value),
}
