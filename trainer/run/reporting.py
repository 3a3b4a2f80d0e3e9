"""Tells the ledger how far a run is, every few seconds while it changes: for those who watch from elsewhere.

Watching is never in the way: a report that cannot be written is a warning, and the run continues.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta

from data_bridge.redaction import redact
from trainer.ledger.runs import Ledger
from trainer.progress import Progress

logger = logging.getLogger(__name__)

EVERY = timedelta(seconds=2)
PATIENCE = timedelta(seconds=5)
"""How long a report may take, and the end of a run may wait for it: a database without room answers late or never."""


@dataclass(frozen=True, slots=True)
class Report:
    """How far a run is, as the ledger keeps it."""

    stage: str
    unit: str
    step: int
    steps: int
    windows: int
    windows_read: int
    groups: int
    groups_judged: int
    groups_cached: int
    groups_failed: int
    cost_usd: float
    max_cost: float | None
    share: float
    """Of the training that is done, from 0 to 1."""
    seconds_left: float | None
    """An estimate from what this attempt did in its time; None until there is something to estimate from."""
    tokens_per_second: float


def report_of(progress: Progress, max_cost: float | None, seconds: float, share_before: float) -> Report:
    """``seconds`` since this attempt began, when ``share_before`` was done."""
    done = progress.share - share_before
    left = seconds * (1 - progress.share) / done if done > 0 else None
    return Report(
        progress.stage,
        progress.unit,
        progress.step,
        progress.steps,
        progress.windows,
        progress.windows_read,
        progress.groups,
        progress.groups_judged,
        progress.groups_cached,
        progress.groups_failed,
        progress.cost_usd,
        max_cost,
        progress.share,
        None if left is None else round(left, 1),
        progress.tokens_per_second,
    )


@asynccontextmanager
async def reported(
    ledger: Ledger, run_id: str, progress: Progress, max_cost: float | None, every: timedelta = EVERY
) -> AsyncIterator[None]:
    """Report while the block runs, and once more at its end."""
    began, share_before = time.monotonic(), progress.share
    told: Report | None = None

    async def tell() -> None:
        nonlocal told
        report = report_of(progress, max_cost, time.monotonic() - began, share_before)
        if told is not None and _without_time(report) == _without_time(told):
            return
        try:
            await ledger.keep_progress(run_id, asdict(report), timeout=PATIENCE)
            told = report
        except Exception as error:
            logger.warning("run %s: its progress could not be reported (%s)", run_id, redact(str(error)))

    async def keep_telling() -> None:
        while True:
            await tell()
            await asyncio.sleep(every.total_seconds())

    telling = asyncio.create_task(keep_telling(), name=f"progress of {run_id}")
    try:
        yield
    finally:
        telling.cancel()
        last = asyncio.create_task(tell(), name=f"last progress of {run_id}")
        _, stuck = await asyncio.wait({telling, last}, timeout=PATIENCE.total_seconds())
        for task in stuck:
            task.cancel()


def _without_time(report: Report) -> dict[str, object]:
    return {**asdict(report), "seconds_left": None}
