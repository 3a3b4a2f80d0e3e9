"""Train every period once, on however many hosts this runs."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import shlex
import shutil
import signal
import sys
from collections.abc import Sequence
from datetime import datetime

import asyncpg

from data_bridge.database import Database
from data_bridge.database_faults import explain, is_transient
from data_bridge.errors import ConfigurationError
from data_bridge.redaction import redact
from trainer.cli.frame import EXIT_CODES, database_of, run_command
from trainer.cli.settings import ScheduleSettings
from trainer.scheduling.readiness import readiness_of
from trainer.scheduling.schedule import (
    BEAT,
    LEASE,
    LONGEST_CATCH_UP,
    Claim,
    Held,
    Outcome,
    Periods,
    check_cron,
    next_period,
    outcome_of,
    period_due,
)

logger = logging.getLogger("trainer.scheduling.schedule")

_AWAY = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError)
"""What a database that restarts does to a question."""

_NOT_READY = 3
_LOST_CLAIM = 4


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(
        _work,
        ScheduleSettings,
        argv,
        prog="schedule_training.py",
        description="Trains every scheduled period exactly once, on however many hosts this command runs.",
        epilog="With --once the exit code is the training's, also of a period that failed a moment ago or too often;\n"
        "0 when there was nothing to do.\n" + EXIT_CODES,
    )


async def _work(settings: ScheduleSettings) -> int:
    _check(settings)
    async with database_of(settings, migrate=True) as database:
        periods = Periods(database, settings.job, attempts=settings.period_attempts, retry_after=settings.retry_after)
        if not settings.once:
            return await _run_for_ever(settings, database, periods)
        return await _run_once(settings, database, periods)


def _check(settings: ScheduleSettings) -> None:
    """What would otherwise be found out when the first period is due."""
    check_cron(settings.cron)
    if settings.command is not None:
        words = shlex.split(settings.command)
        if not words or shutil.which(words[0]) is None:
            raise ConfigurationError(f"--command: there is no program {' '.join(words[:1])!r} that can be run.")
    if settings.notify_url is not None and not settings.notify_url.get_secret_value().startswith(
        ("http://", "https://")
    ):
        raise ConfigurationError("--notify-url: write an address that begins with https:// or http://.")


async def _run_once(settings: ScheduleSettings, database: Database, periods: Periods) -> int:
    """Train the period that is due, unless it is over or a host that lives is at it."""
    period = period_due(settings.cron, await periods.now())
    claim = await periods.claim(period)
    if isinstance(claim, Held) and claim.state == "running":
        # Its host may just have died: this pod may be what Kubernetes starts in its place, and nobody comes later.
        print(f"Period {_label(settings, period)}: waiting for a sign of life of {claim.holder}.", flush=True)
        claim = await _claim_if_abandoned(periods, period)
    if isinstance(claim, Held):
        print(f"Period {_label(settings, period)}: nothing to do, {claim.state} by {claim.holder}.")
        return (claim.exit_code or 0) if claim.state == Outcome.FAILED else 0
    return await _train_claimed(settings, database, periods, claim)


async def _claim_if_abandoned(periods: Periods, period: datetime) -> Claim | Held:
    """Ask until the lease of a host that is dead would have ended."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + (LEASE + BEAT).total_seconds()
    while True:
        claim = await periods.claim(period)
        if isinstance(claim, Claim) or claim.state != "running" or loop.time() > deadline:
            return claim
        await asyncio.sleep(BEAT.total_seconds())


async def _run_for_ever(settings: ScheduleSettings, database: Database, periods: Periods) -> int:
    """Train what is due, what was missed while nobody ran, and what a dead host left behind."""
    started, announced = await periods.now(), None
    while True:
        try:
            await _train_what_is_due(settings, database, periods, started)
            now = await periods.now()
        except _AWAY as error:
            if not is_transient(error):
                raise explain(error, database.label) from error
            logger.warning("the database is away (%s); waiting for it", type(error).__name__)
            await asyncio.sleep(BEAT.total_seconds())
            continue
        upcoming = next_period(settings.cron, now)
        if upcoming != announced:
            print(f"Next period: {upcoming:%Y-%m-%d %H:%M:%S} UTC.", flush=True)
            announced = upcoming
        # Short naps against the database's clock: a dead host, a suspended one or a changed clock is noticed at once.
        await asyncio.sleep(min(BEAT.total_seconds(), max(0.05, (upcoming - now).total_seconds())))


