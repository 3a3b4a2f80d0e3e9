"""What of a survey is left to plan: without the rows that the model has trained on, or left out for good.

The ledger is asked about some windows at a time, so that neither the survey nor the answers are held whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import chain, repeat

from data_bridge.long_list import LongList
from data_bridge.quality import Exclusion, Reason
from data_bridge.survey_types import WindowSummary
from trainer.ledger.runs import Ledger
from trainer.plan.grouping import Lasting, row_name
from trainer.statistics.hold_out import OneHour

_LOOKED_UP_AT_ONCE = 20_000
"""Rows of windows that the ledger is asked about in one query."""


@dataclass(slots=True)
class Remaining:
    """The windows of a survey without the rows that the model is done with."""

    windows: LongList[WindowSummary] = field(default_factory=lambda: LongList(WindowSummary))
    """Those with enough agents left."""
    hours: list[OneHour] = field(default_factory=list)
    """Their places in time."""
    trained_windows: set[str] = field(default_factory=set)
    decided_before: Counter[str] = field(default_factory=Counter)
    again: LongList[Exclusion] = field(default_factory=lambda: LongList(Exclusion))
    faults: LongList[Exclusion] = field(default_factory=lambda: LongList(Exclusion))
    unusable: LongList[Exclusion] = field(default_factory=lambda: LongList(Exclusion))

    @property
    def excluded(self) -> Iterable[Exclusion]:
        return chain(self.again, self.faults, self.unusable)


async def without_done(
    windows: Iterable[WindowSummary], ledger: Ledger | None, model: str, min_agents: int
) -> Remaining:
    """``windows`` without the rows that our own ledger has as trained or permanently left out."""
    left = Remaining()
    for some in _portions(windows):
        trained: dict[str, tuple[str, str]] = {}
        decided: dict[str, Reason] = {}
        lasting: Lasting = {}
        if ledger is not None:
            names = [window.window_id for window in some]
            rows = (one.trajectory_id for window in some for one in window.usable)
            trained = await ledger.trained_ids(model, names, rows)
            decided = await ledger.decided_against(model, names)
            lasting = await ledger.lasting(model, names)
        again = _trained_again(some, trained)
        done_with = {*trained, *decided, *(one.trajectory_id for one in again)}
        usable = (one for window in some for one in window.usable if one.trajectory_id not in done_with)
        faults = [lasting[row_name(one)] for one in usable if row_name(one) in lasting]
        done_with |= {one.trajectory_id for one in faults}
        left.again.extend(again)
        left.faults.extend(faults)
        left.unusable.extend(_left_out_by_check(some, decided))
        left.trained_windows |= {window_id for window_id, _ in trained.values()}
        left.decided_before.update(reason.value for name, reason in decided.items() if name not in trained)
        for remaining in map(_remaining, some, repeat(done_with)):
            if len(remaining.usable) >= min_agents:
                left.windows.append(remaining)
                left.hours.append(OneHour(remaining.window_id, remaining.hours))
        some.clear()  # before the next windows are read
        del remaining
    return left


def _portions(windows: Iterable[WindowSummary]) -> Iterator[list[WindowSummary]]:
    """``windows`` in lists of as many as the ledger is asked about at once."""
    some: list[WindowSummary] = []
    rows = 0
    for window in windows:
        some.append(window)
        rows += len(window.usable) + len(window.excluded)
        del window
        if rows >= _LOOKED_UP_AT_ONCE:
            yield some
            some, rows = [], 0
    if some:
        yield some


def _remaining(window: WindowSummary, done_with: Set[str]) -> WindowSummary:
    return replace(
        window, usable=tuple(one for one in window.usable if one.trajectory_id not in done_with), excluded=()
    )


def _trained_again(windows: Sequence[WindowSummary], trained: Mapping[str, tuple[str, str]]) -> list[Exclusion]:
    """Rows of agents that were trained in this window by another row: a window trains an agent once, not once a run."""
    taken = set(trained.values())
    return [
        Exclusion(one.trajectory_id, one.agent_id, window.window_id, Reason.DUPLICATE_AGENT, "the agent was trained")
        for window in windows
        for one in window.usable
        if one.trajectory_id not in trained and (window.window_id, one.agent_id) in taken
    ]


def _left_out_by_check(windows: Sequence[WindowSummary], decided: Collection[str]) -> list[Exclusion]:
    """Exclusions without the rows that an earlier run used or left out: this run does not exclude them."""
    return [
        one
        for window in windows
        for one in window.excluded
        if one.reason is not Reason.ALREADY_USED and one.trajectory_id not in decided
    ]
