"""Everything that a command prints goes through here: agents choose ids and names, and must not control a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TextIO

from data_bridge.redaction import json_text, one_line
from trainer.progress import Heartbeat


def say(*lines: str, to: TextIO | None = None, end: str = "\n") -> None:
    """Print ``lines``, to stdout unless told otherwise. One of them stays one line, whatever an id in it contains."""
    for line in lines:
        print(one_line(line), file=to or sys.stdout, end=end, flush=True)


@contextmanager
def alive(doing: str, *, quiet: bool) -> Iterator[None]:
    """While the block runs without a terminal, say on stderr every half minute that it does; ``quiet`` never."""
    if quiet or sys.stderr.isatty():
        yield
        return
    with Heartbeat(lambda line: say(line, to=sys.stderr), doing):
        yield


@dataclass(frozen=True, slots=True)
class Each:
    """An array in JSON whose items are made one by one, as they are printed."""

    items: Iterable[Any]


def say_json(value: Any, *, to: TextIO | None = None) -> None:
    """Print ``value`` as one line of JSON, to stdout unless told otherwise."""
    for part in _json_parts(value):
        print(part, file=to or sys.stdout, end="")
    print(file=to or sys.stdout, flush=True)


def _json_parts(value: Any) -> Iterator[str]:
    """The text of ``json_text``, in parts where ``value`` is an ``Each`` or an object that has one."""
    if isinstance(value, Each):
        yield "["
        for number, item in enumerate(value.items):
            yield ", " if number else ""
            yield from _json_parts(item)
        yield "]"
    elif isinstance(value, dict) and any(isinstance(one, Each) for one in value.values()):
        yield "{"
        for number, (name, one) in enumerate(value.items()):
            yield (", " if number else "") + json_text(name) + ": "
            yield from _json_parts(one)
        yield "}"
    else:
        yield json_text(value)
