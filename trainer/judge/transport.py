"""Many calls in flight without the connection pool's own cost.

httpx's pool looks at all of its connections for every request, which with 64 calls in flight is most of the
client's work. Several small pools, taken in turn, keep it short.
"""

from __future__ import annotations

from itertools import cycle
from types import TracebackType
from urllib.request import getproxies

import httpx

_POOLS = 8


class PooledTransport(httpx.AsyncBaseTransport):
    """Hands each request to the next of several pools that share one TLS context."""

    def __init__(self) -> None:
        tls = httpx.create_ssl_context()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=30.0)
        self._pools = [httpx.AsyncHTTPTransport(verify=tls, limits=limits) for _ in range(_POOLS)]
        self._next = cycle(self._pools)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await next(self._next).handle_async_request(request)

    async def aclose(self) -> None:
        for pool in self._pools:
            await pool.aclose()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self.aclose()


def transport() -> httpx.AsyncBaseTransport | None:
    """None, for httpx's own, where the environment names a proxy: only that one knows the rules for it."""
    return None if getproxies() else PooledTransport()
