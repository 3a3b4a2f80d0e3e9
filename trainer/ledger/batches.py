"""The ledger's batches and checkpoints: prepared, submitted, trained; or failed, or lost.

``batch_trained`` is the one place where a batch becomes durable: the batch, its checkpoint, its exclusions and the
game's own rows are written together or not at all. Every write checks the model's lock in its own transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from data_bridge.database import Database
from data_bridge.game_writes import GroupVerdicts, TrainedBatch, mark_trained, unmark_trained
from data_bridge.quality import Exclusion
from trainer.ledger.batch_records import BatchRecord, GroupRecord
from trainer.ledger.carried import carried_rows, drop, keep, pending
from trainer.ledger.checkpoints import keep_beginning
from trainer.ledger.events import EventKind, tell
from trainer.ledger.model_lock import ModelLock, check_held
from trainer.ledger.observations import observed_since
from trainer.ledger.replays import forget_groups, remember_groups
from trainer.ledger.rewards import running_means, store_history
from trainer.ledger.run_folder import RunFolder
from trainer.ledger.states import LASTING_REASONS, BatchState, WindowState, move, move_windows
from trainer.patterns.faults import Observed
from trainer.types import Checkpoint, JudgeIdentity, StepResult, Verdict

_EXCLUDED_AT_ONCE = 5_000


@dataclass(frozen=True, slots=True)
class TrainedStep:
    """One step of the model, as the ledger has it."""

    step: int
    parent: int
    run_id: str
    metrics: Mapping[str, Any]

    @property
    def played_by(self) -> int | None:
        """The step whose replies it was mostly trained on."""
        found = self.metrics.get("played_by_step")
        return int(found) if isinstance(found, int | float) else None


class BatchLedger:
    """The part of the ledger that makes a step happen once.

    With a ``home``, records of a run are also appended to the run's folder there, for people and notebooks.
    """

    def __init__(self, database: Database, home: Path | None = None) -> None:
        self._pool = database.pool
        self._home = home
        self._folders: dict[str, RunFolder] = {}

    def folder(self, run_id: str) -> RunFolder:
        """The folder of one run. ConfigurationError if it cannot be created."""
        if run_id not in self._folders:
            self._folders[run_id] = RunFolder(self._home, run_id)
        return self._folders[run_id]

    async def trained_batches(self, run_id: str) -> int:
        query = "SELECT count(*) FROM hindsight.batches WHERE run_id = $1 AND state = $2"
        return int(await self._pool.fetchval(query, run_id, BatchState.TRAINED.value))

    async def next_batch_number(self, run_id: str) -> int:
        query = "SELECT coalesce(max(number), 0) + 1 FROM hindsight.batches WHERE run_id = $1"
        return int(await self._pool.fetchval(query, run_id))

    async def step_metrics(self, model: str, last: int) -> list[TrainedStep]:
        """The model's last steps, in order."""
        rows = await self._pool.fetch(
            "SELECT c.step, coalesce(c.parent_step, c.step - 1) AS parent, b.run_id, b.metrics"
            " FROM hindsight.checkpoints c JOIN hindsight.batches b USING (batch_id)"
            " WHERE c.model = $1 ORDER BY c.step DESC LIMIT $2",
            *(model, last),
        )
        return [TrainedStep(**{**row, "metrics": msgspec.json.decode(row["metrics"])}) for row in reversed(rows)]

    async def batch_prepared(self, lock: ModelLock, record: BatchRecord) -> None:
        """Store the batch before any part of it leaves this process."""
        gone = {exclusion.trajectory_id for exclusion in record.exclusions}
        async with self._pool.acquire() as connection, connection.transaction():
            await check_held(connection, lock)
            await connection.execute(
                "INSERT INTO hindsight.batches (batch_id, run_id, model, number, policy_step, state, groups,"
                " exclusions, trainable_tokens, metrics, credit_rule, settings)"
                " VALUES ($1, $2, $3, $4, $5, $6, $7::jsonb, $8::jsonb, $9, $10::jsonb, $11::jsonb,"
                " (SELECT settings FROM hindsight.runs WHERE run_id = $2))",
                *(record.batch_id, record.run_id, record.model, record.number, record.policy_step),
                *(BatchState.PREPARED.value, as_json(record.groups), as_json(record.exclusions)),
                *(record.trainable_tokens, as_json(record.known_metrics)),
                None if record.history is None else as_json(record.history.rule),
            )
            await connection.executemany(
                "INSERT INTO hindsight.batch_trajectories (batch_id, trajectory_id, model, agent_id, window_id,"
                " group_id, verdict_key, score, has_tokens, use, role)"
                " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
                [
                    (
                        *(record.batch_id, verdict.trajectory_id, record.model, agent_id, group.window_id),
                        *(group.group_id, group.verdict_key, verdict.score, verdict.trajectory_id not in gone),
                        *(group.use, role),
                    )
                    for group, agent_id, role, verdict in record.members()
                ],
            )
            if record.history is not None:
                await store_history(connection, record.batch_id, record.history.members)

    async def batch_submitted(self, lock: ModelLock, batch_id: str, receipt: str) -> None:
        """Store the backend's newest receipt, before its job is followed."""
        async with self._pool.acquire() as connection, connection.transaction():
            await check_held(connection, lock)
            changes = "job_id = $4, submitted_at = coalesce(submitted_at, now())"
            await move(connection, batch_id, BatchState.SUBMITTED, changes, receipt)

    async def batch_trained(
        self, lock: ModelLock, record: BatchRecord, result: StepResult, metrics: Mapping[str, Any]
    ) -> None:
        """The batch is durable: its state, checkpoint, exclusions and the game's own rows, all or nothing."""
        point = result.checkpoint
        async with self._pool.acquire() as connection, connection.transaction():
            await check_held(connection, lock)
            changes = "step = $4, metrics = $5::jsonb, finished_at = now()"
            await move(connection, record.batch_id, BatchState.TRAINED, changes, point.step, as_json(metrics))
            await connection.execute(
                "INSERT INTO hindsight.checkpoints"
                " (model, step, run_id, batch_id, base_model, backend, location, parent_step)"
                " VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
                *(point.model, point.step, record.run_id, record.batch_id),
                *(point.base_model, point.backend, point.location, result.parent_step),
            )
            await self._replace_exclusions(connection, record)
            await move_windows(connection, record.run_id, record.window_ids, WindowState.TRAINED)
            await remember_groups(connection, record, point.step)
            await write_game_rows(connection, record, result)
            await tell(
                *(connection, EventKind.STEP, {**_numbers(metrics), "step": point.step}),
                model=point.model,
                run_id=record.run_id,
            )
        self.folder(record.run_id).exclusions(_of_fresh(record))
        self.folder(record.run_id).append("metrics.jsonl", [{"batch": record.batch_id, **metrics}])

    async def _replace_exclusions(self, connection: Any, record: BatchRecord) -> None:
        """Delete exclusions from before a restart (judge failure, no tokens) of trajectories that are now members.

        A row that was found at fault stays excluded, whatever its backend reports. What a replay leaves out is said in
        the batch alone: the row was used before.
        """
        await connection.execute(
            "DELETE FROM hindsight.exclusions WHERE run_id = $1 AND trajectory_id = ANY($2::text[])"
            " AND reason <> ALL($3::text[])",
            *(record.run_id, [one.trajectory_id for group in record.fresh for one in group.verdicts]),
            [reason.value for reason in LASTING_REASONS],
        )
        await exclude_rows(connection, record.run_id, _of_fresh(record))

    async def batch_failed(self, lock: ModelLock, batch_id: str, error: str) -> None:
        """The backend does not have the batch: its trajectories are free for another one."""
        async with self._pool.acquire() as connection, connection.transaction():
            await check_held(connection, lock)
            await move(connection, batch_id, BatchState.FAILED, "error = $4, finished_at = now()", error)
            await connection.execute(
                "UPDATE hindsight.batch_trajectories SET released = true WHERE batch_id = $1", batch_id
            )

    async def steps_lost(self, lock: ModelLock, after_step: int) -> list[int]:
        """Checkpoints after ``after_step`` are gone: forget them, and free the trajectories of their batches."""
        async with self._pool.acquire() as connection, connection.transaction():
            await check_held(connection, lock)
            rows = await connection.fetch(
                "DELETE FROM hindsight.checkpoints WHERE model = $1 AND step > $2 RETURNING step, run_id, batch_id",
                *(lock.model, after_step),
            )
            for row in rows:
                await move(connection, row["batch_id"], BatchState.LOST, "error = 'its checkpoint was lost'")
                freed = await connection.fetch(
                    "UPDATE hindsight.batch_trajectories SET released = true WHERE batch_id = $1"
                    " RETURNING window_id, trajectory_id, use",
                    row["batch_id"],
                )
                freed = [one for one in freed if one["use"] == 1]  # what was replayed is in its first batch still
                await forget_groups(connection, row["batch_id"])
                await connection.execute(
                    "UPDATE hindsight.windows SET state = $3 WHERE run_id = $1 AND window_id = ANY($2::text[])",
                    *(row["run_id"], list({one["window_id"] for one in freed}), WindowState.PLANNED.value),
                )
                await unmark_trained(connection, row["batch_id"], [one["trajectory_id"] for one in freed])
        return sorted(row["step"] for row in rows)

    async def running_means(self, model: str) -> tuple[dict[str, float], float]:
        """The mean score of each agent or role with a baseline, and of all, over what was trained last."""
        return await running_means(self._pool, model)

    async def observed_since(self, model: str, step: int) -> list[Observed]:
        """What went wrong in what was trained from ``step`` on: the material of the patterns that weigh a step."""
        return await observed_since(self._pool, model, step)

    async def unfinished_batch(self, model: str) -> BatchRecord | None:
        """The batch that a dead process left prepared or submitted, if any."""
        found = await self._pool.fetchval(
            "SELECT to_jsonb(b) || jsonb_build_object('known_metrics', metrics) FROM hindsight.batches b"
            " WHERE model = $1 AND state = ANY($2::text[])",
            *(model, [BatchState.PREPARED.value, BatchState.SUBMITTED.value]),
        )
        return None if found is None else msgspec.json.decode(found, type=BatchRecord)

    async def trained_ids(
        self, model: str, window_ids: Iterable[str], trajectory_ids: Iterable[str] = ()
    ) -> dict[str, tuple[str, str]]:
        """Trajectories of these windows, and of these names, that a batch of ``model`` holds, whatever the game's own
        flag says, or that wait for its next pass. A row may be in another window now than when it was trained.

        Each with its window and agent: the agent's place in the window is taken.
        """
        window_ids = list(window_ids)
        rows = await self._pool.fetch(
            "SELECT trajectory_id, window_id, agent_id FROM hindsight.batch_trajectories"
            " WHERE model = $1 AND (window_id = ANY($2::text[]) OR trajectory_id = ANY($3::text[])) AND NOT released",
            *(model, window_ids, list(trajectory_ids)),
        )
        held = {row["trajectory_id"]: (row["window_id"], row["agent_id"]) for row in rows}
        return await carried_rows(self._pool, model, window_ids) | held

    async def carried(self, model: str) -> list[GroupRecord]:
        """The groups that an earlier pass left over and that no batch holds, the oldest first."""
        return await pending(self._pool, model)

    async def carry(self, model: str, run_id: str, records: Sequence[GroupRecord]) -> None:
        """Keep the groups that a pass leaves over, all or none."""
        async with self._pool.acquire() as connection, connection.transaction():
            await keep(connection, model, run_id, records)

    async def drop_carried(self, model: str, trajectory_ids: Iterable[str]) -> None:
        """Groups with these rows wait no longer: they cannot be trained."""
        await drop(self._pool, model, trajectory_ids)

    async def begun_from(self, point: Checkpoint, name: str) -> None:
        """``point`` was taken over from checkpoint ``name`` of another lineage."""
        await keep_beginning(self._pool, point, name)

    async def newest_checkpoint(self, model: str) -> Checkpoint | None:
        row = await self._pool.fetchrow(
            "SELECT model, step, base_model, backend, location FROM hindsight.checkpoints"
            " WHERE model = $1 ORDER BY step DESC LIMIT 1",
            model,
        )
        return None if row is None else Checkpoint(**row)


