"""Adds the faults of real tables to a share of simulated rows and windows, for testing the code that reads them.

A row's id decides which fault it gets, so that the same world always gets the same faults.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import asyncpg
import msgspec

from data_bridge.database import Database
from data_bridge.faulty_rows import ROW_FAULTS, SELECT_STEPS, STEPS_FAULTS, UPDATE_STEPS, WINDOW_FAULTS
from trainer.world.chance import bits, unit

_MAX_OVERSIZED = 3
"""Rows of megabytes are worth testing, but only a few of them."""


async def soil(database: Database, window_ids: Sequence[str], share: float, seed: int) -> Counter[str]:
    """Add faults to about ``share`` of the rows and of the windows; returns the number of each fault."""
    put = Counter[str]()
    async with database.pool.acquire() as connection, connection.transaction():
        for window_id in window_ids:
            if unit(seed, "dirty window", window_id) < share:
                fault = _choose(WINDOW_FAULTS, seed, window_id)
                await connection.execute(WINDOW_FAULTS[fault], window_id)
                put[fault] += 1
        for row in await connection.fetch(SELECT_STEPS, list(window_ids)):
            if unit(seed, "dirty row", row["trajectoryId"]) < share:
                put[await _soil_row(connection, row, put, seed)] += 1
    return put


async def _soil_row(connection: Any, row: asyncpg.Record, put: Counter[str], seed: int) -> str:
    trajectory_id = row["trajectoryId"]
    fault = _choose([*STEPS_FAULTS, *ROW_FAULTS], seed, trajectory_id)
    if fault == "oversized" and put[fault] >= _MAX_OVERSIZED:
        fault = "malformed JSON"
    if fault in ROW_FAULTS:
        await connection.execute(ROW_FAULTS[fault], trajectory_id)
    else:
        text = STEPS_FAULTS[fault](msgspec.json.decode(row["stepsJson"]))
        await connection.execute(UPDATE_STEPS, trajectory_id, text)
    return fault


def _choose(faults: Iterable[str], seed: int, name: str) -> str:
    names = sorted(faults)
    return names[bits(seed, "fault", name) % len(names)]
