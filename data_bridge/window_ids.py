"""Window ids: ``YYYY-MM-DDTHH:00``, the start of the window's first hour in UTC, as text without a time zone."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

GRACE = timedelta(minutes=10)
"""A window is closed this long after its end: late trajectories and outcomes have been written by then."""

# Only years that datetime can compute with: adding an hour to 9999-12-31T23:00 would be an error.
_ID = re.compile(r"(?P<day>[12]\d{3}-\d{2}-\d{2})[T ](?P<hour>\d{2}):\d{2}(?::\d{2}(?:\.\d+)?)?(?:Z|[+-]00:?00)?")


@lru_cache(maxsize=10_000)
def normalise(raw: str) -> str | None:
    """The canonical id for any spelling found in real tables (seconds, milliseconds, ``Z``), or None."""
    match = _ID.fullmatch(raw.strip())
    if match is None:
        return None
    canonical = f"{match['day']}T{match['hour']}:00"
    try:
        start_of(canonical)
    except ValueError:
        return None
    return canonical


def spellings_of(window_id: str) -> list[str]:
    """The spellings of a canonical id that occur in real tables, the canonical one first."""
    endings = ("", "Z", ":00", ":00Z", ":00.000", ":00.000Z")
    return [f"{start}{ending}" for start in (window_id, window_id.replace("T", " ")) for ending in endings]


def in_utc(moment: datetime) -> datetime:
    """An aware ``moment`` in UTC. ValueError for a naive one, because its hour would depend on the host."""
    if moment.tzinfo is None:
        raise ValueError(f"{moment} has no time zone: pass an aware moment, such as datetime.now(UTC).")
    return moment.astimezone(UTC)


def window_of(moment: datetime) -> str:
    """The id of the hour that ``moment`` (aware) lies in."""
    return in_utc(moment).strftime("%Y-%m-%dT%H:00")


@lru_cache(maxsize=10_000)
def start_of(window_id: str) -> datetime:
    """The aware UTC start of a canonical id. ValueError if it is not one."""
    return datetime.strptime(window_id, "%Y-%m-%dT%H:%M").replace(tzinfo=UTC)


def end_of(window_id: str, hours: int) -> datetime:
    return start_of(window_id) + timedelta(hours=hours)


def is_closed(window_id: str, hours: int, now: datetime) -> bool:
    return end_of(window_id, hours) + GRACE <= now


def windows_from(start: str, count: int) -> tuple[str, ...]:
    """``count`` consecutive hourly windows, beginning with ``start``."""
    first = start_of(start)
    return tuple(window_of(first + timedelta(hours=hour)) for hour in range(count))


def last_closed_windows(count: int, now: datetime) -> tuple[str, ...]:
    """The ``count`` newest windows that are closed at ``now``."""
    newest = window_of(now)
    while not is_closed(newest, 1, now):
        newest = window_of(start_of(newest) - timedelta(hours=1))
    return windows_from(window_of(start_of(newest) - timedelta(hours=count - 1)), count)
