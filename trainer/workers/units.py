"""Planned windows cut into units: whatever a window's size, what one worker holds is bounded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from data_bridge.discovery import WindowRef
from trainer.ledger.units import Unit
from trainer.types import PlannedWindow

MAX_GROUPS = 64
"""Groups in one unit: with 8 members of 40 kB each, 20 MB of JSON."""


def units_of(windows: Iterable[tuple[PlannedWindow, WindowRef]], most: int | None = None) -> Iterator[Unit]:
    """The units of each window in turn. A window without groups is one unit, so that its end is noticed too.

    Who is a duplicate, compared with whom or dropped was decided over the whole window when it was planned: a slice
    only says who reads and judges which of its groups.
    """
    most = most or MAX_GROUPS
    for planned, ref in windows:
        slices = [planned.groups[first : first + most] for first in range(0, len(planned.groups), most)] or [()]
        for part, groups in enumerate(slices, start=1):
            yield Unit(replace(planned, groups=groups), ref, part, len(slices))
