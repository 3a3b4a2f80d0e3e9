"""When a failed call is made again: a rule, not a loop."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime


@dataclass(frozen=True, slots=True)
class Retry:
    """Exponential backoff with jitter; the endpoint's own wish comes first, within reason."""

    attempts: int = 5
    first_delay: float = 1.0
    longest_delay: float = 60.0

    def delay(self, failures: int, retry_after: float | None, chance: random.Random) -> float:
        """Seconds to wait after the ``failures``-th failure of one call."""
        if retry_after is not None and not math.isnan(retry_after):
            return min(max(retry_after, 0.0), self.longest_delay)
        most = min(self.first_delay * 2.0 ** (failures - 1), self.longest_delay)
        return most * chance.uniform(0.5, 1.0)


def retry_after_of(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Seconds that the endpoint asks to wait, in any of the ways it may say so."""
    milliseconds = headers.get("retry-after-ms")
    given = headers.get("retry-after")
    try:
        if milliseconds is not None:
            return float(milliseconds) / 1000
        if given is None:
            return None
        return float(given)
    except ValueError:
        pass
    try:
        return (parsedate_to_datetime(given or "") - (now or datetime.now(UTC))).total_seconds()
    except (TypeError, ValueError):
        return None
