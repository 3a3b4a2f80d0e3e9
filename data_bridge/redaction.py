"""Secrets never reach a log, an error, the database or a report.

Whoever reads a secret registers it here once; everything that leaves the process as text goes through
``redact``. A registered value is replaced wherever it stands, also inside a URL or somebody else's
exception text.
"""

from __future__ import annotations

import logging
import re
from urllib.parse import quote, unquote

_MASK = "[secret]"
_SHORTEST = 6  # shorter values would mask ordinary words

_known: set[str] = set()

# What follows a URL's user is taken up to the next space or "@" in one piece, whether or not it is a password, and is
# not looked at again: agents' text comes through here, and trying again from each place in it would take its square.
_URL_PASSWORD = re.compile(
    r"(?<=[a-zA-Z0-9+.-])://[^\s:/@]*+:"
    r"(?!PASSWORD@)"  # the word in our own examples of a URL
    r"(?P<password>[^\s@]++)(?P<at>@?)"
)


def register_secret(value: str | None) -> None:
    """Remember ``value`` (and its URL-encoded form) so that ``redact`` removes it."""
    if value is None or len(value) < _SHORTEST:
        return
    _known.update({value, quote(value, safe=""), unquote(value)})


def redact(text: str) -> str:
    """``text`` with every registered secret, and every password inside a URL, masked."""
    for secret in sorted(_known, key=len, reverse=True):
        text = text.replace(secret, _MASK)
    return _URL_PASSWORD.sub(_masked, text)


def _masked(match: re.Match[str]) -> str:
    whole = match[0]
    return whole if not match["at"] else whole[: match.start("password") - match.start()] + _MASK + "@"


class RedactingFilter(logging.Filter):
    """A logging filter that renders the message and masks what must not be seen."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg = redact(record.getMessage())
        record.args = ()
        if record.exc_info and record.exc_info[1] is not None:
            record.exc_text = redact(logging.Formatter().formatException(record.exc_info))
        return True
