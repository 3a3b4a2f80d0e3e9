"""Runs what somebody asked for on a console: this host takes a training, or lessons for the gate, when it is idle, in
a process of its own.

The settings of a command reach the training as variables, those of this host beside them; secrets are this host's
alone. A claim with a heartbeat lets another host take over when this one dies; the training resumes there.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from data_bridge.database import Database
from data_bridge.redaction import redact
from trainer.config.commands import TrainSettings
from trainer.config.lessons import LessonsCommand
from trainer.config.settings import Command, settings_of, variable_of
from trainer.ledger.commands import BEAT, Settings, TakenStart, finish_start, keep_start, take_start
from trainer.ledger.lesson_admissions import note_try, one_admission_at_a_time, wanted_admissions
from trainer.ledger.periods import AWAY
from trainer.schedule.training_process import Ended, train, variables_for

TRAIN_MMO = (sys.executable, "-m", "trainer.cli.train_mmo")
GATE_LESSONS = (sys.executable, "-m", "trainer.cli.lessons", "gate", "--asked")


def environment_of(settings: Command, asked: Settings, model: str) -> dict[str, str]:
    """The variables of a training: this process's own, its settings, and what was asked for."""
    variables = {(section, name): variable_of(name, field) for section, name, field in settings_of(TrainSettings)}
    wanted: dict[str, str] = {}
    for section, values in {**asked, "model": {**asked.get("model", {}), "model": model}}.items():
        for name, value in values.items():
            variable = variables[section, name]
            if variable is not None:
                wanted[variable] = _spelt(value)
    return os.environ | variables_for(TrainSettings, settings) | wanted


def _spelt(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value)


async def run_start(
    database: Database,
    settings: Command,
    taken: TakenStart,
    *,
    command: Sequence[str] = TRAIN_MMO,
    stop: asyncio.Event,
    quiet: bool = True,
) -> Ended:
    """Train what was asked for, and record how it ended. ``stop`` is set if this process is asked to end."""
    asked = taken.command
    environment = environment_of(settings, asked.settings, asked.model)
    async with _kept(database, taken) as lost:
        passing = asyncio.create_task(_pass_on(stop, lost), name="end of this host")
        try:
            words = (*command, "--run-id", asked.run_id)
            ended = await train(words, environment, stop=stop, lost=lost, quiet=quiet)
        finally:
            passing.cancel()
        await finish_start(database, taken, ended.exit_code, redact(ended.last_words), pid=ended.pid)
    return ended


async def _pass_on(stop: asyncio.Event, lost: asyncio.Event) -> None:
    await stop.wait()
    lost.set()


@asynccontextmanager
async def _kept(database: Database, taken: TakenStart) -> AsyncIterator[asyncio.Event]:
    """Heartbeats for the duration of the block; the event is set when another host has taken over."""
    lost = asyncio.Event()

    async def beat() -> None:
        while not lost.is_set():
            await asyncio.sleep(BEAT.total_seconds())
            try:
                if not await keep_start(database, taken):
                    lost.set()
            except AWAY:
                continue  # a database that restarts does not lose the claim

    beating = asyncio.create_task(beat(), name="heartbeat of the command")
    try:
        yield lost
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)


async def run_next(
    database: Database, settings: Command, *, command: Sequence[str] = TRAIN_MMO, stop: asyncio.Event, quiet: bool
) -> Ended | None:
    """Take the next training that waits, and run it to its end; None if there is none."""
    taken = await take_start(database)
    if taken is None:
        return None
    return await run_start(database, settings, taken, command=command, stop=stop, quiet=quiet)


async def gate_what_was_asked_for(
    database: Database,
    settings: Command,
    game: str,
    *,
    command: Sequence[str] = GATE_LESSONS,
    stop: asyncio.Event,
    quiet: bool,
) -> Ended | None:
    """Put lessons from outside to the gate that somebody asked about; None if nobody did, or a host is at it.

    What a process leaves undone that was not asked to stop has failed: the reason is kept, and it is not tried again
    until somebody asks again.
    """
    if not await wanted_admissions(database.pool, game):
        return None
    async with one_admission_at_a_time(database, game) as is_free:
        if not is_free:
            return None
    lost = asyncio.Event()
    passing = asyncio.create_task(_pass_on(stop, lost), name="end of this host")
    try:
        environment = os.environ | variables_for(LessonsCommand, settings)
        ended = await train(command, environment, stop=stop, lost=lost, quiet=quiet)
    finally:
        passing.cancel()
    if ended.exit_code != 0 and not ended.was_interrupted:
        for admission in await wanted_admissions(database.pool, game):
            await note_try(database.pool, admission, redact(ended.last_words) or f"exit code {ended.exit_code}")
    return ended


def asked_settings(values: Mapping[str, Mapping[str, Any] | None]) -> dict[str, dict[str, Any]]:
    """Only what was asked for, by section."""
    found: dict[str, dict[str, Any]] = {}
    for section, given in values.items():
        own = {name: value for name, value in (given or {}).items() if value is not None}
        if own:
            found[section] = own
    return found
