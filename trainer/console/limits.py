"""How often somebody may call: a bucket of tokens for each caller, refilled steadily. In memory: it is only a brake."""

from __future__ import annotations

import math
import time
from collections import OrderedDict

from trainer.console.problems import Refused

_MAX_CALLERS = 10_000
"""Callers that are remembered; the one that called longest ago is forgotten."""


class RateLimit:
    """At most ``most`` calls ``per`` seconds by one name, and as many at once."""

    def __init__(self, most: float, *, per: float) -> None:
        self._most, self._refill = most, most / per
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def count(self, name: str, now: float | None = None) -> None:
        """One call by ``name``. Refused (429) if that is one too many."""
        now = time.monotonic() if now is None else now
        left = self._left_of(name, now)
        self._left.pop(name, None)
        self._left[name] = (left - 1 if left >= 1 else left, now)
        while len(self._left) > _MAX_CALLERS:
            self._left.popitem(last=False)
        self._refuse_below_one(left)

    def check(self, name: str, now: float | None = None) -> None:
        """Refused (429) if the next call by ``name`` would be one too many; it is not counted."""
        self._refuse_below_one(self._left_of(name, time.monotonic() if now is None else now))

    def _left_of(self, name: str, now: float) -> float:
        left, since = self._left.get(name, (self._most, now))
        return min(self._most, left + (now - since) * self._refill)

    def _refuse_below_one(self, left: float) -> None:
        if left < 1:
            wait = math.ceil((1 - left) / self._refill)
            raise Refused(429, f"Too many requests: try again in {wait} s.", headers={"Retry-After": str(wait)})
