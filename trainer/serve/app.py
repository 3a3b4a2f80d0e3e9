"""The routes: ``/v1/chat/completions``, ``/v1/models``, ``/health``. Every error has OpenAI's shape."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from data_bridge.errors import HindsightError
from data_bridge.redaction import redact
from trainer.serve.checkpoints import OnText, ServedCheckpoints, StreamingModel
from trainer.serve.wire import ChatCompletionRequest, Chunks, RequestError, parse_request, response_of
from trainer.types import Completion

logger = logging.getLogger(__name__)

T = TypeVar("T")

LARGEST_BODY = 2 * 1024 * 1024


@dataclass(slots=True)
class Load:
    """Requests being answered; beyond ``most`` a client is told to come back."""

    most: int
    now: int = 0

    @contextmanager
    def one_more(self) -> Iterator[None]:
        self.now += 1
        try:
            yield
        finally:
            self.now -= 1


def make_app(checkpoints: ServedCheckpoints, *, key: str | None, most_waiting: int = 512) -> Starlette:
    """The server over ``checkpoints``. With a ``key`` every route but ``/health`` asks for it."""
    load = Load(most_waiting)

    async def completions(request: Request) -> Response:
        _check_key(request, key)
        asked = parse_request(await _body(request))
        model = checkpoints.choose(asked.model, asked.user)
        if load.now >= load.most:
            raise RequestError(429, "Too many requests are waiting; try again in a second.", kind="rate_limit_error")
        if asked.stream:
            events = _events(model, asked, load)
            first = await _unless_gone(request, anext(events))
            return StreamingResponse(_beginning_with(first, events), media_type="text/event-stream")
        with load.one_more():
            return JSONResponse(response_of(asked, await _unless_gone(request, _answer(model, asked, None))))

    async def models(request: Request) -> Response:
        _check_key(request, key)
        listed = [
            {"id": name, "object": "model", "created": 0, "owned_by": "hindsight"} for name in checkpoints.names()
        ]
        return JSONResponse({"object": "list", "data": listed})

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
            Route("/v1/chat/completions", completions, methods=["POST"]),
            Route("/v1/models", models, methods=["GET"]),
            Route("/health", health, methods=["GET"]),
        ],
        exception_handlers={
            RequestError: _request_error,
            HTTPException: _http_error,
            Exception: _unexpected_error,
        },
        lifespan=lifespan,
    )


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


async def _events(model: StreamingModel, asked: ChatCompletionRequest, load: Load) -> AsyncIterator[str]:
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
        with load.one_more():
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


async def _body(request: Request) -> bytes:
    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > LARGEST_BODY:
                raise RequestError(413, f"The request is larger than {LARGEST_BODY} bytes.")
            parts.append(part)
    except ClientDisconnect:
        raise RequestError(499, "The client closed the connection.") from None
    return b"".join(parts)


def _check_key(request: Request, key: str | None) -> None:
    if key is None:
        return
    given = request.headers.get("authorization", "").removeprefix("Bearer ").encode()
    if not secrets.compare_digest(given, key.encode()):
        raise RequestError(401, "The API key is missing or wrong.", kind="authentication_error")


def _request_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    headers = {"Retry-After": "1"} if error.status == 429 else None
    return JSONResponse(error.body(), status_code=error.status, headers=headers)


def _told(error: Exception) -> RequestError:
    """What the client is told: a request that the model cannot take is the client's to mend, the rest is ours."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, HindsightError) and isinstance(error, ValueError):
        return RequestError(400, redact(str(error)))
    logger.error("a request failed: %s: %s", type(error).__name__, redact(str(error)))
    known = redact(str(error)) if isinstance(error, HindsightError) else None
    return RequestError(500, known or "The server failed on this request; its log says why.", kind="server_error")


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse(RequestError(error.status_code, error.detail).body(), status_code=error.status_code)


def _unexpected_error(request: Request, error: Exception) -> Response:
    return _request_error(request, _told(error))
