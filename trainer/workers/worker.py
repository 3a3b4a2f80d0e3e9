"""A worker: claims units of one job in the ledger, reads and judges them, commits, until the job ends.

It is told the job's id and where its secrets are, nothing else. Its heartbeat renews its leases; when the ledger says
that a unit is no longer its own, it drops that unit. When it cannot reach the ledger for a lease, others have its
units: it gives them all up.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import uuid
from contextlib import AsyncExitStack
from copy import deepcopy
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import asyncpg
import msgspec

from data_bridge.database import Database, open_database
from data_bridge.errors import HindsightError, StageGone
from data_bridge.models import Window
from data_bridge.reader import WindowReader
from data_bridge.redaction import redact
from trainer.judge.adaptive import OrderNoise
from trainer.judge.open import WorkerShare, open_judge
from trainer.ledger.runs import Ledger
from trainer.ledger.shared_budget import JobBudget
from trainer.ledger.units import Job, UnitClaim, UnitLedger, UnitResult
from trainer.progress import FailurePolicy, FailureTally, JudgeUsage
from trainer.types import Group, Judge, JudgedGroup, JudgeFailure
from trainer.workers.judging import as_unused, judge_unit
from trainer.workers.sections import WorkerSection, secrets_from

logger = logging.getLogger(__name__)

_POLL = 0.2  # seconds, while there is nothing to claim
_CLAIMED_AT_ONCE = 8
_CONNECTIONS = 4
_IS_DOWN = FailurePolicy(max_share=0.999, enough=10**9)
_UNREACHABLE = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError)
"""What a database that is away raises. A fault that lasts makes the unit fail again elsewhere, and then the run."""


async def work(job_id: str, place: int, secrets_path: str) -> None:
    """Work for ``job_id`` until it ends. ``place`` is this worker's number among the job's."""
    secrets = secrets_from(secrets_path, os.environ)
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(open_database(secrets.database_url, Path(), max_size=_CONNECTIONS))
        units = UnitLedger(database)
        job = await units.job(job_id)
        if job is None:
            return
        section = msgspec.convert(job.settings, WorkerSection)
        database = replace(database, gone_after=timedelta(seconds=section.gone_after))
        settings = section.judge_settings()
        holder = f"worker {place} of {job_id}/{uuid.uuid4().hex[:8]}"
        shares = WorkerShare(
            holder,
            share_of(settings.judge_concurrency, job.workers, place),
            JobBudget(database, job_id),
            OrderNoise(*section.noise, frozen=True),
        )
        judge = await stack.enter_async_context(
            open_judge(
                settings,
                secrets.judge,
                database,
                job.run_id,
                with_steps=section.with_steps,
                lease=job.lease,
                shares=shares,
            )
        )
        longest = settings.judge_timeout * settings.judge_attempts * settings.judge_orders * settings.judge_passes
        reader = WindowReader(database, section.rules())
        worker = Worker(job, holder, units, section, reader, judge, judge.usage, shares.calls)
        await worker.run(database, longest)


def share_of(calls: int, workers: int, place: int) -> int:
    """The part of the calls in flight of worker ``place`` (from 0): together they are ``calls``, each at least one."""
    return max(1, calls // workers + (place < calls % workers))


def more_units(units: int, groups: int, calls: int) -> int:
    """How many units to claim with ``units`` of ``groups`` groups in hand: enough to keep ``calls`` in flight where
    units are small, but only a few at once, since the next ones may be large."""
    return min(_CLAIMED_AT_ONCE, max(_CLAIMED_AT_ONCE - units, calls - groups))


class Worker:
    """One process's work for one job."""

    def __init__(
        self,
        job: Job,
        holder: str,
        units: UnitLedger,
        section: WorkerSection,
        reader: WindowReader,
        judge: Judge,
        usage: JudgeUsage,
        calls: int,
    ) -> None:
        self._job = job
        self._holder = holder
        self._units = units
        self._section = section
        self._reader = reader
        self._judge = judge
        self._usage = usage
        self._calls = calls
        self._groups = 0
        self._told = deepcopy(usage)
        self._at_work: dict[tuple[int, int], asyncio.Task[None]] = {}
        self._tally = FailureTally()
        self._heard = time.monotonic()
        self._is_open = True

    async def run(self, database: Database, longest_call: timedelta) -> None:
        ledger = Ledger(database, Path())
        await self._beat()
        beating = asyncio.create_task(self._keep(), name="heartbeat of the worker")
        try:
            while self._is_open:
                wanted = more_units(len(self._at_work), self._groups, self._calls)
                if wanted > 0 and not beating.done():
                    await self._take(wanted, ledger, longest_call)
                if beating.done():
                    beating.result()
                waiting = [*self._at_work.values(), beating]
                await asyncio.wait(waiting, timeout=_POLL, return_when=asyncio.FIRST_COMPLETED)
        finally:
            beating.cancel()
            left = [*self._at_work.values()]
            for task in left:
                task.cancel()
            await asyncio.gather(beating, *left, return_exceptions=True)

    async def _take(self, wanted: int, ledger: Ledger, longest_call: timedelta) -> None:
        for claim in await self._units.claim(self._job.job_id, self._holder, wanted):
            task = asyncio.create_task(self._do(claim, ledger, longest_call), name=f"unit {claim.number}")
            self._at_work[claim.number, claim.fence] = task
            self._groups += len(claim.unit.planned.groups)
            task.add_done_callback(partial(self._put_down, claim))

    def _put_down(self, claim: UnitClaim, _: asyncio.Task[None]) -> None:
        del self._at_work[claim.number, claim.fence]
        self._groups -= len(claim.unit.planned.groups)

    async def _do(self, claim: UnitClaim, ledger: Ledger, longest_call: timedelta) -> None:
        """One unit; its result, or the fault that ends the job, is committed unless the unit is somebody else's."""
        # No call waits longer than its turn among those of the units in hand.
        turns = 1 + _CLAIMED_AT_ONCE * len(claim.unit.planned.groups)
        try:
            async with asyncio.timeout((longest_call * turns).total_seconds()):
                result = await self._judged(claim, ledger)
        except HindsightError as error:
            result = UnitResult(fault=f"{claim.unit.name}: {redact(str(error))}", exit_code=error.exit_code)
        except TimeoutError:
            said = f"{claim.unit.name} was not judged within {longest_call * turns}; check the judge's endpoint."
            result = UnitResult(fault=said, exit_code=StageGone.exit_code)
        except _UNREACHABLE as error:
            # The lease is not renewed any more: whoever reaches the ledger first does the unit again.
            logger.warning("%s is given up: %s", claim.unit.name, redact(str(error)))
            return
        except Exception as error:
            logger.exception("%s failed", claim.unit.name)
            said = f"{claim.unit.name} failed in a worker ({type(error).__name__}: {redact(str(error))})."
            result = UnitResult(fault=said, exit_code=StageGone.exit_code)
        await self._commit(claim, msgspec.structs.replace(result, usage=self._new_usage()))

    async def _commit(self, claim: UnitClaim, result: UnitResult) -> None:
        try:
            if not await self._units.commit(self._job.job_id, claim, result):
                logger.warning("%s: the commit is refused, another worker has taken the unit", claim.unit.name)
        except _UNREACHABLE as error:
            logger.warning("%s could not be committed: %s", claim.unit.name, redact(str(error)))

    async def _judged(self, claim: UnitClaim, ledger: Ledger) -> UnitResult:
        model, window_id = self._section.model, claim.unit.planned.window_id
        lasting = await ledger.lasting(model, [window_id]) if model is not None else {}
        prepare = as_unused if self._section.is_unused else _as_it_is
        return await judge_unit(claim.unit, self._reader, self._judge_group, lasting, prepare)

    async def _judge_group(self, group: Group) -> JudgedGroup | JudgeFailure:
        """One group. JudgeError if the judge is down: whether it fails on too many is for the driver to say, which
        hears of all workers."""
        judged = await self._judge.judge(group)
        self._tally = self._tally.plus(judged)
        _IS_DOWN.check(self._tally)
        return judged

    def _new_usage(self) -> JudgeUsage:
        before, self._told = self._told, deepcopy(self._usage)
        return self._told.minus(before)

    async def _keep(self) -> None:
        """Heartbeats until the job ends. Units that another has taken are dropped."""
        pause = self._job.lease.total_seconds() / 5
        while self._is_open:
            await asyncio.sleep(pause)
            try:
                async with asyncio.timeout(self._job.lease.total_seconds()):
                    await self._beat()
            except (TimeoutError, *_UNREACHABLE):
                logger.warning("the heartbeat of %s failed", self._holder, exc_info=True)
                if time.monotonic() - self._heard > self._job.lease.total_seconds():
                    self._drop({*self._at_work})

    async def _beat(self) -> None:
        before = {*self._at_work}
        beat = await self._units.beat(self._job.job_id, self._holder, [number for number, _ in before])
        self._heard, self._is_open = time.monotonic(), beat.is_open
        self._drop(before - beat.held)

    def _drop(self, names: set[tuple[int, int]]) -> None:
        for name in names & self._at_work.keys():
            self._at_work[name].cancel()


def _as_it_is(window: Window) -> Window:
    return window
