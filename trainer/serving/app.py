"""The routes: ``/v1/chat/completions``, ``/v1/models``, ``/health``. Every error has OpenAI's shape."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from data_bridge.errors import HindsightError
from data_bridge.redaction import redact
from trainer.serving.checkpoints import OnText, ServedCheckpoints, StreamingModel
from trainer.serving.wire import ChatCompletionRequest, Chunks, RequestError, parse_request, response_of
from trainer.types import Completion

logger = logging.getLogger(__name__)

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
            return StreamingResponse(_events(model, asked, load), media_type="text/event-stream")
        with load.one_more():
            return JSONResponse(response_of(asked, await _answer_unless_gone(request, model, asked)))

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
            HindsightError: _model_error,
            HTTPException: _http_error,
            Exception: _unexpected_error,
        },
        lifespan=lifespan,
    )


async def _answer(model: StreamingModel, asked: ChatCompletionRequest, on_text: OnText | None) -> list[Completion]:
    return await model.chat(
        asked.chat(),
        n=asked.n,
        temperature=asked.temperature,
        max_tokens=asked.token_limit,
        stop=asked.stop,
        seed=asked.seed,
        on_text=on_text,
    )


async def _answer_unless_gone(
    request: Request, model: StreamingModel, asked: ChatCompletionRequest
) -> list[Completion]:
    """The replies; cancelled if the client hangs up, so that nobody computes for nobody."""
    answering = asyncio.create_task(_answer(model, asked, None), name="chat completion")
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
    """The reply as server-sent events while it is written. A client that hangs up cancels this, and the reply."""
    chunks = Chunks(asked, model.name)
    grown: asyncio.Queue[tuple[int, str] | None] = asyncio.Queue()
    answering = asyncio.create_task(
        _answer(model, asked, lambda index, text: grown.put_nowait((index, text))), name="streamed completion"
    )
    answering.add_done_callback(lambda _: grown.put_nowait(None))
    try:
        with load.one_more():
            for chunk in chunks.opening():
                yield _event(chunk)
            while (growth := await grown.get()) is not None:
                for chunk in chunks.growth(*growth):
                    yield _event(chunk)
            for chunk in chunks.ending(answering.result()):
                yield _event(chunk)
    except HindsightError as error:
        yield _event(_told(error).body())
    finally:
        answering.cancel()
    yield "data: [DONE]\n\n"


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


def _model_error(request: Request, error: Exception) -> Response:
    told = _told(error)
    return JSONResponse(told.body(), status_code=told.status)


def _told(error: Exception) -> RequestError:
    """The model could not answer this request: too long a prompt is the client's to mend, the rest is ours."""
    if isinstance(error, ValueError):
        return RequestError(400, redact(str(error)))
    logger.error("a request failed: %s", redact(str(error)))
    return RequestError(500, redact(str(error)), kind="server_error")


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse(RequestError(error.status_code, error.detail).body(), status_code=error.status_code)


def _unexpected_error(request: Request, error: Exception) -> Response:
    logger.error("a request failed: %s: %s", type(error).__name__, redact(str(error)))
    body = RequestError(500, "The server failed on this request; its log says why.", kind="server_error").body()
    return JSONResponse(body, status_code=500)
