"""What a call of the API is, as data: its path, what comes in, what goes out, and who may make it.

The same declaration checks a request, calls the handler and writes the OpenAPI document, so that the three cannot
differ. starlette rather than FastAPI: the pages need it anyway, and this is all that would be used of the other.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from trainer.console.keys import Caller
from trainer.console.problems import Refused, invalid
from trainer.console.services import Services

PREFIX = "/api/v1"
TEXT = r"^[^\x00]*$"
"""The one character that Postgres does not store is not sent."""
LARGEST_BODY = 16 * 1024 * 1024

T = TypeVar("T")
S_co = TypeVar("S_co", covariant=True)


class NoQuery(BaseModel):
    """No parameters."""

    model_config = ConfigDict(extra="forbid")


class PageQuery(BaseModel):
    """Where a page of a list begins, and how long it is."""

    model_config = ConfigDict(extra="forbid")

    limit: int = Field(default=50, ge=1, le=200, description="Maximum number of entries.")
    cursor: str | None = Field(
        default=None, max_length=500, pattern=r"^[A-Za-z0-9_-]*$", description="`next` of the page before."
    )


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some entries of a list."""

    entries: list[T]
    next: str | None = None
    """The cursor of the following page; null on the last."""


def cursor_of(*parts: str | int) -> str:
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).rstrip(b"=").decode()


def parts_of(cursor: str | None, *kinds: Callable[[Any], Any]) -> tuple[Any, ...] | None:
    """What ``cursor_of`` was given. Refused (404) for anything else: there is no such page."""
    if not cursor:
        return None
    try:
        parts = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        return tuple(kind(part) for kind, part in zip(kinds, parts, strict=True))
    except (ValueError, TypeError, binascii.Error, UnicodeDecodeError, OverflowError):
        raise Refused(404, "cursor: not one that this API gave.", field="cursor") from None


def page_of(entries: Sequence[T], limit: int, cursor: Callable[[T], str]) -> Page[T]:
    """A page from one entry more than it shows."""
    shown = list(entries[:limit])
    return Page(shown, cursor(shown[-1]) if len(entries) > limit and shown else None)


@dataclass(frozen=True, slots=True)
class IncomingTo(Generic[S_co]):
    """One request, checked, to a server that works with these services."""

    services: S_co
    caller: Caller
    request: Request
    query: Any
    body: Any
    is_still_known: Callable[[], bool]
    """Whether the caller would be let in now, for answers that take long."""

    def part(self, name: str) -> str:
        """A part of the path."""
        return str(self.request.path_params[name])


Incoming = IncomingTo[Services]
"""One request to the console."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One call. ``acts``: only the full key may make it. ``problems``: the statuses besides those of every call."""

    method: str
    path: str
    summary: str
    handler: Callable[[IncomingTo[Any]], Awaitable[Any]]
    answer: Any
    query: type[BaseModel] = NoQuery
    body: type[BaseModel] | None = None
    status: int = 200
    also: tuple[int, ...] = ()
    """Further statuses of success, with the same answer."""
    acts: bool = False
    often: bool = False
    """Counted among calls and not among deeds, as it changes nothing but a row of its own."""
    problems: tuple[int, ...] = ()
    parts: Mapping[str, str] = field(default_factory=dict)
    """The pattern of each part of the path."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers that are read, with what they mean."""
    media_type: str = "application/json"
    key: str = "console"
    """Which key it asks for: the console's, or one for ingest."""

    @property
    def name(self) -> str:
        return self.handler.__name__


async def answer(
    operation: Operation, services: Any, caller: Caller, request: Request, is_still_known: Callable[[], bool]
) -> Response:
    """Check the request against its declaration, and dump what the handler gives by the declared type."""
    query = _query(operation, request)
    body = await _body(operation, request)
    given = await operation.handler(IncomingTo(services, caller, request, query, body, is_still_known))
    if isinstance(given, Response):
        return given
    text = _writer(operation.answer).dump_json(given)
    return Response(text, operation.status, media_type="application/json")


@cache
def _writer(kind: Any) -> TypeAdapter[Any]:
    """Made once for each type: it takes longer than what is written with it."""
    return TypeAdapter(kind)


def _query(operation: Operation, request: Request) -> BaseModel:
    given: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name in given:
            raise Refused(422, f"{name}: give it once.", field=name)
        given[name] = value
    try:
        return operation.query.model_validate(given)
    except ValidationError as error:
        raise invalid(error) from None


async def _body(operation: Operation, request: Request) -> BaseModel | None:
    if operation.body is None:
        return None
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(415, "Send the request as JSON, with the header Content-Type: application/json.")
    text = await read_body(request)
    try:
        return operation.body.model_validate_json(text)
    except ValidationError as error:
        if any(one["type"] == "json_invalid" for one in error.errors(include_url=False, include_context=False)):
            raise Refused(400, "The body is not JSON.") from None
        raise invalid(error) from None


async def read_body(request: Request, largest: int = LARGEST_BODY) -> bytes:
    """The body. Refused (413) if it is too large, before it is all in memory."""
    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > largest:
                raise Refused(413, f"The request is larger than {largest} bytes.")
            parts.append(part)
    except ClientDisconnect:
        raise Refused(400, "The client closed the connection.") from None
    return b"".join(parts)
