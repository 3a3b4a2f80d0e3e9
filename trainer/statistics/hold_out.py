"""Which windows decide about a checkpoint, and which it is trained on: what decides comes after all that is trained.

The newest windows that no evaluation has used yet are kept for the next one, and the hours just before them (the
embargo) are not trained either, since what happened in one hour shows in the next. A window serves one ruling; after
that it is trained on like any other, whatever its age.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from data_bridge.quality import Reason
from data_bridge.window_ids import end_of, start_of
from trainer.config.sections import HeldOutSettings
from trainer.statistics.gain import MIN_WINDOWS_TO_RULE


class Hours(Protocol):
    """A window's place in time."""

    @property
    def window_id(self) -> str: ...
    @property
    def hours(self) -> int: ...


@dataclass(frozen=True, slots=True)
class OneHour:
    """A window whose rows were not read yet: most are of one hour."""

    window_id: str
    hours: int = 1


@dataclass(frozen=True, slots=True)
class HoldOut:
    """The windows that are not trained now, and why."""

    reasons: dict[str, tuple[Reason, str]]

    @property
    def evaluation(self) -> list[str]:
        return sorted(name for name, (reason, _) in self.reasons.items() if reason is Reason.HELD_OUT)


NOTHING_HELD_OUT = HoldOut({})


def hold_out(
    usable: Sequence[Hours], consulted: Collection[str], settings: HeldOutSettings, *, trained: Collection[str] = ()
) -> HoldOut:
    """What of the ``usable`` windows is kept for the next ruling: none that was ``consulted`` before.

    ``trained`` are windows that the model is trained on already: what decides comes after them.
    """
    last = max(trained, default="")
    fresh = sorted(
        (window for window in usable if window.window_id not in consulted and window.window_id > last),
        key=lambda window: window.window_id,
    )
    if len(fresh) < MIN_WINDOWS_TO_RULE:  # too few to rule: they do not hold up later ones that have served
        served = max((window.window_id for window in usable if window.window_id in consulted), default="")
        fresh = [window for window in fresh if window.window_id > served]
    number = min(_number(len(usable) + len(trained), settings), len(fresh))
    if number == 0:
        return NOTHING_HELD_OUT
    kept = fresh[-number:]
    first = start_of(kept[0].window_id)
    evaluated = {window.window_id for window in kept}
    reasons = dict.fromkeys(evaluated, (Reason.HELD_OUT, "kept for the next ruling of the gate"))
    for window in usable:
        if window.window_id not in evaluated and end_of(window.window_id, window.hours) + settings.embargo > first:
            reasons[window.window_id] = (Reason.EMBARGO, f"too close to the evaluation windows from {first:%d %H:%M}")
    return HoldOut(reasons)


def _number(windows: int, settings: HeldOutSettings) -> int:
    """A share of the windows, but enough for a ruling; none if that would be more than half of them."""
    if settings.held_out_share == 0 or windows < 2 * MIN_WINDOWS_TO_RULE:
        return 0
    return min(settings.eval_windows, max(MIN_WINDOWS_TO_RULE, int(windows * settings.held_out_share)))
