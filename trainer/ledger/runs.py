"""The trainer's state in Postgres: runs, planned windows, exclusions; and, in ``ledger.batches``, batches.

Every method is one transaction. The states and their transitions are in ``ledger.states``; an UPDATE from any
other state is refused.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import accumulate, groupby
from typing import Any

import msgspec

from data_bridge.authorship import Served
from data_bridge.database import Database
from data_bridge.long_list import LongList
from data_bridge.quality import Exclusion, Reason
from trainer.ledger.batches import BatchLedger, as_json, exclude_rows
from trainer.ledger.carried import carried_by
from trainer.ledger.events import EventKind, tell
from trainer.ledger.observations import observe
from trainer.ledger.releases import served_steps
from trainer.ledger.simulation import MAY_READ
from trainer.ledger.states import (
    DECIDED_REASONS,
    FINAL_REASONS,
    LASTING_REASONS,
    NO_SIGNAL,
    BatchState,
    RunState,
    WindowState,
    move,
    move_windows,
)
from trainer.patterns.faults import Observed
from trainer.progress import Progress
from trainer.types import Checkpoint, PlannedGroup, PlannedWindow, RunPlan

_GROUPS_AT_ONCE = 2_000
"""Groups of a stored plan that are read at once; a window is read whole."""


class PlayedDay(msgspec.Struct, frozen=True, omit_defaults=True):
    """The results of one day of the closed loop. For a day played before a restart, only the training is known."""

    day: int
    first_window: str = msgspec.field(name="from")
    last_window: str = msgspec.field(name="until")
    played_with: str
    steps: int
    step: int
    reward: float | None
    windows_played: int | None = None
    valid_share: float | None = None
    mean_pnl: float | None = None


class LoopState(msgspec.Struct, frozen=True):
    """How far the closed loop is, so that a resumed run continues there."""

    first_window: str
    days: tuple[PlayedDay, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run that can be or was resumed."""

    run_id: str
    state: RunState
    dropout_rate: float
    loop: LoopState | None
    """None for a run on the game's log."""


def new_run_id() -> str:
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:6]}"


async def has_ledger(database: Database) -> bool:
    """Whether there are tables of ours that this role may read: a dry run makes none."""
    return bool(await database.pool.fetchval(MAY_READ, "evaluations"))


