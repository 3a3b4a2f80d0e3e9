"""The prompt policy as a server of its own: the console's door around seven calls and a health check."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from data_bridge.database import Database
from trainer.console.app import Guarded, api_routes, as_json, health, needs_key
from trainer.console.door import Entrance
from trainer.console.openapi import document
from trainer.console.policy_api import ALONE
from trainer.console.problems import Refused
from trainer.run.policy_desk import PolicyDesk


@dataclass(frozen=True, slots=True)
class PolicyServices:
    database: Database
    policy: PolicyDesk


def make_policy_app(services: PolicyServices, door: Entrance) -> ASGIApp:
    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await services.policy.close()

    async def described(request: Request) -> Response:
        return JSONResponse(document(ALONE, door.prefix, under=""))

    async def http_problem(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return as_json(Refused(error.status_code, f"{error.detail}.", headers=dict(error.headers or {})))

    app = Starlette(
        routes=[
            *api_routes(ALONE, services, door, under=""),
            Route("/openapi.json", needs_key(door, described), methods=["GET"]),
            Route("/health", health, methods=["GET"]),
        ],
        exception_handlers={HTTPException: http_problem},
        lifespan=lifespan,
    )
    return Guarded(app, door)
