"""The server: every request passes the door, then a page or a call of the API answers it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from data_bridge.errors import HindsightError
from trainer.console import pages
from trainer.console.advice_api import OPERATIONS as ADVICE
from trainer.console.door import HEADERS, Entrance
from trainer.console.ingest_api import OPERATIONS as INGEST
from trainer.console.keys import Caller, Permission
from trainer.console.memory_api import OPERATIONS as MEMORY
from trainer.console.openapi import document
from trainer.console.operations import PREFIX, Operation, answer
from trainer.console.policy_api import OPERATIONS as POLICY
from trainer.console.policy_api import UNDER
from trainer.console.problems import Refused, refusal_of
from trainer.console.prompt_api import OPERATIONS as PROMPTS
from trainer.console.reading_api import OPERATIONS as READING
from trainer.console.reading_api import metrics_of
from trainer.console.release_api import OPERATIONS as RELEASES
from trainer.console.reward_api import OPERATIONS as REWARDS
from trainer.console.services import HasDatabase, Services
from trainer.console.training_api import OPERATIONS as TRAINING
from trainer.console.visits import problem_page
from trainer.ledger.ingest_keys import ingest_key_of

_STATIC = Path(__file__).parent / "static"

OPERATIONS: tuple[Operation, ...] = (
    *TRAINING,
    *READING,
    *RELEASES,
    *REWARDS,
    *ADVICE,
    *INGEST,
    *MEMORY,
    *PROMPTS,
    *POLICY,
)
"""Every call of the API."""


def make_app(services: Services, door: Entrance, *, poll: timedelta = timedelta(seconds=1)) -> ASGIApp:
    """The console over ``services``, for those whom ``door`` lets in."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(services.hub.polling(poll))
            stack.push_async_callback(services.check.close)
            stack.push_async_callback(services.close_advisor)
            stack.push_async_callback(services.lessons.close)
            stack.push_async_callback(services.policy.close)
            yield

    def answered(request: Request, refused: Refused) -> Response:
        """A page for people, JSON for programs."""
        return _answered(request, refused, door.prefix)

    async def problem(request: Request, error: Exception) -> Response:
        return answered(request, refusal_of(error))

    async def http_problem(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        headers = dict(error.headers or {})
        return answered(request, Refused(error.status_code, f"{error.detail}.", headers=headers))

    async def described(request: Request) -> Response:
        return JSONResponse(document(OPERATIONS, door.prefix))

    async def metrics(request: Request) -> Response:
        return await metrics_of(services)

    routes: list[BaseRoute] = [
        *api_routes(OPERATIONS, services, door),
        Route(f"{PREFIX}{UNDER}/health", health, methods=["GET"]),
        Route("/openapi.json", needs_key(door, described), methods=["GET"]),
        Route("/metrics", needs_key(door, metrics), methods=["GET"]),
        Route("/health", health, methods=["GET"]),
        *pages.routes(services, door),
        Mount("/static", StaticFiles(directory=_STATIC), name="static"),
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={HTTPException: http_problem, Refused: problem, HindsightError: problem},
        lifespan=lifespan,
    )
    return Guarded(app, door)


async def health(request: Request) -> Response:
    return JSONResponse({"status": "ok"})


def api_routes(
    operations: Sequence[Operation], services: HasDatabase, door: Entrance, under: str = PREFIX
) -> list[BaseRoute]:
    """One route for each path, so that a wrong method is answered with all the right ones."""
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in operations:
        by_path.setdefault(operation.path, {})[operation.method] = operation
    return [
        Route(
            f"{under}{path.replace('{agent_id}', '{agent_id:path}')}",
            _endpoint(services, door, methods),
            methods=sorted(methods),
        )
        for path, methods in by_path.items()
    ]


def _endpoint(
    services: HasDatabase, door: Entrance, operations: dict[str, Operation]
) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            return await answered(request)
        except HTTPException:
            raise
        except Exception as error:
            return as_json(refusal_of(error))

    async def answered(request: Request) -> Response:
        operation = operations["GET" if request.method == "HEAD" else request.method]
        if operation.key == "ingest":
            door.check_patience(request)
        given = await _ingest_caller(services, request) if operation.key == "ingest" else None
        caller = door.admit(request, given or door.caller(request), acts=operation.acts, often=operation.often)
        for name, pattern in operation.parts.items():
            if re.search(pattern, request.path_params[name]) is None:
                raise Refused(422, f"{name}: this cannot be one.", field=name)
        return await answer(operation, services, caller, request, lambda: door.is_still_known(request))

    return endpoint


async def _ingest_caller(services: HasDatabase, request: Request) -> Caller | None:
    """Whose key for ingest this is; None if it is none of those."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not key.startswith("hsi_"):
        return None
    found = await ingest_key_of(services.database, key.strip())
    if found is None:
        return None
    name = f"the ingest key {found.key_id} of {found.kind} {found.owner}"
    return Caller(Permission.FULL, name, writes_for=(found.kind, found.owner))


def needs_key(
    door: Entrance, route: Callable[[Request], Awaitable[Response]]
) -> Callable[[Request], Awaitable[Response]]:
    async def guarded(request: Request) -> Response:
        try:
            door.admit(request, door.caller(request), acts=False)
            return await route(request)
        except Exception as error:
            return _answered(request, refusal_of(error))

    return guarded


class Guarded:
    """Around the whole application: the prefix of a proxy, Host, Origin, and the headers of every answer.

    Plain ASGI, as starlette's own middleware would hold back streams.
    """

    def __init__(self, app: ASGIApp, door: Entrance) -> None:
        self._app, self._door = app, door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        prefix = self._door.prefix
        if prefix and f"{scope['path']}/".startswith(f"{prefix}/"):
            scope = {**scope, "path": scope["path"][len(prefix) :] or "/", "raw_path": b""}

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                more = [(k.lower().encode(), v.encode()) for k, v in HEADERS.items() if k.lower().encode() not in given]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        request = Request(scope, receive)
        try:
            self._door.check_host(request)
            self._door.check_origin(request)
        except Refused as refused:
            await _answered(request, refused, prefix)(scope, receive, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)


def _answered(request: Request, refused: Refused, prefix: str = "") -> Response:
    path = request.scope["path"]
    if not path.startswith((PREFIX, "/openapi.json", "/health", "/metrics")) and "text/html" in request.headers.get(
        "accept", ""
    ):
        return problem_page(request, refused, prefix)
    return as_json(refused)


def as_json(refused: Refused) -> Response:
    said = refused.problem().model_dump_json()
    return Response(said, refused.status, media_type="application/json", headers=refused.headers)