async def _train_what_is_due(
    settings: ScheduleSettings, database: Database, periods: Periods, started: datetime
) -> None:
    now = await periods.now()
    due = period_due(settings.cron, now)
    waiting = await periods.abandoned()
    missed = now - due < LONGEST_CATCH_UP and await periods.has_history_before(due)
    for period in (*waiting, due) if due >= started or missed else waiting:
        claim = await periods.claim(period)
        if isinstance(claim, Claim):
            await _train_claimed(settings, database, periods, claim)


async def _train_claimed(settings: ScheduleSettings, database: Database, periods: Periods, claim: Claim) -> int:
    """Train the period that is ours now, close it, and tell about it."""
    label = _label(settings, claim.period)
    if claim.taken_over_from:
        print(f"Period {label}: taken over from {claim.taken_over_from}, which stopped beating.", flush=True)
    ready = await readiness_of(database, settings)
    if not ready.ready:
        exit_code, reason = _NOT_READY, ready.sentence
    else:
        print(f"Period {label}: training (attempt {claim.attempts}).", flush=True)
        exit_code, reason = await _train(settings, periods, claim)
    outcome = outcome_of(exit_code)
    if not await periods.finish(claim, outcome, exit_code, reason):
        print(f"Period {label}: another host has taken it over; its result counts.", flush=True)
        return exit_code
    print(f"Period {label}: {outcome}, exit code {exit_code}. {reason}", flush=True)
    if settings.notify_url is not None:
        from trainer.scheduling.notify import notify

        summary = {"job": settings.job, "period": claim.period.isoformat(), "outcome": str(outcome)}
        await notify(settings.notify_url.get_secret_value(), summary | {"exit_code": exit_code, "reason": reason})
    return exit_code


def _label(settings: ScheduleSettings, period: datetime) -> str:
    return f"{settings.job} {period:%Y-%m-%dT%H:%M:%SZ}"


async def _train(settings: ScheduleSettings, periods: Periods, claim: Claim) -> tuple[int, str]:
    """Run the training as a process of its own, beating while it lives; its exit code and last words."""
    default = [sys.executable, "-m", "trainer.cli.train_mmo"]
    command = shlex.split(settings.command) if settings.command else default
    process = await asyncio.create_subprocess_exec(
        *command, stderr=asyncio.subprocess.PIPE, preexec_fn=_die_with_parent
    )
    words = asyncio.create_task(_last_words(process), name="last words of the training")
    beating = asyncio.create_task(_beat(periods, claim, process), name="heartbeat of the period")
    try:
        exit_code = await process.wait()
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        await process.wait()
        raise
    finally:
        beating.cancel()
        still_ours = await asyncio.gather(beating, return_exceptions=True)
        reason = await words
    if still_ours[0] is False:
        return _LOST_CLAIM, "The claim was lost to another host."
    return exit_code, redact(reason)


async def _last_words(process: asyncio.subprocess.Process) -> str:
    """Pass the training's stderr through, and keep its last line: the sentence that explains an exit code."""
    assert process.stderr is not None
    last = ""
    while line := await process.stderr.readline():
        text = line.decode(errors="replace").rstrip()
        last = text or last
        print(text, file=sys.stderr, flush=True)
    return last


async def _beat(periods: Periods, claim: Claim, process: asyncio.subprocess.Process) -> bool:
    """Beat until cancelled; stop the training and return False when the claim is lost."""
    while True:
        await asyncio.sleep(BEAT.total_seconds())
        try:
            ours = await periods.beat(claim)
        except _AWAY as error:
            logger.warning("no heartbeat this time: %s", redact(str(error) or type(error).__name__))
            continue
        if not ours:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)
            return False


def _die_with_parent() -> None:
    """On Linux the kernel stops the training when its scheduler dies: whoever takes the period over is alone."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
