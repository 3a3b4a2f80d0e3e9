"""The Python counterpart of the game's recorder: agents write what the reader reads, and never wait for the database.

``end_trajectory`` returns when the row is on disk, in the spool. A background task takes rows from the spool and
inserts them in batches, in order; while Postgres is away they stay in the spool, also across a restart of the
agents. The unique ``trajectoryId`` makes a repeated insert harmless, so every row arrives exactly once.

    async with Recorder(database, spool) as recorder:
        async with recorder.start_trajectory("agent-7") as trajectory:
            async with trajectory.step({"agentBalance": 1000, "agentPnL": 0, "openPositions": 0}) as step:
                step.log_llm_call(LLMCall(model="…", system_prompt="…", user_prompt="…", response="BUY"))
                step.complete_step(Action(action_type="BUY", parameters={"ticker": "ACME"}, success=True))
            await trajectory.end_trajectory(final_balance=990, final_pnl=4)
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import asyncpg
import msgspec

from data_bridge.database import Database, explain, is_transient, open_database
from data_bridge.errors import DatabaseError, DatabaseFull
from data_bridge.migrate import owns_game_tables
from data_bridge.private_files import append_private
from data_bridge.recording import TrajectoryRecording
from data_bridge.spool import Spool
from data_bridge.trajectory_rows import TrajectoryRow, as_columns, insert_trajectories

logger = logging.getLogger(__name__)

_BATCH_ROWS = 250
_BATCH_BYTES = 8 * 2**20
_LOOK_FOR_ORPHANS = 5.0
_MIN_PAUSE, _MAX_PAUSE = 0.1, 5.0

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(TrajectoryRow).decode


class Recorder:
    """Records the trajectories of any number of agents in one process, as an async context manager.

    ``database`` is an open database, or a URL that is opened as soon as possible: agents may start before Postgres
    does. Processes may share ``spool_dir``; a running one delivers the rows of a dead one. Rows that are refused for
    their content are kept there in ``rejected.jsonl``, with the reason, for ``traces.py import``; records that are not
    rows (from another version's spool) go to ``undecodable.jsonl``. Neither delays the other rows.
    """

    def __init__(
        self,
        database: Database | str,
        spool_dir: Path,
        *,
        log_calls: bool = True,
        patience: timedelta = timedelta(seconds=30),
    ) -> None:
        """``log_calls`` also writes each model call to ``llm_call_logs``, as the game does.

        ``patience`` is how long the end of the block waits for the database; after that the rows stay in the spool.
        """
        self._source = database
        self._spool = Spool(spool_dir)
        self._log_calls = log_calls
        self._patience = patience
        self._connections = AsyncExitStack()
        self._database: Database | None = None
        self._add_agents: bool | None = None
        self._delivering: asyncio.Task[None] | None = None
        self._progress = asyncio.Condition()
        self._fault: DatabaseError | None = None
        self.delivered = 0
        """Trajectories that this recorder has written to the database."""
        self.rejected = 0
        """Trajectories that were refused; each is in ``rejected.jsonl`` or ``undecodable.jsonl``."""

    def start_trajectory(
        self,
        agent_id: str,
        *,
        started_at: datetime | None = None,
        window_id: str | None = None,
        window_hours: int = 1,
        scenario_id: str | None = None,
        agent_name: str | None = None,
        is_training_data: bool = True,
        is_evaluation: bool = False,
        trajectory_id: str | None = None,
        row_id: str | None = None,
    ) -> TrajectoryRecording:
        """Begin recording. The window defaults to the hour of the start, ``scenario_id`` to the window.

        Ids are generated unless the caller provides them; they must be unique. A trajectory that is recorded again
        with the same ids and times arrives once.
        """
        return TrajectoryRecording(
            self._store,
            agent_id,
            started_at=started_at or datetime.now(UTC),
            window_id=window_id,
            window_hours=window_hours,
            scenario_id=scenario_id,
            agent_name=agent_name,
            is_training_data=is_training_data,
            is_evaluation=is_evaluation,
            trajectory_id=trajectory_id,
            row_id=row_id,
        )

    async def flush(self, timeout: timedelta | None = None) -> None:
        """Return when every trajectory that has ended is in the database.

        DatabaseError if that takes too long, or if the database's disk is full.
        """
        before, target = self._spool.finished, self._spool.appended

        def is_done() -> bool:
            return self._spool.is_empty or before < target <= self._spool.finished

        try:
            async with asyncio.timeout(None if timeout is None else timeout.total_seconds()):
                async with self._progress:
                    await self._progress.wait_for(lambda: is_done() or self._has_stopped() or self._is_full())
        except TimeoutError:
            why = f": {self._fault}" if self._fault is not None else "."
            raise DatabaseError(f"Recorded trajectories still wait in {self._spool.folder}{why}") from self._fault
        if self._fault is not None and not is_done():
            raise self._fault
        if not is_done() and self._delivering is not None:
            await self._delivering  # it has stopped unexpectedly: raises its error

    async def __aenter__(self) -> Self:
        self._spool.adopt()  # before our own first row, so that the order is kept
        self._delivering = asyncio.create_task(self._deliver_for_ever(), name="recorder-delivery")
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.flush(self._patience)
        except DatabaseError as error:
            logger.warning("%s The next recorder on this spool will deliver them.", error)
        finally:
            if self._delivering is not None:
                self._delivering.cancel()
                await asyncio.wait([self._delivering])
            await self._spool.close()
            await self._connections.aclose()

    async def _store(self, row: TrajectoryRow) -> None:
        await self._spool.append(_encode(row))

    def _is_full(self) -> bool:
        return isinstance(self._fault, DatabaseFull)

    def _has_stopped(self) -> bool:
        return self._delivering is None or self._delivering.done()

    async def _deliver_for_ever(self) -> None:
        next_look = 0.0
        try:
            while True:
                if time.monotonic() >= next_look:
                    self._spool.adopt()
                    next_look = time.monotonic() + _LOOK_FOR_ORPHANS
                self._spool.arrived.clear()
                has_delivered = await self._deliver_next()
                await self._tell_progress()
                if not has_delivered:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._spool.arrived.wait(), _LOOK_FOR_ORPHANS)
        finally:
            await self._tell_progress()

    async def _deliver_next(self) -> bool:
        """Whether the next records of the spool were handled; False if there are none, or if the disk fails for now."""
        try:
            taken = self._spool.take(_BATCH_ROWS, _BATCH_BYTES)
            if taken is None:
                return False
            rows = [row for row in map(self._row_of, taken.records) if row is not None]
            if rows:
                await self._deliver(rows)
            self._spool.done(taken)
        except OSError as error:  # not from the database, which _deliver waits for
            logger.error("the spool in %s cannot be used (%s): retrying", self._spool.folder, error)
            return False
        return True

    async def _tell_progress(self) -> None:
        async with self._progress:
            self._progress.notify_all()

    async def _deliver(self, rows: Sequence[TrajectoryRow]) -> None:
        """Returns when each of ``rows`` is in the database or rejected, however long that takes."""
        pause = _MIN_PAUSE
        while True:
            try:
                await self._insert(rows)
            except Exception as error:
                if not _is_of_the_rows(error):
                    self._note_fault(error)
                    await self._tell_progress()
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _MAX_PAUSE)
                    continue
                if len(rows) == 1:
                    self._reject(rows[0], f"{type(error).__name__}: {error}")
                    return
                for row in rows:
                    await self._deliver([row])
                return
            if self._fault is not None:
                logger.info("the database is back; delivering recorded trajectories")
            self._fault = None
            return

    def _row_of(self, record: bytes) -> TrajectoryRow | None:
        """The row in ``record``; None if it is not a row, which is then kept aside."""
        try:
            return _decode(record)
        except msgspec.MsgspecError as error:
            logger.error("a record of the spool is not a trajectory: %s", error)
            self._keep("undecodable.jsonl", {"reason": str(error), "record": record})
            return None

    async def _insert(self, rows: Sequence[TrajectoryRow]) -> None:
        pool = (await self._open()).pool
        async with pool.acquire() as connection:
            if self._add_agents is None:
                self._add_agents = await owns_game_tables(connection)
            foreign = await insert_trajectories(
                connection, rows, add_agents=self._add_agents, with_calls=self._log_calls
            )
        for row in foreign:
            self._reject(row, "another trajectory has this trajectoryId")
        self.delivered += len({row.id for row in rows}) - len(foreign)

    async def _open(self) -> Database:
        if isinstance(self._source, Database):
            return self._source
        if self._database is None:
            opening = open_database(self._source, self._spool.folder, max_size=2)
            self._database = await self._connections.enter_async_context(opening)
        return self._database

    def _note_fault(self, error: Exception) -> None:
        label = self._source.label if isinstance(self._source, Database) else "of the recorder"
        fault = explain(error, label)
        if self._fault is None:
            level = logging.WARNING if is_transient(error) else logging.ERROR
            logger.log(level, "%s Trajectories stay in %s until it works again.", fault, self._spool.folder)
        self._fault = fault

    def _reject(self, row: TrajectoryRow, reason: str) -> None:
        """Keep the row as a trace, which can be imported once the cause is fixed."""
        logger.error("trajectory %s was refused: %s", row.trajectory_id, " ".join(reason.split()))
        self._keep("rejected.jsonl", {"reason": reason, "trajectory": as_columns(row)})

    def _keep(self, file_name: str, line: dict[str, Any]) -> None:
        self.rejected += 1
        with append_private(self._spool.folder / file_name) as file:
            file.write(msgspec.json.encode(line) + b"\n")
            file.flush()
            os.fsync(file.fileno())


def _is_of_the_rows(error: Exception) -> bool:
    """Whether the content of the rows is the cause, so that waiting would not help."""
    if isinstance(error, asyncpg.DataError | asyncpg.IntegrityConstraintViolationError):
        return True
    of_the_database = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
    return not isinstance(error, of_the_database)
