"""Units done by workers: the driver hands them out through the ledger, and waits for each with a deadline.

What places the workers is a child process (``ray_cluster``); when it ends, it is started again. A job that no worker
has been heard of for ``gone_after``, or one of whose units kills every worker that takes it, ends with StageGone, which
names the unit: nothing is lost, and the same command resumes.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import sys
import time
import uuid
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice
from pathlib import Path

import msgspec

from data_bridge.database import Database
from data_bridge.errors import BackendError, ConfigurationError, HindsightError, JudgeError, StageGone
from data_bridge.private_files import make_private
from trainer.config.sections import JudgeSecrets, JudgeSettings, WorkerSettings
from trainer.ledger.units import DoneUnit, Job, Unit, UnitLedger
from trainer.progress import JudgeUsage
from trainer.workers.sections import WorkerSection, secrets_file

logger = logging.getLogger(__name__)

MAX_CLAIMS = 6
"""Of one unit: whoever takes it dies, so that another attempt would die too."""
ENDING = 5.0
"""Seconds for Ray's processes to end before they are killed."""
_POLL = 0.1
_LOOK_EVERY = 1.0
_PAUSE_BEFORE_RESTART = 2.0
_ADDED_AT_ONCE = 200


def refuse_unusable(settings: WorkerSettings, judge: JudgeSettings) -> None:
    """ConfigurationError for settings that cannot work, before anything is started."""
    if settings.ray_address is not None and settings.workers == 0:
        raise ConfigurationError("--ray-address needs --workers: say how many are to be placed on the cluster.")
    if settings.workers > judge.judge_concurrency:
        raise ConfigurationError(
            f"--workers {settings.workers} share --judge-concurrency {judge.judge_concurrency} calls: raise it, so "
            "that each has one."
        )
    if settings.workers and importlib.util.find_spec("ray") is None:
        raise ConfigurationError("--workers needs Ray: `pip install hindsight-grpo[scale]`, or leave --workers out.")


