"""Durations as one writes them into a setting."""

from __future__ import annotations

from datetime import timedelta

_WHOLE = {"d": timedelta(days=1), "h": timedelta(hours=1)}


def written(duration: timedelta) -> str:
    """``7d``, ``36h`` or ``90m``."""
    for unit, length in _WHOLE.items():
        if not duration % length:
            return f"{duration // length}{unit}"
    return f"{duration / timedelta(minutes=1):.12g}m"
