"""Who comes in: every request passes here before any route sees it.

A page anywhere can have a browser send requests to loopback, under its own name (DNS rebinding) or as a form. So the
``Host`` must be one of ours; an unsafe call must come from our own pages or from no page at all; a login cookie counts
only where the browser says so. The key is asked for last, so that nobody can try keys from a foreign page.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request

from data_bridge.errors import ConfigurationError
from trainer.console.keys import Caller, Keys
from trainer.console.limits import RateLimit
from trainer.console.problems import Refused
from trainer.hosting.names import NOT_NAMED, is_named, names_of

logger = logging.getLogger(__name__)

COOKIE = "hindsight_console"
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
    """``hosts`` are the names by which this server may be called."""

    keys: Keys
    hosts: frozenset[str]
    wrong_keys: RateLimit
    """Wrong keys of one address: after too many, none of its keys is looked at for a while, and guessing is slow."""
    wrong_links: RateLimit
    """Used-up links, apart from keys: any page can have a browser open such a link, and must not lock keys out."""
    calls: RateLimit
    deeds: RateLimit
    prefix: str = ""

    @classmethod
    def of(cls, keys: Keys, hosts: Sequence[str], prefix: str = "", *, patience: float = 1.0) -> Entrance:
        """``patience`` multiplies the rate limits; tests are quicker than people."""
        return cls(
            keys,
            names_of(hosts),
            RateLimit(max(1.0, 10 * patience), per=60),
            RateLimit(max(1.0, 10 * patience), per=60),
            RateLimit(600 * patience, per=60),
            RateLimit(60 * patience, per=60),
            prefix,
        )

    def check_host(self, request: Request) -> None:
        if not is_named(request.headers.get("host", ""), self.hosts):
            raise Refused(421, NOT_NAMED)

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
        if "authorization" not in request.headers:
            return self._found(request)
        self.check_patience(request)
        found = self._found(request)
        if found is None:
            self.wrong_keys.count(address_of(request))
            raise Refused(401, "The key is wrong.", headers={"WWW-Authenticate": "Bearer"})
        return found

    def check_patience(self, request: Request) -> None:
        """Refused if too many wrong keys came from where this request comes from: the next is not even compared."""
        self.wrong_keys.check(address_of(request))

    def is_still_known(self, request: Request) -> bool:
        """Whether whoever was let in would be again: keys are rotated and logins end while a stream is open."""
        try:
            return self._found(request) is not None
        except Refused:
            return False

    def caller_of_key(self, key: str) -> Caller | None:
        try:
            return self.keys.caller_of_key(key)
        except ConfigurationError as error:  # names a file, which is nobody's business who has no key yet
            raise _unreadable(error) from None

    def _found(self, request: Request) -> Caller | None:
        given, cookie = request.headers.get("authorization"), request.cookies.get(COOKIE)
        if given is not None:
            scheme, _, key = given.partition(" ")
            return self.caller_of_key(key.strip()) if scheme.lower() == "bearer" else None
        try:
            return None if cookie is None else self.keys.caller_of_session(cookie)
        except ConfigurationError as error:
            raise _unreadable(error) from None

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


def address_of(request: Request) -> str:
    return request.client.host if request.client else "unknown"


def _unreadable(error: ConfigurationError) -> Refused:
    logger.error("nobody can come in: %s", error)
    return Refused(503, "The console's keys cannot be read; its log says why.", headers={"Retry-After": "5"})
