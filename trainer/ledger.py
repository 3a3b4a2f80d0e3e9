"""The trainer's memory in Postgres: runs, planned windows, batches, exclusions, checkpoints.

Every method is one transaction. The states and what may follow what are in ``ledger_states``; an UPDATE that finds
another state than the tables allow is refused. ``batch_trained`` is the one place where a batch becomes durable:
the batch, its checkpoint, its exclusions and the game's own rows are written together or not at all.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from data_bridge.database import Database
from data_bridge.quality import Exclusion
from trainer.batch_record import BatchRecord, decode_exclusions, decode_groups, encode_exclusions, encode_groups
from trainer.game_rows import mark_trained
from trainer.ledger_rows import as_json, decode_planned, exclude_rows, insert_windows, move, plan_summary
from trainer.ledger_states import (
    BATCH_TRANSITIONS,
    FINAL_REASONS,
    RUN_TRANSITIONS,
    WINDOW_TRANSITIONS,
    BatchState,
    RunState,
    WindowState,
    sources_of,
)
from trainer.model_lock import ModelLock, check_held
from trainer.run_plan import PlannedWindow, RunPlan
from trainer.types import Checkpoint, StepResult


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run that can be taken up, or was."""

    run_id: str
    state: RunState
    dropout_rate: float
    summary: Mapping[str, Any]


