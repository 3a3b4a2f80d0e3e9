"""Everything that a command prints goes through here: agents choose ids and names, and must not control a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
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


def say_json(value: Any, *, to: TextIO | None = None) -> None:
    """Print ``value`` as one line of JSON, to stdout unless told otherwise."""
    print(json_text(value), file=to or sys.stdout, flush=True)
