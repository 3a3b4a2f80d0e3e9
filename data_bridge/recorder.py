"""The Python twin of the game's recorder: agents write what the reader reads, and never wait on the database.

``end_trajectory`` returns when the row is on disk, in the spool. A task of the recorder's takes rows from the
spool and inserts them in batches, in order; while Postgres is away they wait there, also across a restart of the
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
from data_bridge.errors import DatabaseError
from data_bridge.migrate import owns_game_tables
from data_bridge.recording import TrajectoryRecording
from data_bridge.spool import Spool
from data_bridge.trajectory_rows import TrajectoryRow, as_columns, insert_trajectories

logger = logging.getLogger(__name__)

_BATCH_ROWS = 250
_BATCH_BYTES = 8 * 2**20
_LOOK_FOR_ORPHANS = 5.0
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(TrajectoryRow).decode


class Recorder:
    """Records the trajectories of any number of agents of one process, as an async context manager.

    ``database`` is an open one, or a URL that is opened when it can be: agents may start before Postgres does.
    Processes may share ``spool_dir``; whoever lives delivers what a dead one left. Rows that are refused for what
    they contain are kept in ``rejected.jsonl`` there, with the reason, for ``traces.py import``; bytes that are no
    row (of another version's spool) in ``undecodable.jsonl``. Neither holds up the others.
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

        ``patience`` is how long leaving the block waits for the database; after that the rows stay in the spool.
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
        self._fault: Exception | None = None
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
        """Begin recording; the window is the hour of the start unless given. ``scenario_id`` defaults to it.

        Ids are made unless the caller has some of its own, which must be unique: with the same ids and times the
        same trajectory can be recorded again and arrives once.
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
        """Return when everything that has ended by now is in the database; DatabaseError if that takes too long."""
        before, target = self._spool.finished, self._spool.appended

        def is_done() -> bool:
            return self._spool.is_empty or before < target <= self._spool.finished

        try:
            async with asyncio.timeout(None if timeout is None else timeout.total_seconds()):
                async with self._progress:
                    await self._progress.wait_for(lambda: is_done() or self._has_stopped())
        except TimeoutError:
            why = f": {self._fault}" if self._fault is not None else "."
            raise DatabaseError(f"Recorded trajectories still wait in {self._spool.folder}{why}") from self._fault
        if not is_done() and self._delivering is not None:
            await self._delivering  # it has stopped before its time: raises why

    async def __aenter__(self) -> Self:
        self._spool.adopt()  # before our own first row, so that the order is kept
        self._delivering = asyncio.create_task(self._deliver_for_ever(), name="recorder-delivery")
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.flush(self._patience)
        except DatabaseError as error:
            logger.warning("%s They are delivered by the next recorder on this spool.", error)
        finally:
            if self._delivering is not None:
                self._delivering.cancel()
                await asyncio.wait([self._delivering])
            await self._spool.close()
            await self._connections.aclose()

    async def _store(self, row: TrajectoryRow) -> None:
        await self._spool.append(_encode(row))

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
        """Whether the next records of the spool are dealt with; if not, there are none, or its disk fails for now."""
        try:
            taken = self._spool.take(_BATCH_ROWS, _BATCH_BYTES)
            if taken is None:
                return False
            rows = [row for row in map(self._row_of, taken.records) if row is not None]
            if rows:
                await self._deliver(rows)
            self._spool.done(taken)
        except OSError as error:  # not of the database, which _deliver waits for
            logger.error("the spool in %s cannot be used (%s): trying again", self._spool.folder, error)
            return False
        return True

    async def _tell_progress(self) -> None:
        async with self._progress:
            self._progress.notify_all()

    async def _deliver(self, rows: Sequence[TrajectoryRow]) -> None:
        """Returns when each of ``rows`` is in the database or rejected, however long that takes."""
        pause = _SHORTEST_PAUSE
        while True:
            try:
                await self._insert(rows)
            except Exception as error:
                if not _is_of_the_rows(error):
                    self._note_fault(error)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE)
                    continue
                if len(rows) == 1:
                    self._reject(rows[0], f"{type(error).__name__}: {error}")
                    return
                for row in rows:
                    await self._deliver([row])
                return
            if self._fault is not None:
                logger.info("the database is back; recorded trajectories are delivered")
            self._fault = None
            return

    def _row_of(self, record: bytes) -> TrajectoryRow | None:
        """None for a record that is no row; it is kept aside."""
        try:
            return _decode(record)
        except msgspec.MsgspecError as error:
            logger.error("a record of the spool is no trajectory: %s", error)
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
            logger.log(level, "%s Trajectories wait in %s until it works again.", fault, self._spool.folder)
        self._fault = fault

    def _reject(self, row: TrajectoryRow, reason: str) -> None:
        """Keep the row as a trace, which can be imported once the reason is gone."""
        logger.error("trajectory %s was refused: %s", row.trajectory_id, " ".join(reason.split()))
        self._keep("rejected.jsonl", {"reason": reason, "trajectory": as_columns(row)})

    def _keep(self, file_name: str, line: dict[str, Any]) -> None:
        self.rejected += 1
        with (self._spool.folder / file_name).open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")
            file.flush()
            os.fsync(file.fileno())


def _is_of_the_rows(error: Exception) -> bool:
    """Whether it is what the rows hold that failed, so that waiting would not help, whoever found it."""
    if isinstance(error, asyncpg.DataError | asyncpg.IntegrityConstraintViolationError):
        return True
    of_the_database = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
    return not isinstance(error, of_the_database)
