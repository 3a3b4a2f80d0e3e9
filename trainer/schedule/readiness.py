"""Whether a period has enough data to train on, checked before a scheduled training; if not, with the reason."""

from __future__ import annotations

from dataclasses import dataclass

from data_bridge.database import Database
from data_bridge.reader import WindowReader
from data_bridge.survey import survey
from trainer.config.derived import window_rules
from trainer.config.sections import ReadinessSettings
from trainer.config.settings import written_duration
from trainer.ledger.clock import clock
from trainer.ledger.evaluations import first_consulted
from trainer.ledger.runs import has_ledger
from trainer.progress import counted
from trainer.statistics.hold_out import OneHour, hold_out


@dataclass(frozen=True, slots=True)
class Readiness:
    ready: bool
    sentence: str


async def readiness_of(database: Database, settings: ReadinessSettings) -> Readiness:
    """Are there enough closed, usable, unused windows, besides those that are kept for the gate?

    Always in the embedded database: training plays its own.
    """
    if database.is_embedded:
        return Readiness(True, "The simulated market plays its own windows.")
    rules = window_rules(settings, now=await clock(database, settings.until))
    surveyed = await survey(WindowReader(database, rules), rules)
    windows = [OneHour(one.window_id, one.hours) for one in surveyed.windows if len(one.usable) >= settings.min_agents]
    consulted = await first_consulted(database.pool) if await has_ledger(database) else ()
    trained = [window.window_id for window in surveyed.windows if window.is_trained]
    usable = len(windows) - len(hold_out(windows, consulted, settings, trained=trained).reasons)
    enough = usable >= settings.min_windows
    lookback = written_duration(settings.lookback)
    sentence = f"{counted(usable, 'usable window')} in the last {lookback}, {settings.min_windows} needed"
    if not enough and surveyed.totals.reasons:
        reason, count = max(surveyed.totals.reasons.items(), key=lambda item: item[1])
        sentence += f"; most rows were left out as {reason} ({count})"
    return Readiness(enough, sentence + ".")
