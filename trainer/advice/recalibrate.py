"""Fits a release's calibration anew when there is more to learn from, and keeps it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from data_bridge.database import Database
from trainer.config.console import AdviceSettings
from trainer.ledger.advice import StoredCalibration, labels_of, last_change, newest_calibration, store_calibration
from trainer.statistics.calibration import calibrate, calibration_error
from trainer.statistics.confidence import Calibration, Label

MOST_LABELS = 2000
"""Windows that one calibration looks at, the newest."""


async def recalibrate(
    database: Database, model: str, release: str, settings: AdviceSettings
) -> StoredCalibration | None:
    """The calibration by all that is known now; nothing is fitted if nothing was learnt since. None: too little."""
    target = settings.advice_precision
    known = await newest_calibration(database, model, release, target)
    number, mark = await last_change(database, model, release)
    if number == 0 or (known is not None and known.last_label == mark):
        return known
    labels = await labels_of(database, model, release, settings.advice_memory, MOST_LABELS)
    found, error = await asyncio.to_thread(_fit, labels, target)
    if found is None and known is None:
        return None
    if found is None:  # what it rested on is older than the memory: nothing is certain any more
        assert known is not None
        found = replace(known.calibration, threshold=None, precision_low=None, coverage=0.0)
    await store_calibration(database, model, release, target, found, error, mark)
    return await newest_calibration(database, model, release, target)


def _fit(labels: list[Label], target: float) -> tuple[Calibration | None, float | None]:
    return calibrate(labels, target), cross_error(labels, target)


def cross_error(labels: list[Label], target: float) -> float | None:
    """The calibration error on windows that a calibration has not seen: each half by the other. None: too few."""
    claimed: list[float] = []
    came: list[bool] = []
    for half in (0, 1):
        fitted = calibrate(labels[half::2], target)
        if fitted is None:
            return None
        others = labels[1 - half :: 2]
        claimed += [fitted.confidence(one.score) for one in others]
        came += [one.is_right for one in others]
    return calibration_error(claimed, came)
