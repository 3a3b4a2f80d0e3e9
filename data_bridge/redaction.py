"""How text leaves the process: without secrets, and without characters that control a terminal or a page.

Whoever reads a secret registers it here once. A registered value is masked wherever it stands, also inside a URL or
somebody else's exception text. Agents choose ids, names and replies, so what is masked is always one value or one line
and never a finished document: two crafted ids would otherwise make one password of everything between them.

``one_line`` is for terminals, logs and errors, ``json_text`` for JSON on stdout and in files, ``redacted`` for values
that something else formats.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import re
from collections.abc import Callable, Mapping
from enum import Enum
from textwrap import indent
from traceback import format_exception
from typing import Any, TypeVar
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

_PASSWORD_PARAMETER = re.compile(r"://\S*[?&](?:ssl)?password=[^\s&]", re.IGNORECASE)

T = TypeVar("T")


def register_secret(value: str | None) -> None:
    """Remember ``value`` (and its URL-encoded form) so that ``redact`` removes it."""
    if value is None or len(value) < _SHORTEST:
        return
    _known.update({value, quote(value, safe=""), unquote(value)})


def redact(text: str) -> str:
    """``text``, which is one value or one sentence, with every registered secret and every URL's password masked."""
    for secret in sorted(_known, key=len, reverse=True):
        text = text.replace(secret, _MASK)
    return _URL_PASSWORD.sub(_masked, text)


def _masked(match: re.Match[str]) -> str:
    whole = match[0]
    return whole if not match["at"] else whole[: match.start("password") - match.start()] + _MASK + "@"


def holds_password(text: str) -> bool:
    """Whether ``text`` contains a URL with a password, before its host or among its parameters."""
    return any(match["at"] for match in _URL_PASSWORD.finditer(text)) or _PASSWORD_PARAMETER.search(text) is not None


def one_line(text: str) -> str:
    """``text`` as one redacted line: line breaks become spaces, other invisible characters are written as escapes."""
    return page_text(text).translate(_BREAKS)


def page_text(text: str) -> str:
    """``text`` redacted, on any number of lines; control, bidi and other invisible characters become escapes."""
    text = redact(text)
    return text if text.isprintable() else "".join(map(_visible, text))


def traceback_text(error: BaseException) -> str:
    """The traceback, redacted and indented: no line of it can be taken for one of the log."""
    return indent(page_text("".join(format_exception(error))).rstrip(), "  ")


_BREAKS = str.maketrans("\n\t", "  ")


def _visible(character: str) -> str:
    if character.isprintable() or character in "\n\t":
        return character
    return " " if character.isspace() else character.encode("unicode_escape").decode()


def redacted(value: T, change: Callable[[str], str] = redact) -> T:
    """A copy of ``value`` with each text in it changed on its own: in mappings, sequences and dataclasses."""
    return _changed(value, change)  # type: ignore[no-any-return]


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, Enum) or hasattr(value, "__html__"):  # markup was made of what is safe in it
        return value
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_changed(name, change): _changed(part, change) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_changed(part, change) for part in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **_changed(parts, change))
    return value


def json_text(value: Any, *, spaces: int | None = None) -> str:
    """``value`` as JSON in ASCII, each text redacted on its own; a number that is not finite is null."""
    import msgspec

    plain = msgspec.to_builtins(value, str_keys=True, enc_hook=str)
    return json.dumps(_finite(_changed(plain, _paired)), indent=spaces)


def _paired(text: str) -> str:
    """Redacted, and with a sign for half of a character, which most readers of JSON refuse."""
    return redact(text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class RedactingFilter(logging.Filter):
    """A logging filter that renders the message as one line and masks what must not be seen, also in a traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg = one_line(record.getMessage())
        record.args = ()
        if record.exc_info and record.exc_info[1] is not None:
            record.exc_text = traceback_text(record.exc_info[1])
        return True
