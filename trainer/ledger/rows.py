"""How the ledger's rows are written: checked transitions, and lists of windows and exclusions in one statement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from data_bridge.errors import DatabaseError
from data_bridge.quality import Exclusion
from trainer.ledger.states import WindowState
from trainer.plan.run_plan import PlannedGroup, PlannedWindow, RunPlan


async def move(connection: Any, statement: str, what: str, target: str, *arguments: Any) -> None:
    """Run an UPDATE that names the legal source states; refuse if none of them was found."""
    status: str = await connection.execute(statement, *arguments)
    if not status.endswith(" 1"):
        raise DatabaseError(
            f"The ledger's {what} cannot become {target!r} from the state it is in; "
            "look whether another trainer changed it, then run again."
        )


async def insert_windows(connection: Any, run_id: str, windows: Sequence[PlannedWindow]) -> None:
    await connection.executemany(
        "INSERT INTO hindsight.windows (run_id, window_id, hours, state, groups) VALUES ($1, $2, $3, $4, $5::jsonb)",
        [
            (
                *(run_id, window.window_id, window.hours, WindowState.PLANNED.value),
                msgspec.json.encode(window.groups).decode(),
            )
            for window in windows
        ],
    )


async def exclude_rows(connection: Any, run_id: str, exclusions: Iterable[Exclusion]) -> None:
    """The last word on a trajectory wins: a judge that failed before a restart may have answered after it."""
    rows = list({one.trajectory_id: one for one in exclusions}.values())
    if rows:
        await connection.execute(
            "INSERT INTO hindsight.exclusions (run_id, trajectory_id, agent_id, window_id, reason, detail)"
            " SELECT $1, * FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[])"
            " ON CONFLICT (run_id, trajectory_id) DO UPDATE SET reason = EXCLUDED.reason, detail = EXCLUDED.detail",
            run_id,
            [one.trajectory_id for one in rows],
            [one.agent_id for one in rows],
            [one.window_id for one in rows],
            [one.reason.value for one in rows],
            [one.detail for one in rows],
        )


def decode_planned(text: str) -> tuple[PlannedGroup, ...]:
    return msgspec.json.decode(text, type=tuple[PlannedGroup, ...])


def plan_summary(plan: RunPlan) -> dict[str, Any]:
    return {
        "dropout_rate": plan.dropout_rate,
        "total": plan.total,
        "windows": len(plan.windows),
        "groups": plan.groups,
        "trajectories": plan.trajectories,
        "dropped": plan.dropped,
    }


def as_json(value: Mapping[str, Any]) -> str:
    """jsonb knows no NaN: msgspec writes it as null."""
    return msgspec.json.encode(value).decode()