class Ledger:
    """Reads and writes schema ``hindsight``. Stateless: the database is the only memory."""

    def __init__(self, database: Database) -> None:
        self._pool = database.pool

    # Runs

    async def find_unfinished_run(self, model: str, fingerprint: str) -> StoredRun | None:
        """The newest run of ``model`` that did not end well, if it was made with the same ``fingerprint``."""
        row = await self._pool.fetchrow(
            "SELECT run_id, state, fingerprint, plan::text, summary::text FROM hindsight.runs"
            " WHERE model = $1 ORDER BY started_at DESC, run_id DESC LIMIT 1",
            model,
        )
        if row is None or row["state"] == RunState.DONE or row["fingerprint"] != fingerprint:
            return None
        plan = json.loads(row["plan"])
        if not plan:
            return None  # it died before it had planned anything
        return StoredRun(row["run_id"], RunState(row["state"]), plan["dropout_rate"], json.loads(row["summary"]))

    async def start_run(
        self,
        run_id: str,
        *,
        model: str,
        base_model: str,
        backend: str,
        fingerprint: str,
        settings: Mapping[str, Any],
        plan: RunPlan,
    ) -> None:
        """A new run with everything it is going to do, in one transaction."""
        async with self._pool.acquire() as connection, connection.transaction():
            await connection.execute(
                "INSERT INTO hindsight.runs (run_id, model, base_model, backend, state, fingerprint, settings, plan,"
                " host, pid) VALUES ($1, $2, $3, $4, $5, $6, $7::jsonb, $8::jsonb, $9, $10)",
                *(run_id, model, base_model, backend, RunState.RUNNING.value, fingerprint),
                *(as_json(settings), as_json(plan_summary(plan)), socket.gethostname(), os.getpid()),
            )
            await insert_windows(connection, run_id, plan.windows)
            await exclude_rows(connection, run_id, plan.excluded)

    async def take_up(self, run_id: str, added: RunPlan) -> None:
        """Go on with an unfinished run, with the windows that came since."""
        async with self._pool.acquire() as connection, connection.transaction():
            await move(
                connection,
                "UPDATE hindsight.runs SET state = $3, attempts = attempts + 1, host = $4, pid = $5, error = NULL,"
                " finished_at = NULL WHERE run_id = $1 AND state = ANY($2::text[])",
                f"run {run_id}",
                RunState.RUNNING.value,
                *(run_id, sources_of(RunState.RUNNING, RUN_TRANSITIONS), RunState.RUNNING.value),
                *(socket.gethostname(), os.getpid()),
            )
            await insert_windows(connection, run_id, added.windows)
            await exclude_rows(connection, run_id, added.excluded)

    async def extend(self, run_id: str, added: RunPlan) -> None:
        """More windows for a run that is under way."""
        async with self._pool.acquire() as connection, connection.transaction():
            await insert_windows(connection, run_id, added.windows)
            await exclude_rows(connection, run_id, added.excluded)

    async def finish_run(
        self, run_id: str, state: RunState, *, error: str | None = None, summary: Mapping[str, Any] | None = None
    ) -> None:
        async with self._pool.acquire() as connection, connection.transaction():
            await move(
                connection,
                "UPDATE hindsight.runs SET state = $3, error = $4, summary = summary || $5::jsonb, finished_at = now()"
                " WHERE run_id = $1 AND state = ANY($2::text[])",
                f"run {run_id}",
                state.value,
                *(run_id, sources_of(state, RUN_TRANSITIONS), state.value, error, as_json(summary or {})),
            )

    async def note(self, run_id: str, facts: Mapping[str, Any]) -> None:
        """Add ``facts`` to the run's summary while it is under way."""
        await self._pool.execute(
            "UPDATE hindsight.runs SET summary = summary || $2::jsonb WHERE run_id = $1", run_id, as_json(facts)
        )

    async def open_windows(self, run_id: str) -> tuple[PlannedWindow, ...]:
        """The run's windows in order with the groups that are neither in a durable batch nor left out for good."""
        rows = await self._pool.fetch(
            "SELECT window_id, hours, groups::text FROM hindsight.windows WHERE run_id = $1 ORDER BY window_id", run_id
        )
        done = await self._pool.fetch(
            "SELECT trajectory_id FROM hindsight.batch_trajectories JOIN hindsight.batches USING (batch_id)"
            " WHERE run_id = $1 AND state = $2"
            " UNION SELECT trajectory_id FROM hindsight.exclusions WHERE run_id = $1 AND reason = ANY($3::text[])",
            *(run_id, BatchState.TRAINED.value, [reason.value for reason in FINAL_REASONS]),
        )
        settled = {row["trajectory_id"] for row in done}
        windows = [
            PlannedWindow(
                row["window_id"],
                row["hours"],
                tuple(group for group in decode_planned(row["groups"]) if not settled.issuperset(group.trajectory_ids)),
            )
            for row in rows
        ]
        return tuple(window for window in windows if window.groups)

    async def trained_batches(self, run_id: str) -> int:
        query = "SELECT count(*) FROM hindsight.batches WHERE run_id = $1 AND state = $2"
        return int(await self._pool.fetchval(query, run_id, BatchState.TRAINED.value))

    async def known_windows(self, run_id: str) -> set[str]:
        rows = await self._pool.fetch("SELECT window_id FROM hindsight.windows WHERE run_id = $1", run_id)
        return {row["window_id"] for row in rows}

    # Windows and exclusions

    async def window_judged(self, run_id: str, window_id: str, *, has_signal: bool) -> None:
        """All groups of the window have a verdict or a reason; ``has_signal`` if any of them can be trained."""
        state = WindowState.JUDGED if has_signal else WindowState.LEFT_OUT
        await self._pool.execute(
            "UPDATE hindsight.windows SET state = $3 WHERE run_id = $1 AND window_id = $2 AND state = ANY($4::text[])",
            *(run_id, window_id, state.value, sources_of(state, WINDOW_TRANSITIONS)),
        )

    async def exclude(self, run_id: str, exclusions: Iterable[Exclusion]) -> None:
        async with self._pool.acquire() as connection, connection.transaction():
            await exclude_rows(connection, run_id, exclusions)

    async def exclusion_counts(self, run_id: str) -> dict[str, int]:
        rows = await self._pool.fetch(
            "SELECT reason, count(*) AS n FROM hindsight.exclusions WHERE run_id = $1 GROUP BY 1 ORDER BY 2 DESC, 1",
            run_id,
        )
        return {row["reason"]: row["n"] for row in rows}

    # Batches

    async def next_batch_number(self, run_id: str) -> int:
        query = "SELECT coalesce(max(number), 0) + 1 FROM hindsight.batches WHERE run_id = $1"
        return int(await self._pool.fetchval(query, run_id))

    async def batch_prepared(self, lock: ModelLock, record: BatchRecord) -> None:
        """Store the batch before anything of it leaves this process."""
        gone = {exclusion.trajectory_id for exclusion in record.exclusions}
        async with self._pool.acquire() as connection, connection.transaction():
            await check_held(connection, lock)
            await connection.execute(
                "INSERT INTO hindsight.batches (batch_id, run_id, model, number, policy_step, state, groups,"
                " exclusions, trainable_tokens) VALUES ($1, $2, $3, $4, $5, $6, $7::jsonb, $8::jsonb, $9)",
                *(record.batch_id, record.run_id, record.model, record.number, record.policy_step),
                *(BatchState.PREPARED.value, encode_groups(record.groups), encode_exclusions(record.exclusions)),
                record.trainable_tokens,
            )
            await connection.executemany(
                "INSERT INTO hindsight.batch_trajectories (batch_id, trajectory_id, model, agent_id, window_id,"
                " group_id, verdict_key, score, has_tokens) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
                [
                    (
                        *(record.batch_id, verdict.trajectory_id, record.model, agent_id, group.window_id),
                        *(group.group_id, group.verdict_key, verdict.score, verdict.trajectory_id not in gone),
                    )
                    for group, agent_id, verdict in record.members()
                ],
            )

    async def batch_submitted(self, lock: ModelLock, batch_id: str, receipt: str) -> None:
        """Keep the backend's newest receipt, before its job is followed."""
        async with self._pool.acquire() as connection, connection.transaction():
            await check_held(connection, lock)
            await move(
                connection,
                "UPDATE hindsight.batches SET state = $3, job_id = $4, submitted_at = coalesce(submitted_at, now())"
                " WHERE batch_id = $1 AND state = ANY($2::text[])",
                f"batch {batch_id}",
                BatchState.SUBMITTED.value,
                *(batch_id, sources_of(BatchState.SUBMITTED, BATCH_TRANSITIONS), BatchState.SUBMITTED.value, receipt),
            )

    async def batch_trained(
        self, lock: ModelLock, record: BatchRecord, result: StepResult, metrics: Mapping[str, Any]
    ) -> None:
        """The batch is durable: its state, checkpoint, exclusions and the game's own rows, all or nothing."""
        point = result.checkpoint
        async with self._pool.acquire() as connection, connection.transaction():
            await check_held(connection, lock)
            await move(
                connection,
                "UPDATE hindsight.batches SET state = $3, step = $4, metrics = $5::jsonb, finished_at = now()"
                " WHERE batch_id = $1 AND state = ANY($2::text[])",
                f"batch {record.batch_id}",
                BatchState.TRAINED.value,
                *(record.batch_id, sources_of(BatchState.TRAINED, BATCH_TRANSITIONS), BatchState.TRAINED.value),
                *(point.step, as_json(metrics)),
            )
            await connection.execute(
                "INSERT INTO hindsight.checkpoints (model, step, run_id, batch_id, base_model, backend, location)"
                " VALUES ($1, $2, $3, $4, $5, $6, $7)",
                *(point.model, point.step, record.run_id, record.batch_id),
                *(point.base_model, point.backend, point.location),
            )
            await exclude_rows(connection, record.run_id, record.exclusions)
            await connection.execute(
                "UPDATE hindsight.windows SET state = $3 WHERE run_id = $1 AND window_id = ANY($2::text[])"
                " AND state = ANY($4::text[])",
                *(record.run_id, record.window_ids, WindowState.TRAINED.value),
                sources_of(WindowState.TRAINED, WINDOW_TRANSITIONS),
            )
            await mark_trained(connection, record, result)

    async def batch_failed(self, lock: ModelLock, batch_id: str, error: str) -> None:
        """The backend does not have the batch: its trajectories are free for another one."""
        async with self._pool.acquire() as connection, connection.transaction():
            await check_held(connection, lock)
            await move(
                connection,
                "UPDATE hindsight.batches SET state = $3, error = $4, finished_at = now()"
                " WHERE batch_id = $1 AND state = ANY($2::text[])",
                f"batch {batch_id}",
                BatchState.FAILED.value,
                *(batch_id, sources_of(BatchState.FAILED, BATCH_TRANSITIONS), BatchState.FAILED.value, error),
            )
            await connection.execute(
                "UPDATE hindsight.batch_trajectories SET released = true WHERE batch_id = $1", batch_id
            )

    async def unfinished_batch(self, model: str) -> BatchRecord | None:
        """The batch that a dead process left prepared or submitted, if there is one."""
        row = await self._pool.fetchrow(
            "SELECT batch_id, run_id, model, number, policy_step, job_id, groups::text, exclusions::text,"
            " trainable_tokens FROM hindsight.batches WHERE model = $1 AND state = ANY($2::text[])",
            *(model, [BatchState.PREPARED.value, BatchState.SUBMITTED.value]),
        )
        if row is None:
            return None
        return BatchRecord(
            row["batch_id"],
            row["run_id"],
            row["model"],
            row["number"],
            row["policy_step"],
            decode_groups(row["groups"]),
            decode_exclusions(row["exclusions"]),
            row["trainable_tokens"],
            row["job_id"],
        )

    async def trained_ids(self, model: str, window_ids: Iterable[str]) -> set[str]:
        """Trajectories of these windows that a batch of ``model`` holds, whatever the game's own flag says."""
        rows = await self._pool.fetch(
            "SELECT trajectory_id FROM hindsight.batch_trajectories"
            " WHERE model = $1 AND window_id = ANY($2::text[]) AND NOT released",
            *(model, list(window_ids)),
        )
        return {row["trajectory_id"] for row in rows}

    # Checkpoints

    async def newest_checkpoint(self, model: str) -> Checkpoint | None:
        row = await self._pool.fetchrow(
            "SELECT model, step, base_model, backend, location FROM hindsight.checkpoints"
            " WHERE model = $1 ORDER BY step DESC LIMIT 1",
            model,
        )
        return None if row is None else Checkpoint(**row)