async def exclude_rows(connection: Any, run_id: str, exclusions: Iterable[Exclusion]) -> None:
    """The latest reason replaces an earlier one: a judge that failed before a restart may have answered after it."""
    left = iter(exclusions)
    while some := list(islice(left, _EXCLUDED_AT_ONCE)):
        rows = list({one.trajectory_id: one for one in some}.values())
        await connection.execute(
            "INSERT INTO hindsight.exclusions (run_id, trajectory_id, agent_id, window_id, reason, detail,"
            " content_hash) SELECT $1, * FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[],"
            " $7::text[]) ON CONFLICT (run_id, trajectory_id) DO UPDATE"
            " SET reason = EXCLUDED.reason, detail = EXCLUDED.detail, content_hash = EXCLUDED.content_hash",
            run_id,
            [one.trajectory_id for one in rows],
            [one.agent_id for one in rows],
            [one.window_id for one in rows],
            [one.reason.value for one in rows],
            [one.detail for one in rows],
            [one.content_hash for one in rows],
        )


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def as_json(value: Any) -> str:
    """jsonb has no NaN: msgspec writes it as null."""
    return msgspec.json.encode(value).decode()


def _of_fresh(record: BatchRecord) -> list[Exclusion]:
    """The exclusions of members that are not replayed."""
    fresh = {one.trajectory_id for group in record.fresh for one in group.verdicts}
    return [one for one in record.exclusions if one.trajectory_id in fresh]


