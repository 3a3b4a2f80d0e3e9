"""Connections that cannot be held for nothing: a clock for whatever a client owes, and a cap that sheds the idle.

uvicorn has a timeout for idle connections and a limit that refuses newcomers; it has none for a client that sends its
headers or body byte by byte, or never reads its reply, and a refused newcomer is what an attacker wants. So its
protocol is extended here: when there are too many connections, the one that has kept us waiting longest is closed.
"""

from __future__ import annotations

import asyncio
import resource
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

LARGEST_HEADER = 16 * 1024
_BACKLOG = 128
_RESERVED_FILES = 5 * _BACKLOG
"""asyncio accepts a whole backlog at once and closes what is shed three turns of its loop later; the rest is ours."""


@dataclass(slots=True)
class Limits:
    """How many connections there may be, and how long one may keep us waiting, in seconds."""

    connections: int
    patience: float
    too_late: bytes
    """What a client is told whose request did not arrive in time, as JSON."""
    waiting: dict[Connection, None] = field(default_factory=dict)
    """Connections whose client is to act, the one that began to wait first in front."""


class Connection(H11Protocol):
    """One client. While it owes us a header, a body, or the reading of a reply, a clock runs; while we answer, none.

    A clock belongs to one wait and is not wound up again by a byte, so a client cannot buy time with drops.
    """

    def __init__(self, *, limits: Limits, **options: Any) -> None:
        super().__init__(**options)
        self._limits = limits
        self._wait: tuple[str, object] | None = None
        self._clock: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await("header")
        if len(self.connections) > self._limits.connections:
            next(iter(self._limits.waiting)).end()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._await(None)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._follow("header")

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._follow("next request")

    def pause_writing(self) -> None:
        super().pause_writing()
        self._follow("header")

    def resume_writing(self) -> None:
        super().resume_writing()
        self._follow("header")

    def shutdown(self) -> None:
        super().shutdown()
        if self.conn.their_state is h11.SEND_BODY:
            self.end()

    def end(self) -> None:
        """Close at once, whether or not the client reads."""
        self._await(None)
        self.connections.discard(self)
        self.transport.abort()

    def _follow(self, when_idle: str) -> None:
        """Note whose turn it is now."""
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if self.conn.their_state is h11.SEND_BODY:
            self._await("body")
        elif self.flow.write_paused:
            self._await("reading")
        elif is_answering:
            self._await(None)
        else:
            self._await(when_idle)

    def _await(self, what: str | None) -> None:
        """The client is to do ``what``; None: nothing. The same wait keeps its clock and its place in the queue."""
        wait = (what, self.cycle) if what is not None else None
        if wait == self._wait:
            return
        self._wait = wait
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None
        self._limits.waiting.pop(self, None)
        if wait is not None and not self._is_lost:
            self._clock = self.loop.call_later(self._limits.patience, self._give_up)
            self._limits.waiting[self] = None

    @property
    def _is_lost(self) -> bool:
        return self not in self.connections

    def _give_up(self) -> None:
        is_quiet = self.cycle is None or not self.cycle.response_started
        if self._wait in (("header", None), ("body", self.cycle)) and is_quiet:
            self.transport.write(_TOO_LATE + self._limits.too_late)
        self.end()


_TOO_LATE = b"HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"


def server_config(
    app: ASGIApp,
    *,
    connections: int,
    patience: float,
    too_late: bytes,
    grace: int = 30,
    proxy: str | None = None,
) -> uvicorn.Config:
    """How ``app`` is served: at most ``connections`` at once, each keeping us waiting ``patience`` seconds at most.

    ``grace``: seconds that open requests have at a stop. ``proxy``: whose word about the client is believed.
    """
    protocol: Any = partial(Connection, limits=Limits(_files_for(connections), patience, too_late))
    return uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        log_level="error",
        access_log=False,
        server_header=False,
        backlog=_BACKLOG,
        h11_max_incomplete_event_size=LARGEST_HEADER,
        timeout_keep_alive=max(1, round(patience)),
        timeout_graceful_shutdown=grace,
        proxy_headers=proxy is not None,
        forwarded_allow_ips=proxy or "",
    )


def _files_for(connections: int) -> int:
    """``connections``, or as many as this process may open files for, once its limit is raised as far as allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _RESERVED_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return connections if soft == resource.RLIM_INFINITY else max(1, min(connections, soft - _RESERVED_FILES))
