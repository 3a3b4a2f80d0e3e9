"""How our two servers, the console and ``serve.py``, come up and go down: the address first, and a normal end."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING

from data_bridge.errors import ConfigurationError
from trainer.run.shutdown import on_request_to_stop

if TYPE_CHECKING:
    import uvicorn


def listen(host: str, port: int) -> socket.socket:
    """Bind the address before anything else is opened, so that a port in use is reported immediately."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # Only of a socket that says TCP does asyncio switch Nagle's algorithm off, which holds a reply back by 40 ms.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except OSError as error:
        raise ConfigurationError(
            f"--host {host} --port {port} cannot be used ({error.strerror}): choose another."
        ) from None
    return listening


async def serve_until_asked(
    config: uvicorn.Config,
    listening: socket.socket,
    started: Callable[[], None],
    *,
    stop: asyncio.Event | None = None,
    stopping: Callable[[], None] = lambda: None,
) -> None:
    """Serve until a request to stop, or until ``stop`` is set.

    ``started`` is called once requests are answered, ``stopping`` before those in flight are waited for.
    """
    import uvicorn

    class Server(uvicorn.Server):
        """A stop request is a normal end for a server; uvicorn would raise the signal again."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            loop = asyncio.get_running_loop()
            # The number with which uvicorn, asked twice, does not wait for requests in flight.
            ask = partial(loop.call_soon_threadsafe, self.handle_exit, signal.SIGINT, None)
            with on_request_to_stop(ask):
                yield

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            stopping()
            super().handle_exit(sig, frame)

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            started()

    server = Server(config)
    ending = None if stop is None else asyncio.create_task(_end_with(stop, stopping, server), name="end the server")
    try:
        await server.serve(sockets=[listening])
    finally:
        if ending is not None:
            ending.cancel()


async def _end_with(stop: asyncio.Event, stopping: Callable[[], None], server: uvicorn.Server) -> None:
    await stop.wait()
    stopping()
    server.should_exit = True