class Ledger(BatchLedger):
    """Reads and writes schema ``hindsight``. Stateless: the database is the only memory."""

    async def served(self, model: str) -> tuple[Served, ...]:
        """What the model's name without a step meant when."""
        return await served_steps(self._pool, model)

    # Runs

    async def has_run(self, run_id: str) -> bool:
        return bool(await self._pool.fetchval("SELECT 1 FROM hindsight.runs WHERE run_id = $1", run_id))

    async def find_unfinished_run(self, model: str, fingerprint: str) -> StoredRun | None:
        """The newest run of ``model`` that is not done, if it has the same ``fingerprint``."""
        row = await self._pool.fetchrow(
            "SELECT run_id, state, fingerprint, plan::text, summary::text FROM hindsight.runs"
            " WHERE model = $1 ORDER BY started_at DESC, run_id DESC LIMIT 1",
            model,
        )
        if row is None or row["state"] == RunState.DONE or row["fingerprint"] != fingerprint:
            return None
        plan = json.loads(row["plan"])
        if not plan:
            return None  # it died before its plan was stored
        summary = json.loads(row["summary"])
        loop = msgspec.convert(summary, LoopState) if "first_window" in summary else None
        return StoredRun(row["run_id"], RunState(row["state"]), plan["dropout_rate"], loop)

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
        """Store a new run with its whole plan, in one transaction."""
        folder = self.folder(run_id)
        async with self._pool.acquire() as connection, connection.transaction():
            await connection.execute(
                "INSERT INTO hindsight.runs (run_id, model, base_model, backend, state, fingerprint, settings, plan,"
                " host, pid) VALUES ($1, $2, $3, $4, $5, $6, $7::jsonb, $8::jsonb, $9, $10)",
                *(run_id, model, base_model, backend, RunState.RUNNING.value, fingerprint),
                *(as_json(settings), as_json(plan_summary(plan)), socket.gethostname(), os.getpid()),
            )
            await add_plan(connection, run_id, plan)
            await tell(connection, EventKind.RUN, {"state": RunState.RUNNING.value}, model=model, run_id=run_id)
        await asyncio.to_thread(folder.exclusions, plan.excluded)

    async def resume_run(self, run_id: str, settings: Mapping[str, Any], added: RunPlan) -> None:
        """Resume an unfinished run with the current ``settings`` and the windows that were added since."""
        async with self._pool.acquire() as connection, connection.transaction():
            await move(
                *(connection, run_id, RunState.RUNNING),
                "attempts = attempts + 1, host = $4, pid = $5, error = NULL, finished_at = NULL, settings = $6::jsonb",
                *(socket.gethostname(), os.getpid(), as_json(settings)),
            )
            await add_plan(connection, run_id, added)
            await self._tell_state(connection, run_id, {"state": RunState.RUNNING.value, "resumed": True})
        await asyncio.to_thread(self.folder(run_id).exclusions, added.excluded)

    async def extend(self, run_id: str, added: RunPlan) -> None:
        """Add windows to a run in progress."""
        async with self._pool.acquire() as connection, connection.transaction():
            await add_plan(connection, run_id, added)
        await asyncio.to_thread(self.folder(run_id).exclusions, added.excluded)

    async def finish_run(
        self, run_id: str, state: RunState, *, error: str | None = None, summary: Mapping[str, Any] | None = None
    ) -> None:
        async with self._pool.acquire() as connection, connection.transaction():
            changes = "error = $4, summary = summary || $5::jsonb, finished_at = now()"
            await move(connection, run_id, state, changes, error, as_json(summary or {}))
            await self._tell_state(connection, run_id, {"state": state.value, "error": error})

    async def _tell_state(self, connection: Any, run_id: str, data: Mapping[str, Any]) -> None:
        model = await connection.fetchval("SELECT model FROM hindsight.runs WHERE run_id = $1", run_id)
        await tell(connection, EventKind.RUN, data, model=model, run_id=run_id)

    async def tell(self, run_id: str, kind: EventKind, data: Mapping[str, Any]) -> None:
        """Tell those who watch something about a run."""
        model = await self._pool.fetchval("SELECT model FROM hindsight.runs WHERE run_id = $1", run_id)
        await tell(self._pool, kind, data, model=model, run_id=run_id)

    async def keep_progress(self, run_id: str, progress: Mapping[str, Any], *, timeout: timedelta) -> None:
        """How far the run is, for those who watch it from elsewhere. TimeoutError if that takes too long."""
        async with (
            asyncio.timeout(timeout.total_seconds()),
            self._pool.acquire() as connection,
            connection.transaction(),
        ):
            model = await connection.fetchval(
                "UPDATE hindsight.runs SET progress = $2::jsonb, progress_at = now() WHERE run_id = $1 RETURNING model",
                *(run_id, as_json(progress)),
            )
            await tell(connection, EventKind.PROGRESS, progress, model=model, run_id=run_id)

    async def note(self, run_id: str, loop: LoopState) -> None:
        """Store how far the closed loop is, while the run is in progress."""
        update = "UPDATE hindsight.runs SET summary = summary || $2::jsonb WHERE run_id = $1"
        await self._pool.execute(update, run_id, as_json(loop))

    async def open_windows(self, run_id: str) -> LongList[PlannedWindow]:
        """The run's windows in order with the groups that are neither in a durable batch nor permanently left out."""
        found = LongList(PlannedWindow)
        async for window, settled in self._planned_windows(run_id):
            groups = tuple(group for group in window.groups if not _is_closed(group, settled))
            if groups:
                found.append(replace(window, groups=groups))
        return found

    async def progress_of(self, run_id: str) -> Progress:
        """The progress of earlier attempts of the run. Open groups are counted when they are processed."""
        finished, fates = 0, Counter[frozenset[Reason | None]]()
        async for window, settled in self._planned_windows(run_id):
            closed = [group for group in window.groups if _is_closed(group, settled)]
            finished += len(closed) == len(window.groups)
            fates.update(frozenset(settled[name] for name in group.trajectory_ids) for group in closed)
        (trained,) = await self._pool.fetch(
            "SELECT count(*) AS steps, coalesce(sum((metrics ->> 'seconds')::float8), 0) AS seconds,"
            " coalesce(sum(coalesce((metrics ->> 'trainable_tokens')::float8, trainable_tokens)), 0) AS tokens,"
            " coalesce(sum((metrics ->> 'pattern_groups')::float8), 0) AS pattern_groups"
            " FROM hindsight.batches WHERE run_id = $1 AND state = $2",
            *(run_id, BatchState.TRAINED.value),
        )
        # The same run pays for the evaluation, but for windows that it did not plan.
        paid = await self._pool.fetchval(
            "SELECT coalesce(sum(cost_usd), 0) FROM hindsight.judge_calls"
            " JOIN hindsight.windows USING (run_id, window_id) WHERE run_id = $1",
            run_id,
        )
        newest = await self._pool.fetchrow(
            "SELECT model, step, base_model, backend, location FROM hindsight.checkpoints WHERE run_id = $1"
            " ORDER BY step DESC LIMIT 1",
            run_id,
        )
        return Progress(
            newest=None if newest is None else Checkpoint(**newest),
            windows=finished,
            windows_read=finished,
            groups=fates.total(),
            groups_judged=fates.total() - fates[frozenset({Reason.NO_COMPARABLE_PEER})],
            groups_without_signal=sum(n for fate, n in fates.items() if not fate.isdisjoint(NO_SIGNAL)),
            cost_usd=float(paid),
            steps=trained["steps"],
            trainable_tokens=int(trained["tokens"]),
            train_seconds=trained["seconds"],
            pattern_groups=int(trained["pattern_groups"]),
        )

    async def _planned_windows(self, run_id: str) -> AsyncIterator[tuple[PlannedWindow, Mapping[str, Reason | None]]]:
        """The run's windows in order, each with what is settled of it; some at a time, as a plan can be large."""
        sizes = await self._pool.fetch(
            "SELECT window_id, jsonb_array_length(groups) AS groups FROM hindsight.windows WHERE run_id = $1"
            " ORDER BY window_id",
            run_id,
        )
        handed_on, passed = await carried_by(self._pool, run_id), await self._passed(run_id)
        before = accumulate((row["groups"] for row in sizes), initial=0)
        for _, some in groupby(zip(sizes, before, strict=False), lambda one: one[1] // _GROUPS_AT_ONCE):
            names = [row["window_id"] for row, _ in some]
            rows = await self._pool.fetch(
                "SELECT window_id, hours, groups::text FROM hindsight.windows"
                " WHERE run_id = $1 AND window_id = ANY($2::text[]) ORDER BY window_id",
                *(run_id, names),
            )
            planned = [msgspec.convert({**row, "groups": json.loads(row["groups"])}, PlannedWindow) for row in rows]
            settled = dict.fromkeys(handed_on) | await self._settled(run_id, names)
            if passed is not None:
                _reopen(planned, settled, passed)
            for window in planned:
                yield window, settled

    async def _settled(self, run_id: str, window_ids: Sequence[str]) -> dict[str, Reason | None]:
        """Trajectories of these windows that the run has trained (None), or left out permanently, with the reason."""
        rows = await self._pool.fetch(
            "SELECT trajectory_id, reason FROM hindsight.exclusions WHERE run_id = $1 AND reason = ANY($3::text[])"
            " AND window_id = ANY($4::text[])"
            " UNION ALL SELECT trajectory_id, NULL FROM hindsight.batch_trajectories"
            " JOIN hindsight.batches USING (batch_id) WHERE run_id = $1 AND state = $2 AND window_id = ANY($4::text[])",
            *(run_id, BatchState.TRAINED.value, [reason.value for reason in FINAL_REASONS], window_ids),
        )
        return {row["trajectory_id"]: row["reason"] and Reason(row["reason"]) for row in rows}

    async def _passed(self, run_id: str) -> set[str] | None:
        """The groups without signal whose places belong to a trained step; None for a run without replay."""
        replay = "SELECT coalesce(settings ->> 'replay', 'off') FROM hindsight.runs WHERE run_id = $1"
        if await self._pool.fetchval(replay, run_id) in (None, "off"):
            return None
        rows = await self._pool.fetch(
            "SELECT jsonb_array_elements_text(metrics -> 'without_signal') AS group_id FROM hindsight.batches"
            " WHERE run_id = $1 AND state = $2 AND jsonb_typeof(metrics -> 'without_signal') = 'array'",
            *(run_id, BatchState.TRAINED.value),
        )
        return {row["group_id"] for row in rows}

    async def known_windows(self, run_id: str) -> set[str]:
        rows = await self._pool.fetch("SELECT window_id FROM hindsight.windows WHERE run_id = $1", run_id)
        return {row["window_id"] for row in rows}

    # Windows and exclusions

    async def window_judged(self, run_id: str, window_id: str, *, has_signal: bool) -> None:
        """All groups of the window have a verdict or a reason; ``has_signal`` if any of them can be trained."""
        state = WindowState.JUDGED if has_signal else WindowState.LEFT_OUT
        await move_windows(self._pool, run_id, [window_id], state)

    async def exclude(self, run_id: str, exclusions: Iterable[Exclusion]) -> None:
        excluded = list(exclusions)
        if excluded:
            async with self._pool.acquire() as connection, connection.transaction():
                await exclude_rows(connection, run_id, excluded)
            self.folder(run_id).exclusions(excluded)

    async def observe(self, run_id: str, rows: Iterable[Observed]) -> None:
        """Store what went wrong in these trajectories: the material of error patterns."""
        await observe(self._pool, run_id, rows)

    async def decided_against(self, model: str, window_ids: Iterable[str]) -> dict[str, Reason]:
        """Trajectories of these windows that an earlier run of ``model`` left out permanently, and why.

        Only for windows that the run reached: a window that it never reached (``--max-steps``) is planned again.
        """
        rows = await self._pool.fetch(
            "SELECT e.trajectory_id, e.reason FROM hindsight.exclusions e"
            " JOIN hindsight.runs r USING (run_id) JOIN hindsight.windows w USING (run_id, window_id)"
            " WHERE r.model = $1 AND r.state = $2 AND w.state <> $3 AND e.reason = ANY($4::text[])"
            " AND e.window_id = ANY($5::text[])",
            *(model, RunState.DONE.value, WindowState.PLANNED.value),
            *([reason.value for reason in DECIDED_REASONS], list(window_ids)),
        )
        return {row["trajectory_id"]: Reason(row["reason"]) for row in rows}

    async def lasting(self, model: str, window_ids: Iterable[str]) -> dict[tuple[str, str], Exclusion]:
        """Rows of these windows that a run of ``model`` found at fault themselves, by id and content hash.

        Of any run: the rows would fail an interrupted one again, too.
        """
        rows = await self._pool.fetch(
            # As JSON: a ledger that is not migrated yet, which a dry run may read, has no hash.
            "SELECT e.trajectory_id, e.agent_id, e.window_id, e.reason, e.detail, to_jsonb(e) ->> 'content_hash'"
            " AS content_hash FROM hindsight.exclusions e JOIN hindsight.runs r USING (run_id)"
            " WHERE r.model = $1 AND e.reason = ANY($2::text[]) AND e.window_id = ANY($3::text[])"
            " ORDER BY r.started_at DESC",
            *(model, [reason.value for reason in LASTING_REASONS], list(window_ids)),
        )
        found = (Exclusion(**{**row, "reason": Reason(row["reason"])}) for row in rows)
        return {(one.trajectory_id, one.content_hash): one for one in found}

    async def exclusion_counts(self, run_id: str) -> dict[str, int]:
        rows = await self._pool.fetch(
            "SELECT reason, count(*) AS n FROM hindsight.exclusions WHERE run_id = $1 GROUP BY 1 ORDER BY 2 DESC, 1",
            run_id,
        )
        return {row["reason"]: row["n"] for row in rows}


def _is_closed(group: PlannedGroup, settled: Mapping[str, Reason | None]) -> bool:
    return all(name in settled for name in group.trajectory_ids)


def _reopen(planned: Iterable[PlannedWindow], settled: dict[str, Reason | None], passed: Set[str]) -> None:
    """With replay, a group without signal has left a place in a step: it is finished when that step is.

    So a run that was killed finds the same places empty. Its verdict is stored, and costs nothing again.
    """
    for group in (group for window in planned for group in window.groups if group.group_id not in passed):
        if all(settled.get(name) in NO_SIGNAL for name in group.trajectory_ids):
            for name in group.trajectory_ids:
                del settled[name]


async def add_plan(connection: Any, run_id: str, plan: RunPlan) -> None:
    """Store the windows of ``plan``, and what it leaves out, as it is read: a large plan is never in memory."""
    insert = (
        "INSERT INTO hindsight.windows (run_id, window_id, hours, state, groups) VALUES ($1, $2, $3, $4, $5::jsonb)"
    )
    for window in plan.windows:  # one statement each: all of a large plan would exceed the time that one may take
        groups = as_json(window.groups)
        await connection.execute(insert, run_id, window.window_id, window.hours, WindowState.PLANNED.value, groups)
    await exclude_rows(connection, run_id, plan.excluded)


def plan_summary(plan: RunPlan) -> dict[str, Any]:
    return {
        "dropout_rate": plan.dropout_rate,
        "total": plan.total,
        "windows": len(plan.windows),
        "groups": plan.groups,
        "trajectories": plan.trajectories,
        "dropped": plan.dropped,
    }
