"""Randomness that is the same on every machine: each draw is a hash of its purpose.

There is no generator with a state, so no draw depends on the number of draws before it, on the order of concurrent
agents, or on Python's own ``hash``. Ids and delays are draws like any other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeVar

T = TypeVar("T")

_SCALE = 2.0**-53
_SNOWFLAKE_EPOCH = datetime(2024, 1, 1, tzinfo=UTC)
_LATENCY_MS = 40, 900


def bits(*key: object) -> int:
    """64 bits that depend on ``key`` alone."""
    text = "\x1f".join(map(str, key))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def unit(*key: object) -> float:
    """A number in [0, 1)."""
    return (bits(*key) >> 11) * _SCALE


def between(low: float, high: float, *key: object) -> float:
    return low + (high - low) * unit(*key)


def pick(options: Sequence[T], *key: object) -> T:
    return options[int(unit(*key) * len(options))]


def shuffled(items: Sequence[T], *key: object) -> list[T]:
    """``items`` in an order that depends on ``key`` alone."""
    order = sorted(range(len(items)), key=lambda index: bits(*key, index))
    return [items[index] for index in order]


def latency_ms(*key: object) -> int:
    """How long a scripted agent pretends to think."""
    low, high = _LATENCY_MS
    return low + bits(*key) % (high - low)


def snowflake(at: datetime, index: int, *key: object) -> str:
    """A decimal id like the game's: time, 10 bits of ``key``, and 12 bits of ``index`` to distinguish neighbours."""
    low = (bits("snowflake", *key) % (1 << 10)) << 12 | index % (1 << 12)
    return str((((at - _SNOWFLAKE_EPOCH) // timedelta(milliseconds=1)) << 22) | low)
