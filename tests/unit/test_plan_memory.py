"""A plan of any size: what planning holds does not grow with its rows as the rows themselves would."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from data_bridge import long_list
from data_bridge.discovery import WindowRef
from data_bridge.long_list import LongList
from data_bridge.quality import Rules
from data_bridge.reader import WindowReader
from data_bridge.survey import Survey, total
from data_bridge.survey_types import Coverage, UsableTrajectory, WindowSummary
from tests.builders import NOW, hours_before
from trainer.config.sections import GroupSettings
from trainer.plan import remaining
from trainer.plan.plan import Outlook, look_ahead

ROWS, AGENTS = 1_000, 100


def windows(rows: int) -> Iterator[WindowSummary]:
    nothing = Coverage(0, 0, 0, 0)
    for window_id in hours_before(number=rows // AGENTS):
        usable = tuple(
            UsableTrajectory(f"{window_id}-trajectory-{n}", f"agent-{n}", "trader", 1000.0 + n, 100, 100, f"{n:064x}")
            for n in range(AGENTS)
        )
        yield WindowSummary(window_id, 1, AGENTS, AGENTS, AGENTS, AGENTS, nothing, None, usable, ())


async def plan(rows: int) -> Outlook:
    surveyed = LongList(WindowSummary, windows(rows))
    refs = tuple(WindowRef(window_id) for window_id in hours_before(number=rows // AGENTS))
    no_database: Any = None
    return await look_ahead(
        Survey(surveyed, refs, total(surveyed)),
        WindowReader(no_database, Rules(now=NOW)),
        None,
        GroupSettings(dropout=0.3),
        model="hindsight",
        seed=0,
    )


async def memory_of(rows: int) -> tuple[int, int]:
    """Bytes that are held after planning, and the most that were held meanwhile."""
    gc.collect()
    tracemalloc.start()
    try:
        outlook = await plan(rows)
        gc.collect()
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert outlook.trajectories + outlook.plan.dropped == outlook.plan.total == rows
    return held, peak


async def test_a_plan_of_three_times_the_rows_holds_little_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """About 600 bytes a row when all was in memory."""
    monkeypatch.setattr(long_list, "_IN_MEMORY", 1_000)
    monkeypatch.setattr(long_list, "_AT_ONCE", 1_000)
    monkeypatch.setattr(remaining, "_LOOKED_UP_AT_ONCE", AGENTS)
    await plan(AGENTS)  # whatever is made once
    (held, peak), (held_of_more, peak_of_more) = await memory_of(ROWS), await memory_of(3 * ROWS)
    assert (held_of_more - held) / (2 * ROWS) < 60
    assert (peak_of_more - peak) / (2 * ROWS) < 150
