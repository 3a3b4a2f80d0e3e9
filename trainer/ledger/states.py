"""The states of runs, batches and windows, and the transitions between them, as data.

The ledger asks these tables before it writes; nothing else decides what may follow what.
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
    """Its composition is stored; nothing has left this process."""
    SUBMITTED = "submitted"
    """The backend's receipt is stored; the backend may have it."""
    TRAINED = "trained"
    """Its checkpoint is durable and the books are written."""
    FAILED = "failed"
    """The backend never took it, or says that it failed; its trajectories are free again."""
    LOST = "lost"
    """It was trained, but its checkpoint was damaged or deleted since; its trajectories are free again."""


class WindowState(StrEnum):
    PLANNED = "planned"
    JUDGED = "judged"
    TRAINED = "trained"
    LEFT_OUT = "left_out"


RUN_TRANSITIONS: Mapping[RunState, frozenset[RunState]] = {
    # running → running: taken up after its process died without a word
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

FINAL_REASONS = (Reason.NO_SPREAD, Reason.NOT_SELECTED, Reason.NO_COMPARABLE_PEER)
"""Of a judged group that is left out: asking again would say the same. A judge that was away may come back, and
tokens that could not be trained may be when the settings change."""

DECIDED_REASONS = (Reason.DROPOUT, Reason.NOT_SELECTED, Reason.NO_SPREAD)
"""Of a run that is done: not a fault that may pass but a decision, which the model's next run does not undo. What
dropout saved would be paid for after all, and a verdict that taught nothing would be asked for again."""

State = TypeVar("State", bound=StrEnum)


def sources_of(target: State, transitions: Mapping[State, frozenset[State]]) -> list[str]:
    """The states from which ``target`` may be reached: what an UPDATE names in its WHERE."""
    return sorted(source.value for source, targets in transitions.items() if target in targets)


async def move(connection: Any, name: str, target: RunState | BatchState, changes: str, *values: Any) -> None:
    """Put a run or batch into ``target`` with some ``changes``, whose ``values`` are $4 and on.

    DatabaseError unless it is in one of the states from which it may go there.
    """
    if isinstance(target, RunState):
        kind, table, sources = "run", "runs", sources_of(target, RUN_TRANSITIONS)
    else:
        kind, table, sources = "batch", "batches", sources_of(target, BATCH_TRANSITIONS)
    status: str = await connection.execute(
        f"UPDATE hindsight.{table} SET state = $3, {changes} WHERE {kind}_id = $1 AND state = ANY($2::text[])",
        *(name, sources, target.value, *values),
    )
    if not status.endswith(" 1"):
        raise DatabaseError(
            f"The ledger's {kind} {name} cannot become {target.value!r} from the state it is in; "
            "look whether another trainer changed it, then run again."
        )


async def move_windows(connection: Any, run_id: str, window_ids: list[str], target: WindowState) -> None:
    """Those of the run's windows that may become ``target``; the others stay what they are."""
    await connection.execute(
        "UPDATE hindsight.windows SET state = $3 WHERE run_id = $1 AND window_id = ANY($2::text[])"
        " AND state = ANY($4::text[])",
        *(run_id, window_ids, target.value, sources_of(target, WINDOW_TRANSITIONS)),
    )


class PromotionState(StrEnum):
    CANARY = "canary"
    """A share of the agents use it; everybody else uses the row that is serving."""
    SERVING = "serving"
    """All agents use it, or all but a canary's."""
    SUPERSEDED = "superseded"
    """A later promotion took its place."""
    ROLLED_BACK = "rolled_back"
    """Taken away from the agents for a reason, which is kept."""


class PromotionKind(StrEnum):
    PROMOTION = "promotion"
    ROLLBACK = "rollback"


PROMOTION_TRANSITIONS: Mapping[PromotionState, frozenset[PromotionState]] = {
    PromotionState.CANARY: frozenset({PromotionState.SERVING, PromotionState.SUPERSEDED, PromotionState.ROLLED_BACK}),
    PromotionState.SERVING: frozenset({PromotionState.SUPERSEDED, PromotionState.ROLLED_BACK}),
    PromotionState.SUPERSEDED: frozenset(),
    PromotionState.ROLLED_BACK: frozenset(),
}
