"""Everything that a command prints goes through here: agents choose ids and names, and must not control a terminal."""

from __future__ import annotations

import sys
from typing import Any, TextIO

from data_bridge.redaction import json_text, one_line


def say(*lines: str, to: TextIO | None = None, end: str = "\n") -> None:
    """Print ``lines``, to stdout unless told otherwise. One of them stays one line, whatever an id in it contains."""
    for line in lines:
        print(one_line(line), file=to or sys.stdout, end=end, flush=True)


def say_json(value: Any) -> None:
    """Print ``value`` as one line of JSON."""
    print(json_text(value), flush=True)