def game_verdicts(
    group_id: str, verdicts: Sequence[Verdict], identity: JudgeIdentity, verdict_key: str
) -> GroupVerdicts:
    """The verdicts of a group as stored in the game's columns."""
    return GroupVerdicts(
        group_id,
        identity.judge,
        f"{identity.rubric}@{identity.rubric_version}",
        {
            "rubric": identity.rubric,
            "rubricVersion": identity.rubric_version,
            "promptVersion": identity.prompt_version,
            "isLLM": identity.is_llm,
            "verdictKey": verdict_key,
            "uncertainty": {verdict.trajectory_id: verdict.uncertainty for verdict in verdicts},
        },
        [verdict.trajectory_id for verdict in verdicts],
        [verdict.score for verdict in verdicts],
        [verdict.explanation for verdict in verdicts],
    )


async def write_game_rows(connection: Any, record: BatchRecord, result: StepResult) -> None:
    """Write what the game reads about ``record``, in the transaction that makes it durable."""
    times = await connection.fetchrow(
        "SELECT prepared_at, coalesce(submitted_at, prepared_at) AS started_at FROM hindsight.batches"
        " WHERE batch_id = $1",
        record.batch_id,
    )
    point = result.checkpoint
    groups = [game_verdicts(one.group_id, one.verdicts, one.identity, one.verdict_key) for one in record.fresh]
    loss = result.metrics.get("loss")
    await mark_trained(
        connection, TrainedBatch(record.batch_id, point.base_model, point.name, loss, **times, groups=groups)
    )
