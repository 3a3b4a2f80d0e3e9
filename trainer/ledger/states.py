"""The states of runs, batches and windows, and the transitions between them, as data.

The ledger checks these tables before it writes; nothing else decides which transitions are legal.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar

from data_bridge.errors import DatabaseError
from data_bridge.quality import Reason


class RunState(StrEnum):
    RUNNING = "running"
    DONE = "done"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


class BatchState(StrEnum):
    PREPARED = "prepared"
    """Its composition is stored; nothing has been sent."""
    SUBMITTED = "submitted"
    """The backend's receipt is stored; the backend may have the batch."""
    TRAINED = "trained"
    """Its checkpoint is durable and all records are written."""
    FAILED = "failed"
    """The backend never received it, or reports that it failed; its trajectories are free again."""
    LOST = "lost"
    """It was trained, but its checkpoint was damaged or deleted since; its trajectories are free again."""


class WindowState(StrEnum):
    PLANNED = "planned"
    JUDGED = "judged"
    TRAINED = "trained"
    LEFT_OUT = "left_out"


RUN_TRANSITIONS: Mapping[RunState, frozenset[RunState]] = {
    # running → running: resumed after its process died without recording an end
    RunState.RUNNING: frozenset({RunState.RUNNING, RunState.DONE, RunState.INTERRUPTED, RunState.FAILED}),
    RunState.INTERRUPTED: frozenset({RunState.RUNNING}),
    RunState.FAILED: frozenset({RunState.RUNNING}),
    RunState.DONE: frozenset(),
}

BATCH_TRANSITIONS: Mapping[BatchState, frozenset[BatchState]] = {
    # prepared → trained: a backend in this process, which gives no receipt
    BatchState.PREPARED: frozenset({BatchState.SUBMITTED, BatchState.TRAINED, BatchState.FAILED}),
    # submitted → submitted: a newer receipt
    BatchState.SUBMITTED: frozenset({BatchState.SUBMITTED, BatchState.TRAINED, BatchState.FAILED}),
    BatchState.TRAINED: frozenset({BatchState.LOST}),
    BatchState.FAILED: frozenset(),
    BatchState.LOST: frozenset(),
}

WINDOW_TRANSITIONS: Mapping[WindowState, frozenset[WindowState]] = {
    # the same state again: a window whose later groups are judged or trained after a restart
    WindowState.PLANNED: frozenset({WindowState.JUDGED, WindowState.TRAINED, WindowState.LEFT_OUT}),
    WindowState.JUDGED: frozenset({WindowState.JUDGED, WindowState.TRAINED, WindowState.LEFT_OUT}),
    WindowState.LEFT_OUT: frozenset({WindowState.JUDGED, WindowState.TRAINED, WindowState.LEFT_OUT}),
    # trained → planned: its checkpoint was lost
    WindowState.TRAINED: frozenset({WindowState.TRAINED, WindowState.PLANNED}),
}

LASTING_REASONS = (Reason.ROW_FAULT,)
"""Reasons that lie in a row's content: no run of the model takes the row again while its content is the same. Not what
a judge refused: another judge may answer, and refusals are remembered with the judge's calls."""

NO_SIGNAL = (Reason.NO_SPREAD, Reason.WITHIN_NOISE, Reason.EQUAL_DECISIONS)
"""Reasons of a whole group that teaches nothing: by its verdicts, or because they could only be equal."""

FINAL_REASONS = (*NO_SIGNAL, Reason.NOT_SELECTED, Reason.NO_COMPARABLE_PEER, *LASTING_REASONS)
"""Reasons that leave a judged group out permanently: judging it again would give the same result. By contrast, a judge
may be reachable again, and untrainable tokens may become trainable when the settings change."""

DECIDED_REASONS = (Reason.DROPOUT, Reason.NOT_SELECTED, *NO_SIGNAL)
"""Reasons in a finished run that are decisions, not temporary faults; the model's next run keeps them. Otherwise
it would pay for what dropout saved, and judge again what had no signal."""

State = TypeVar("State", bound=StrEnum)


def sources_of(target: State, transitions: Mapping[State, frozenset[State]]) -> list[str]:
    """The states from which ``target`` may be reached, for the WHERE of an UPDATE."""
    return sorted(source.value for source, targets in transitions.items() if target in targets)


async def move(connection: Any, name: str, target: RunState | BatchState, changes: str, *values: Any) -> None:
    """Move a run or batch to ``target`` with some ``changes``, whose ``values`` start at $4.

    DatabaseError unless its state allows the transition.
    """
    if isinstance(target, RunState):
        kind, update, sources = "run", "UPDATE hindsight.runs", sources_of(target, RUN_TRANSITIONS)
    else:
        kind, update, sources = "batch", "UPDATE hindsight.batches", sources_of(target, BATCH_TRANSITIONS)
    status: str = await connection.execute(
        f"{update} SET state = $3, {changes} WHERE {kind}_id = $1 AND state = ANY($2::text[])",
        *(name, sources, target.value, *values),
    )
    if not status.endswith(" 1"):
        raise DatabaseError(
            f"The ledger's {kind} {name} cannot become {target.value!r} from the state it is in; "
            "check whether another trainer changed it, then run again."
        )


async def move_windows(connection: Any, run_id: str, window_ids: list[str], target: WindowState) -> None:
    """Move those of the run's windows that may become ``target``; the others keep their state."""
    await connection.execute(
        "UPDATE hindsight.windows SET state = $3 WHERE run_id = $1 AND window_id = ANY($2::text[])"
        " AND state = ANY($4::text[])",
        *(run_id, window_ids, target.value, sources_of(target, WINDOW_TRANSITIONS)),
    )


class PromotionState(StrEnum):
    CANARY = "canary"
    """A share of the agents use it; all others use the row that is serving."""
    SERVING = "serving"
    """All agents use it, except a canary's."""
    SUPERSEDED = "superseded"
    """A later promotion replaced it."""
    ROLLED_BACK = "rolled_back"
    """Withdrawn from the agents; the reason is stored."""


class PromotionKind(StrEnum):
    PROMOTION = "promotion"
    ROLLBACK = "rollback"


PROMOTION_TRANSITIONS: Mapping[PromotionState, frozenset[PromotionState]] = {
    PromotionState.CANARY: frozenset({PromotionState.SERVING, PromotionState.SUPERSEDED, PromotionState.ROLLED_BACK}),
    PromotionState.SERVING: frozenset({PromotionState.SUPERSEDED, PromotionState.ROLLED_BACK}),
    PromotionState.SUPERSEDED: frozenset(),
    PromotionState.ROLLED_BACK: frozenset(),
}
