"""Chance that is the same on every machine: each draw is a hash of what it is for.

There is no generator to be advanced, so no draw depends on how many came before it, on the order of concurrent
agents, or on Python's own ``hash``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

_SCALE = 2.0**-53


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
