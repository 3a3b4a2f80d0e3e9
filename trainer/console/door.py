"""Who comes in: every request passes here before any route sees it.

A page anywhere can have a browser send requests to loopback, under its own name (DNS rebinding) or as a form. So the
``Host`` must be one of ours; an unsafe call must come from our own pages or from no page at all; a login cookie counts
only where the browser says so. The key is asked for last, so that nobody can try keys from a foreign page.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field

from starlette.requests import Request

from trainer.console.keys import Caller, Keys
from trainer.console.limits import RateLimit
from trainer.console.problems import Refused

COOKIE = "hindsight_console"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'; sandbox"
"""For the report of a run, which is one file with its style inside; no script runs, whatever is in it."""

HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with no-referrer a browser names no origin to us either
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(slots=True)
class Entrance:
    """``hosts`` are the names by which this server may be called; an address that stands for all (``0.0.0.0``) among
    them lets every address through, as only names can be rebound."""

    keys: Keys
    hosts: frozenset[str]
    wrong_keys: RateLimit
    """Wrong keys of one address: guessing is slow."""
    calls: RateLimit
    deeds: RateLimit
    prefix: str = ""
    _open: frozenset[str] = field(default=frozenset({"/login", "/health"}))

    @classmethod
    def of(cls, keys: Keys, hosts: Sequence[str], prefix: str = "", *, patience: float = 1.0) -> Entrance:
        """``patience`` multiplies the rate limits; tests are quicker than people."""
        names = frozenset(LOOPBACK) | {name_in(f"[{host}]" if ":" in host else host) for host in hosts}
        return cls(
            keys,
            names,
            RateLimit(10 * patience, per=60),
            RateLimit(600 * patience, per=60),
            RateLimit(60 * patience, per=60),
            prefix,
        )

    def check_host(self, request: Request) -> None:
        name = name_in(request.headers.get("host", ""))
        if name in self.hosts or (not self.hosts.isdisjoint({"0.0.0.0", "::"}) and _is_address(name)):
            return
        raise Refused(421, "The Host header does not name this server: start it with --allowed-hosts NAME.")

    def check_origin(self, request: Request) -> None:
        """An unsafe call from a page must be from a page of ours."""
        if request.method in SAFE:
            return
        origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
        own = f"{request.url.scheme}://{request.headers.get('host')}"
        if (origin is not None and origin != own) or site not in (None, "none", "same-origin"):
            raise Refused(403, "Requests from pages of another origin are not answered.")
        # A browser says where a form or a fetch comes from: a cookie without that word does not come from a browser.
        if COOKIE in request.cookies and "authorization" not in request.headers and origin is None and site is None:
            raise Refused(403, "A login counts only from the console's own pages: send the key as a bearer token.")

    def caller(self, request: Request) -> Caller | None:
        """Who asks, by key or login; None for neither. Refused for a wrong one."""
        address = request.client.host if request.client else "unknown"
        given = request.headers.get("authorization")
        if given is not None:
            scheme, _, key = given.partition(" ")
            found = self.keys.caller_of_key(key.strip()) if scheme.lower() == "bearer" else None
            if found is None:
                self.wrong_keys.count(address)
                raise Refused(401, "The key is wrong.", headers={"WWW-Authenticate": "Bearer"})
            return found
        cookie = request.cookies.get(COOKIE)
        return None if cookie is None else self.keys.caller_of_session(cookie)

    def admit(self, request: Request, caller: Caller | None, *, acts: bool, often: bool = False) -> Caller:
        """The caller, who may do this now. Refused otherwise."""
        if caller is None:
            raise Refused(
                401, "Send the console's key as a bearer token, or log in.", headers={"WWW-Authenticate": "Bearer"}
            )
        if acts and not caller.may_act:
            raise Refused(403, "This key may only look: use the full key.")
        (self.deeds if acts and not often else self.calls).count(caller.name)
        return caller


def name_in(host: str) -> str:
    """``localhost:8899`` and ``[::1]:8899`` without the port, as names are compared."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name.rstrip(".").lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