@dataclass(slots=True)
class Workers:
    """The workers of one job, and the units they were given. Created by ``open_workers``."""

    job_id: str
    count: int
    placed_by: tuple[tuple[str, ...], Path]
    """The arguments of the process that places them, and where it writes what happens."""
    _ledger: UnitLedger
    gone_after: timedelta
    """Without a heartbeat of any worker, the start of Ray included: then the run ends."""
    usage: JudgeUsage = field(default_factory=JudgeUsage)
    added: int = 0
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _waiting: dict[int, asyncio.Future[DoneUnit]] = field(default_factory=dict)

    def start(self) -> None:
        """Let the workers begin; they end with the job."""
        arguments, log = self.placed_by
        tasks = [
            asyncio.create_task(_placed(arguments, log), name="place the workers"),
            asyncio.create_task(self._deliver(), name="look for results"),
            asyncio.create_task(self._watch(log), name="watch the workers"),
        ]
        self._tasks = [*tasks, asyncio.create_task(self._pass_on(tasks), name="pass on what ends the workers")]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def add(self, units: Sequence[Unit]) -> None:
        """Hand out more units; they are numbered in this order."""
        for first in range(0, len(units), _ADDED_AT_ONCE):
            some = units[first : first + _ADDED_AT_ONCE]
            await self._ledger.add(self.job_id, self.added, some)
            self.added += len(some)

    async def result(self, number: int) -> DoneUnit:
        """What the unit came to. The error that ended it, if that makes all further work pointless; StageGone if
        nobody is left who could do it."""
        waiting = self._waiting.setdefault(number, asyncio.get_running_loop().create_future())
        try:
            done = await waiting
        finally:
            self._waiting.pop(number, None)
        self.usage.add(done.result.usage)
        if done.result.fault is not None:
            kinds = {JudgeError.exit_code: JudgeError, ConfigurationError.exit_code: ConfigurationError}
            raise kinds.get(done.result.exit_code, BackendError)(done.result.fault)
        return done

    async def in_order(self, units: Iterable[Unit]) -> AsyncGenerator[DoneUnit, None]:
        """Every unit's result, in the order of ``units``, of which a bounded number is handed out ahead."""
        source, ahead = iter(units), deque[int]()
        while True:
            more = list(islice(source, self._ahead - len(ahead)))
            ahead.extend(range(self.added, self.added + len(more)))
            await self.add(more)
            if not ahead:
                return
            yield await self.result(ahead.popleft())

    @property
    def _ahead(self) -> int:
        return 16 * self.count

    async def _deliver(self) -> None:
        """Look for results, for ever; run beside those who wait for them."""
        while True:
            await asyncio.sleep(_POLL)
            if self._waiting:
                for done in await self._ledger.done(self.job_id, list(self._waiting)):
                    waiting = self._waiting.get(done.number)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(done)

    async def _watch(self, log: Path) -> None:
        """Raise StageGone when the job can no longer be done; run beside those who wait for it."""
        heard, before, silence = time.monotonic(), 0, self.gone_after.total_seconds()
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            standing = await self._ledger.standing(self.job_id)
            if standing.alive or standing.done > before or standing.first_open is None:
                heard, before = time.monotonic(), standing.done
            if standing.taken_most > MAX_CLAIMS or time.monotonic() - heard > silence:
                assert standing.first_open is not None
                unit = await self._ledger.unit(self.job_id, standing.first_open)
                why = (
                    f"a unit was taken up {standing.taken_most} times and its worker died each time"
                    if standing.taken_most > MAX_CLAIMS
                    else f"no worker was heard of for {silence:g} s"
                )
                raise StageGone(f"Judging waits for {unit.name}, and {why}: see {log}; the same command resumes.")

    async def _pass_on(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        """None of ``tasks`` ends by itself: what ends one of them ends every wait, also those that come later."""
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        error = next(iter(done)).exception() or StageGone("The workers' supervisor ended; the same command resumes.")
        while True:
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(error)
            await asyncio.sleep(_POLL)


@asynccontextmanager
async def open_workers(
    settings: WorkerSettings,
    section: WorkerSection,
    database: Database,
    secrets: JudgeSecrets,
    *,
    run_id: str,
    home: Path,
) -> AsyncIterator[Workers]:
    """Workers for one job, which ends with the block; ``start`` lets them begin.

    What a dead driver of the same run has left is closed first.
    """
    judge = section.judge_settings()
    refuse_unusable(settings, judge)
    ledger, job_id = UnitLedger(database), f"{run_id}-{uuid.uuid4().hex[:6]}"
    await ledger.close_jobs_of(run_id)
    job = Job(job_id, run_id, msgspec.to_builtins(section), settings.worker_lease, settings.workers, judge.max_cost)
    await ledger.open_job(job)
    folder = home / "workers"
    make_private(folder)
    log = folder / f"{job_id}.log"
    with secrets_file(folder, job_id, database.url, secrets) as private:
        path = str(settings.worker_env or private.absolute())
        arguments = (job_id, str(settings.workers), path, settings.ray_address or "")
        workers = Workers(job_id, settings.workers, (arguments, log), ledger, database.gone_after)
        try:
            yield workers
        finally:
            await workers.stop()
            with suppress(HindsightError, OSError):  # an unreachable ledger must not hide what ended the block
                await ledger.close_job(job_id)


async def _placed(arguments: tuple[str, ...], log: Path) -> None:
    """Keep the process running that places the workers. It ends when its standard input closes."""
    root = str(Path(__file__).parents[2])
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
    while True:
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "trainer.workers.ray_cluster", *arguments),
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=environ,
                start_new_session=True,
            )
        try:
            code = await process.wait()
        except asyncio.CancelledError:
            await _ended(process)
            raise
        logger.warning("the process that places the workers ended (%s) and is started again; see %s", code, log)
        await asyncio.sleep(_PAUSE_BEFORE_RESTART)


async def _ended(process: asyncio.subprocess.Process) -> None:
    """Ask the process to end, and end it if it does not: Ray's own processes go with it."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), ENDING)
    except TimeoutError:
        process.kill()
        await process.wait()
