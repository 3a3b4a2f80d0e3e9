"""By which names a server may be called. A page anywhere can have a browser send requests to loopback under its own
name (DNS rebinding), so the ``Host`` of a request must be one of ours.

Starlette's TrustedHostMiddleware would cover part of it, with an error of another shape.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

LOOPBACK = ("localhost", "127.0.0.1", "::1")
NOT_NAMED = "The Host header does not name this server: start it with --allowed-hosts NAME."


def names_of(hosts: Iterable[str]) -> frozenset[str]:
    """Loopback and ``hosts``, as they are compared."""
    return frozenset(LOOPBACK) | {name_in(f"[{host}]" if ":" in host else host) for host in hosts}


def is_named(host: str, names: frozenset[str]) -> bool:
    """Whether the header ``host`` names this server. An address that stands for all (``0.0.0.0``) among ``names`` lets
    every address through, as only names can be rebound."""
    name = name_in(host)
    return name in names or (not names.isdisjoint({"0.0.0.0", "::"}) and _is_address(name))


def name_in(host: str) -> str:
    """``localhost:8899`` and ``[::1]:8899`` without the port."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name.rstrip(".").lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
