"""What a console does by itself: forgets what is old, tells a webhook when something burns, learns from advice."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_bridge.database import Database
from data_bridge.private_files import make_private
from data_bridge.redaction import page_text, redact, redacted
from trainer.config.console import ConsoleSettings
from trainer.ledger.advice import forget_advice
from trainer.ledger.audit import forget_audit
from trainer.ledger.events import EventKind, LoggedEvent, claim_to_notify, forget_events
from trainer.ledger.forget import forget_forgotten, forgotten_since
from trainer.ledger.rewards_asked import forget_asked
from trainer.ledger.run_folder import forget_in_folders

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger(__name__)

_FORGET_EVERY = timedelta(hours=1)
_NOTIFY_EVERY = timedelta(seconds=5)
_LEARN_EVERY = timedelta(minutes=1)
_PAUSES = (0.5, 2.0, 8.0)


async def forget_old(database: Database, kept: ConsoleSettings) -> int:
    """Delete events, deeds, asked-for scores and advice older than the settings keep; returns how many rows."""
    return (
        await forget_events(database, kept.keep_events)
        + await forget_audit(database, kept.keep_audit)
        + await forget_asked(database, kept.keep_rewards)
        + await forget_forgotten(database, kept.keep_audit)
        + await forget_advice(database, kept.keep_advice)
    )


async def forget_here(database: Database, home: Path) -> int:
    """Take agents that were forgotten on any host out of the folders of this host's runs; returns how many files."""
    done = home / "console" / "forgotten"
    try:
        position = int(done.read_text(encoding="ascii"))
    except (FileNotFoundError, ValueError):
        position = 0  # to do it all again changes nothing
    files = 0
    for one in await forgotten_since(database, position):
        files += await asyncio.to_thread(forget_in_folders, home, one.agent_id, one.trajectory_ids)
        make_private(done.parent)
        done.write_text(str(one.forgotten_id), encoding="ascii")
    return files


@dataclass(frozen=True, slots=True)
class Alarm:
    """What the webhook is told."""

    alarm: str
    """``rollback``, ``collapse``, ``budget`` or ``failure``."""
    model: str | None
    run_id: str | None
    sentence: str
    at: str


def alarm_of(event: LoggedEvent) -> Alarm | None:
    """The alarm that an event is; None for ordinary news. Pure."""
    said: dict[str, Any] = redacted(dict(event.data), page_text)
    match event.kind, said.get("state"):
        case EventKind.RELEASE, "rolled_back":
            found = ("rollback", f"{said.get('release')} was rolled back: {said.get('reason')}")
        case EventKind.RUN, "failed":
            found = ("failure", f"The run failed: {said.get('error')}")
        case EventKind.COLLAPSE, _:
            found = ("collapse", str(said.get("reason")))
        case EventKind.BUDGET, _:
            found = ("budget", f"{said.get('left_out')} trajectories were not judged: the ceiling of cost was reached.")
        case _:
            return None
    return Alarm(found[0], event.model, event.run_id, found[1], event.at.isoformat())


async def send_alarms(database: Database, url: str, *, pauses: tuple[float, ...] = _PAUSES) -> int:
    """Tell the webhook what nobody has told it; returns how many alarms it accepted. Each is sent by one console."""
    import httpx

    accepted = 0
    async with httpx.AsyncClient(timeout=10) as client:
        for event in await claim_to_notify(database):
            alarm = alarm_of(event)
            if alarm is not None:
                accepted += await _sent(client, url, alarm, pauses)
    return accepted


async def _sent(client: httpx.AsyncClient, url: str, alarm: Alarm, pauses: tuple[float, ...]) -> bool:
    import httpx

    body = {name: getattr(alarm, name) for name in ("alarm", "model", "run_id", "sentence", "at")}
    for pause in (*pauses, None):
        try:
            (await client.post(url, json=body)).raise_for_status()
            return True
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            fault = redact(str(error) or type(error).__name__)
        if pause is not None:
            await asyncio.sleep(pause)
    logger.warning("the webhook did not accept an alarm (%s): %s", alarm.alarm, fault)
    return False


@asynccontextmanager
async def upkeep(
    database: Database,
    kept: ConsoleSettings,
    notify: str | None,
    home: Path,
    learn: Callable[[], Awaitable[object]],
) -> AsyncIterator[None]:
    """Forget, tell and ``learn`` what came of advice for the duration of the block. A fault is a warning: the next
    time may be better."""

    async def forget() -> object:
        await forget_here(database, home)
        return await forget_old(database, kept)

    async def alarm() -> object:
        return None if notify is None else await send_alarms(database, notify)

    tasks = [
        asyncio.create_task(_every(_FORGET_EVERY, forget), name="forget what is old"),
        asyncio.create_task(_every(_NOTIFY_EVERY, alarm), name="tell the webhook"),
        asyncio.create_task(_every(_LEARN_EVERY, learn), name="learn from advice"),
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _every(pause: timedelta, work: Callable[[], Awaitable[object]]) -> None:
    while True:
        try:
            await work()
        except Exception as error:
            logger.warning("upkeep failed (%s); trying again later", redact(str(error) or type(error).__name__))
        await asyncio.sleep(pause.total_seconds())
