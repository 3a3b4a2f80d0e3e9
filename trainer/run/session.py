"""What a training command has open while it works: the database, the model's lock, the backend, the view."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import dataclass

from data_bridge.database import Database
from trainer.config.commands import TrainSettings
from trainer.config.sections import GroupSettings
from trainer.config.settings import flat_values
from trainer.ledger.model_lock import ModelLock
from trainer.ledger.runs import Ledger
from trainer.progress import View
from trainer.types import TrainingBackend

_ALSO_DECISIVE = (
    "model", "base_model", "seed", "held_out_share", "min_actions", "judge", "judge_model", "rubric", "purposes",
    "foreign", "simulate", "world_seed", "windows_per_iteration", "agents", "luck", "stage", "decisions",
)  # fmt: skip
"""Settings, besides those of grouping, that must equal an unfinished run's to resume it.

``windows_per_iteration`` because a day's number determines its hours: another length could repeat played hours.
"""


@dataclass(frozen=True, slots=True)
class Session:
    """Opened and closed by the command; passed to the training code."""

    settings: TrainSettings
    database: Database
    ledger: Ledger
    lock: ModelLock
    backend: TrainingBackend
    base_model: str
    view: View
    stop: asyncio.Event


def fingerprint(settings: TrainSettings) -> str:
    """Of the settings that decide what is played and how it is grouped and judged: equal ones may share a run."""
    decisive = {*GroupSettings.model_fields, *_ALSO_DECISIVE}
    values = {name: value for name, value in flat_values(settings).items() if name in decisive}
    if "held_out_share" not in settings.windows.model_fields_set:
        values["held_out_share"] = 0.1  # the default of 0.1.0, so that its runs can be resumed
    if settings.run.curriculum != "off":
        values["curriculum"] = settings.run.curriculum
    return hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=12).hexdigest()
