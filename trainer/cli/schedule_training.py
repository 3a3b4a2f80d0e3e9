"""Train every period once, on any number of hosts."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import NoReturn

from data_bridge.database import Database, explain, is_transient
from data_bridge.errors import ConfigurationError, HindsightError, Interrupted
from data_bridge.redaction import redact
from trainer.cli.frame import EXIT_CODES, database_of, run_command
from trainer.cli.output import alive, say, say_json
from trainer.config.commands import ScheduleSettings, TrainSettings
from trainer.ledger.commands import Presence, presence
from trainer.ledger.periods import AWAY, BEAT, LEASE, Claim, Held, PeriodResult, Periods, beating
from trainer.schedule.cron import MAX_CATCH_UP, Summary, check_cron, next_period, outcome_of, period_due
from trainer.schedule.readiness import readiness_of
from trainer.schedule.training_process import train, variables_for

logger = logging.getLogger("trainer.schedule")

_TRAIN_MMO = (sys.executable, "-m", "trainer.cli.train_mmo")

_SETTLE_EVERY = timedelta(hours=1)
"""How often a running canary is looked at: a window is an hour, so evidence does not come faster."""

_NOT_READY = 3
_LOST_CLAIM = 4


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(
        _work,
        ScheduleSettings,
        argv,
        prog="schedule_training.py",
        description="Trains every scheduled period exactly once, on any number of hosts that run this command.",
        epilog="With --once the exit code is the training's, also for a period that failed recently or too often;\n"
        "0 when there was nothing to do. With --json stdout has the summary that the webhook receives.\n" + EXIT_CODES,
    )


async def _work(settings: ScheduleSettings) -> int:
    _check(settings)
    async with database_of(settings, migrate=True) as database:
        asked = settings.schedule
        periods = Periods(database, asked.job, attempts=asked.period_attempts, retry_after=asked.retry_after)
        scheduler = _Scheduler(settings, database, periods)
        if asked.once:
            return await scheduler.run_once()
        async with presence(database, "scheduler") as said:
            return await scheduler.run_for_ever(said)


def _check(settings: ScheduleSettings) -> None:
    """Refuse now what would otherwise fail when the first period is due."""
    check_cron(settings.schedule.cron)
    if settings.schedule.command is not None:
        words = _words(settings.schedule.command)
        if not words or shutil.which(words[0]) is None:
            raise ConfigurationError(f"--command: there is no program {' '.join(words[:1])!r} that can be executed.")
    url = settings.secrets.notify_url
    if url is not None and not url.get_secret_value().startswith(("http://", "https://")):
        raise ConfigurationError("HINDSIGHT_NOTIFY_URL: write an address that begins with https:// or http://.")


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        raise ConfigurationError(f"--command: write it as in a shell ({error}).") from None


@dataclass(frozen=True, slots=True)
class _Scheduler:
    """One host's scheduler."""

    settings: ScheduleSettings
    database: Database
    periods: Periods
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by Ctrl-C or SIGTERM while a training runs: its result is recorded before this process ends."""

    async def run_once(self) -> int:
        """Settle canaries, train the periods that dead hosts left, and the due period if it is free."""
        await self._settle_canaries()
        due = period_due(self.settings.schedule.cron, await self.periods.now())
        left_behind = [period for period in await self.periods.abandoned() if period < due]
        earlier = [summary for period in left_behind if (summary := await self._train_if_free(period)) is not None]
        last = await self._train_due(due)
        await self._consolidate_lessons()
        if self.settings.output.json_output:
            say_json(asdict(last) | {"taken_over": [asdict(summary) for summary in earlier]})
        return next((summary.exit_code for summary in (last, *reversed(earlier)) if summary.exit_code), 0)

    async def _train_due(self, period: datetime) -> Summary:
        """Train ``period``, unless it is finished or a live host is training it."""
        claim = await self.periods.claim(period)
        if isinstance(claim, Held) and claim.state == "running":
            # Its host may just have died: this pod may be the one that Kubernetes started in its place.
            self._say(f"Period {self._label(period)}: waiting for a heartbeat of {claim.holder}.")
            with alive(f"waiting for a heartbeat of {claim.holder}", quiet=self.settings.output.json_output):
                claim = await self._claim_if_abandoned(period)
        if isinstance(claim, Claim):
            return await self._train_claimed(claim)
        self._say(f"Period {self._label(period)}: nothing to do, {claim.state} by {claim.holder}.")
        exit_code = (claim.exit_code or 0) if claim.state == PeriodResult.FAILED else 0
        return self._summary(period, claim.state, exit_code, f"Nothing to do, {claim.state} by {claim.holder}.")

    async def _claim_if_abandoned(self, period: datetime) -> Claim | Held:
        """Retry until the lease of a dead host would have expired."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (LEASE + BEAT).total_seconds()
        while True:
            claim = await self.periods.claim(period)
            if isinstance(claim, Claim) or claim.state != "running" or loop.time() > deadline:
                return claim
            await asyncio.sleep(BEAT.total_seconds())

    async def run_for_ever(self, said: Presence) -> NoReturn:
        """Train periods that are due, that were missed while no host ran, and that dead hosts left; settle canaries.

        In between, train what somebody asks for on a console.
        """
        started, announced, settle_at = await self.periods.now(), None, await self.periods.now()
        tidy_at = settle_at
        while True:
            try:
                if await self.periods.now() >= settle_at:
                    await self._settle_canaries()
                    settle_at = await self.periods.now() + _SETTLE_EVERY
                said.doing = "training a period"
                await self._train_what_is_due(started)
                said.doing = "training what was asked for"
                await self._train_what_was_asked_for()
                said.doing = "waiting for the next period"
                now = await self.periods.now()
            except AWAY as error:
                if not is_transient(error):
                    raise explain(error, self.database.label) from error
                logger.warning("the database is unreachable (%s); waiting for it", type(error).__name__)
                await asyncio.sleep(BEAT.total_seconds())
                continue
            upcoming = next_period(self.settings.schedule.cron, now)
            if upcoming != announced:
                self._say(f"Next period: {upcoming:%Y-%m-%d %H:%M:%S} UTC.")
                announced = upcoming
            if now >= tidy_at:
                await self._consolidate_lessons()
                tidy_at = now + _SETTLE_EVERY
            # Short sleeps and the database's clock: a dead or suspended host, or a changed clock, is noticed soon.
            await asyncio.sleep(min(BEAT.total_seconds(), max(0.05, (upcoming - now).total_seconds())))

    async def _settle_canaries(self) -> None:
        """By the evidence that is in, with no command needed. A fault is no reason not to train."""
        from trainer.ledger.clock import clock
        from trainer.promote.canary import settle_canaries

        try:
            now = await clock(self.database, self.settings.windows.until)
            decisions = await settle_canaries(self.database, self.settings.common.home, now=now)
        except (HindsightError, *AWAY) as error:
            if is_transient(error):
                raise
            logger.warning("the canary could not be settled: %s", redact(str(error) or type(error).__name__))
            return
        for name, decision in decisions.items():
            self._say(f"Canary {name}: {decision.ruling.value.replace('_', ' ')}. {decision.reason}.")

    async def _consolidate_lessons(self) -> None:
        """If there are new ones. A fault is no reason not to train."""
        from trainer.ledger.lesson_upkeep import has_new_lessons
        from trainer.lessons.consolidate import consolidate
        from trainer.lessons.open import open_lessons

        try:
            if not await has_new_lessons(self.database.pool, self.settings.lessons.game):
                return
            async with open_lessons(self.database, self.settings.embedding, self.settings.secrets) as lessons:
                done = await consolidate(lessons, self.settings.kept, self.settings.lessons.game)
        except (HindsightError, *AWAY) as error:
            logger.warning("the lessons could not be consolidated: %s", redact(str(error) or type(error).__name__))
            return
        if done.changed:
            self._say(f"Lessons: merged {done.merged}, made {done.rules} rules, retired {done.retired}.")

    async def _train_what_is_due(self, started: datetime) -> None:
        now = await self.periods.now()
        due = period_due(self.settings.schedule.cron, now)
        waiting = await self.periods.abandoned()
        missed = now - due < MAX_CATCH_UP and await self.periods.has_history_before(due)
        for period in (*waiting, due) if due >= started or missed else waiting:
            summary = await self._train_if_free(period)
            if summary is not None and self.settings.output.json_output:
                say_json(summary)

    async def _train_what_was_asked_for(self) -> None:
        from trainer.schedule.commanded import gate_what_was_asked_for, run_next

        quiet = self.settings.output.json_output
        ended = await run_next(self.database, self.settings, stop=self.stop, quiet=quiet)
        if ended is not None:
            self._say(f"A training that was asked for ended with exit code {ended.exit_code}. {ended.last_words}")
        game = self.settings.lessons.game
        gated = await gate_what_was_asked_for(self.database, self.settings, game, stop=self.stop, quiet=quiet)
        if gated is not None:
            self._say(f"Lessons were put to the gate, exit code {gated.exit_code}. {gated.last_words}")
        if self.stop.is_set():
            raise Interrupted("Stopped after a training that was asked for.")

    async def _train_if_free(self, period: datetime) -> Summary | None:
        claim = await self.periods.claim(period)
        return await self._train_claimed(claim) if isinstance(claim, Claim) else None

    async def _train_claimed(self, claim: Claim) -> Summary:
        """Train the claimed period, close it, and notify the webhook."""
        label = self._label(claim.period)
        if claim.taken_over_from:
            self._say(f"Period {label}: taken over from {claim.taken_over_from}, whose heartbeat stopped.")
        async with beating(self.periods, claim) as lost:
            exit_code, reason = await self._train_if_ready(claim, lost)
            outcome = outcome_of(exit_code)
            ours = await self.periods.finish(claim, outcome, exit_code, reason)
        summary = self._summary(claim.period, outcome, exit_code, reason)
        if ours:
            self._say(f"Period {label}: {outcome}, exit code {exit_code}. {reason}")
            await self._notify(summary)
        else:
            self._say(f"Period {label}: another host has taken it over; its result counts.")
        if self.stop.is_set():
            raise Interrupted(f"Stopped after period {label}.")
        return summary

    async def _train_if_ready(self, claim: Claim, lost: asyncio.Event) -> tuple[int, str]:
        """The exit code of the period, and the sentence that explains it."""
        ready = await readiness_of(self.database, self.settings.windows)
        if not ready.ready:
            return _NOT_READY, ready.sentence
        if not lost.is_set():
            self._say(f"Period {self._label(claim.period)}: training (attempt {claim.attempts}).")
            exit_code, reason = await self._train(claim, lost)
        return (_LOST_CLAIM, "The claim was lost to another host.") if lost.is_set() else (exit_code, reason)

    async def _train(self, claim: Claim, lost: asyncio.Event) -> tuple[int, str]:
        settings, began = self.settings, await self.periods.now()
        ended = await train(
            _words(settings.schedule.command) if settings.schedule.command is not None else _TRAIN_MMO,
            os.environ | variables_for(TrainSettings, settings),
            stop=self.stop,
            lost=lost,
            quiet=settings.output.json_output,
        )
        if self.stop.is_set() and ended.was_interrupted:
            raise Interrupted(f"Stopped in period {self._label(claim.period)}; the next scheduler resumes it.")
        # Another command need not leave a run.
        idle = ended.exit_code == 0 and settings.schedule.command is None
        if idle and not await self.periods.finished_a_run(ended.pid, since=began):
            return 1, "The training ended with exit code 0 but left no run: nothing was trained."
        return ended.exit_code, redact(ended.last_words)

    async def _notify(self, summary: Summary) -> None:
        if self.settings.secrets.notify_url is not None:
            from trainer.schedule.notify import notify

            await notify(self.settings.secrets.notify_url.get_secret_value(), summary)

    def _summary(self, period: datetime, outcome: str, exit_code: int, reason: str) -> Summary:
        return Summary(self.settings.schedule.job, period.isoformat(), str(outcome), exit_code, reason)

    def _label(self, period: datetime) -> str:
        return f"{self.settings.schedule.job} {period:%Y-%m-%dT%H:%M:%SZ}"

    def _say(self, line: str) -> None:
        """For people: with ``--json`` stdout belongs to the summaries."""
        say(line, to=sys.stderr if self.settings.output.json_output else sys.stdout)
