"""Simulated time: when things happen inside a window, and the ids that carry a time, as the game's do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from data_bridge.window_ids import is_closed, start_of, window_of
from trainer.world.chance import bits

_SNOWFLAKE_EPOCH_MS = 1_704_067_200_000  # 2024-01-01
_LATENCY_MS = 40, 900


def decision_minutes(decisions: int) -> tuple[float, ...]:
    """Decisions spread evenly over the hour, the first early enough to earn what the news is worth."""
    return tuple(4 + 50 * step / decisions for step in range(decisions))


def moment(window_id: str, minute: float) -> datetime:
    return start_of(window_id) + timedelta(minutes=minute)


def milliseconds(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def latency_ms(*key: object) -> int:
    """How long a scripted agent pretends to think."""
    low, high = _LATENCY_MS
    return low + bits(*key) % (high - low)


def snowflake(at: datetime, index: int, *key: object) -> str:
    """A decimal id like the game's: time, 10 bits of ``key``, and 12 bits of ``index`` that tell neighbours apart."""
    low = (bits("snowflake", *key) % (1 << 10)) << 12 | index % (1 << 12)
    return str(((milliseconds(at) - _SNOWFLAKE_EPOCH_MS) << 22) | low)


def windows_from(start: str, count: int) -> tuple[str, ...]:
    """``count`` consecutive hourly windows, the first of them ``start``."""
    first = start_of(start)
    return tuple(window_of(first + timedelta(hours=hour)) for hour in range(count))


def last_closed_windows(count: int, now: datetime) -> tuple[str, ...]:
    """The ``count`` newest windows that are closed at ``now``."""
    newest = window_of(now)
    while not is_closed(newest, 1, now):
        newest = window_of(start_of(newest) - timedelta(hours=1))
    return windows_from(window_of(start_of(newest) - timedelta(hours=count - 1)), count)
