"""JSON as the game's JavaScript writes and reads it, in the two points where Python's encoders differ.

NaN and infinities become null, and half of a surrogate pair (a cut emoji) is written as its escape.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec


def to_json(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        plain = json.loads(json.dumps(value), parse_constant=lambda _: None)
        return json.dumps(plain, ensure_ascii=True, separators=(",", ":"))


def from_json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return json.loads(text)
