"""The routes: ``/v1/chat/completions``, ``/v1/models``, ``/v1/models/{id}``, ``/health``.

Every error has OpenAI's shape. Every route is behind ``Door``, which keeps out what a web page makes a browser send.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from data_bridge.errors import ConfigurationError, HindsightError
from data_bridge.redaction import redact
from trainer.hosting.names import NOT_NAMED, is_named, names_of
from trainer.serve.checkpoints import OnText, ServedCheckpoints, StreamingModel
from trainer.serve.wire import ChatCompletionRequest, Chunks, RequestError, not_served, parse_request, response_of
from trainer.types import Completion

logger = logging.getLogger(__name__)

T = TypeVar("T")

Handler = Callable[[Request], Awaitable[Response]]

LARGEST_BODY = 2 * 1024 * 1024
MOST_BYTES = 32 * 1024 * 1024
"""What bodies may take together while they arrive, and again while they are answered."""


@dataclass(slots=True)
class Load:
    """Requests being answered; beyond ``most``, or too many bytes, a client is told to come back."""

    most: int
    now: int = 0
    size: int = 0

    @property
    def is_full(self) -> bool:
        return self.now >= self.most or self.size >= MOST_BYTES

    @contextmanager
    def one_more(self, size: int) -> Iterator[None]:
        self.now += 1
        self.size += size
        try:
            yield
        finally:
            self.now -= 1
            self.size -= size


@dataclass(slots=True)
class Arriving:
    """The bodies that are being received, oldest first. When they take too much, the oldest gives way: it is slow."""

    sizes: dict[asyncio.Timeout, int] = field(default_factory=dict)
    size: int = 0

    async def body(self, request: Request) -> bytes:
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(None) as reading:
                try:
                    async for part in request.stream():
                        parts.append(part)
                        self._grow(reading, len(part))
                finally:
                    self.size -= self.sizes.pop(reading, 0)
        except TimeoutError:
            raise RequestError(408, "The request arrived too slowly while others were waiting.") from None
        except ClientDisconnect:
            raise RequestError(499, "The client closed the connection.") from None
        return b"".join(parts)

    def _grow(self, reading: asyncio.Timeout, more: int) -> None:
        self.sizes[reading] = self.sizes.get(reading, 0) + more
        self.size += more
        if self.sizes[reading] > LARGEST_BODY:
            raise RequestError(413, f"The request is larger than {LARGEST_BODY} bytes.")
        while self.size > MOST_BYTES:
            oldest = next(iter(self.sizes))
            self.size -= self.sizes.pop(oldest)
            oldest.reschedule(0)


@dataclass(frozen=True, slots=True)
class Door:
    """Who may come in: those who name this server in ``Host``, hold the key, and are not a page in a browser.

    A page anywhere can have a browser send requests to loopback, under its own name (DNS rebinding) or as a form with
    a plain content type. ``hosts`` are the names that count as this server.
    """

    hosts: frozenset[str]
    key: str | None

    def guards(self, route: Handler, *, needs_key: bool = True) -> Handler:
        async def guarded(request: Request) -> Response:
            self._check_host(request.headers.get("host", ""))
            if request.method == "POST":
                self._check_page(request)
            if needs_key:
                self._check_key(request)
            return await route(request)

        return guarded

    def _check_host(self, header: str) -> None:
        if not is_named(header, self.hosts):
            raise RequestError(421, NOT_NAMED)

    def _check_page(self, request: Request) -> None:
        origin, host = request.headers.get("origin"), request.headers.get("host")
        is_foreign = origin is not None and origin not in (f"http://{host}", f"https://{host}")
        if is_foreign or request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            raise RequestError(403, "Requests from web pages of another origin are not answered.")
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise RequestError(415, "Send the request as JSON, with the header Content-Type: application/json.")

    def _check_key(self, request: Request) -> None:
        if self.key is None:
            return
        given = request.headers.get("authorization", "").removeprefix("Bearer ").encode()
        if not secrets.compare_digest(given, self.key.encode()):
            raise RequestError(401, "The API key is missing or wrong.", kind="authentication_error")


def make_app(
    checkpoints: ServedCheckpoints, *, key: str | None, most_waiting: int = 512, hosts: Sequence[str] = ()
) -> Starlette:
    """The server over ``checkpoints``. With a ``key`` every route but ``/health`` asks for it.

    ``hosts``: names that clients may call this server by, beside those of loopback.
    """
    load, arriving = Load(most_waiting), Arriving()
    door = Door(names_of(hosts), key)

    async def completions(request: Request) -> Response:
        body = await arriving.body(request)
        asked, size = parse_request(body), len(body)
        model = checkpoints.choose(asked.model, asked.user)
        if load.is_full:
            raise RequestError(429, "Too many requests are waiting; try again in a second.", kind="rate_limit_error")
        if asked.stream:
            events = _events(model, asked, load.one_more(size))
            first = await _unless_gone(request, anext(events))
            return StreamingResponse(_beginning_with(first, events), media_type="text/event-stream")
        with load.one_more(size):
            return JSONResponse(response_of(asked, await _unless_gone(request, _answer(model, asked, None))))

    async def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [_listed(name) for name in checkpoints.names()]})

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in checkpoints.names():
            raise not_served(name)
        return JSONResponse(_listed(name))

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok", "serving": checkpoints.served_name, "waiting": load.now})

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        checkpoints.refresh()
        following = asyncio.create_task(checkpoints.follow(), name="follow promotions")
        try:
            yield
        finally:
            following.cancel()

    return Starlette(
        routes=[
            Route("/v1/chat/completions", door.guards(completions), methods=["POST"]),
            Route("/v1/models", door.guards(models), methods=["GET"]),
            Route("/v1/models/{name:path}", door.guards(model), methods=["GET"]),
            Route("/health", door.guards(health, needs_key=False), methods=["GET"]),
        ],
        exception_handlers={
            RequestError: _request_error,
            HTTPException: _http_error,
            Exception: _unexpected_error,
        },
        lifespan=lifespan,
    )


def _listed(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "hindsight"}


async def _answer(model: StreamingModel, asked: ChatCompletionRequest, on_text: OnText | None) -> list[Completion]:
    """The replies; whatever goes wrong is a RequestError."""
    try:
        return await model.chat(
            asked.chat(),
            n=asked.n,
            temperature=asked.temperature,
            max_tokens=asked.token_limit,
            stop=asked.stop,
            seed=asked.seed,
            on_text=on_text,
        )
    except Exception as error:
        raise _told(error) from None


async def _unless_gone(request: Request, answer: Awaitable[T]) -> T:
    """What ``answer`` gives; cancelled if the client hangs up, so that nobody computes for nobody."""
    answering = asyncio.ensure_future(answer)
    leaving = asyncio.create_task(_gone(request), name="client watch")
    try:
        await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            raise RequestError(499, "The client closed the connection.")
        return answering.result()
    finally:
        answering.cancel()
        leaving.cancel()


async def _gone(request: Request) -> None:
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            return


async def _events(
    model: StreamingModel, asked: ChatCompletionRequest, counted: AbstractContextManager[None]
) -> AsyncIterator[str]:
    """The reply as server-sent events while it is written. A client that hangs up cancels this, and the reply.

    What goes wrong before there is anything to send is raised and becomes a status; later it is an event.
    """
    chunks = Chunks(asked, model.name)
    grown: asyncio.Queue[tuple[int, str] | None] = asyncio.Queue()
    answering = asyncio.create_task(
        _answer(model, asked, lambda index, text: grown.put_nowait((index, text))), name="streamed completion"
    )
    answering.add_done_callback(lambda _: grown.put_nowait(None))
    has_begun = False
    try:
        with counted:
            growth = await grown.get()
            if growth is None:
                answering.result()
            has_begun = True
            for chunk in chunks.opening():
                yield _event(chunk)
            while growth is not None:
                for chunk in chunks.growth(*growth):
                    yield _event(chunk)
                growth = await grown.get()
            for chunk in chunks.ending(answering.result()):
                yield _event(chunk)
    except Exception as error:
        if not has_begun:
            raise
        yield _event(_told(error).body())
    finally:
        answering.cancel()
    yield "data: [DONE]\n\n"


async def _beginning_with(first: str, rest: AsyncIterator[str]) -> AsyncIterator[str]:
    yield first
    async for event in rest:
        yield event


def _event(chunk: dict[str, Any]) -> str:
    return f"data: {json.dumps(chunk)}\n\n"


def _request_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    headers = {"Retry-After": "1"} if error.status in (429, 503) else None
    return JSONResponse(error.body(), status_code=error.status, headers=headers)


def _told(error: Exception) -> RequestError:
    """What the client is told: a request that the model cannot take is the client's to mend, the rest is ours."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, HindsightError) and isinstance(error, ValueError):
        is_ours = isinstance(error, ConfigurationError)
        return RequestError(400, str(error), param=None if is_ours else "messages")
    logger.error("a request failed: %s: %s", type(error).__name__, redact(str(error)))
    known = str(error) if isinstance(error, HindsightError) else None
    return RequestError(500, known or "The server failed on this request; its log says why.", kind="server_error")


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse(RequestError(error.status_code, error.detail).body(), status_code=error.status_code)


def _unexpected_error(request: Request, error: Exception) -> Response:
    return _request_error(request, _told(error))
