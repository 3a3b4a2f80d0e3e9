"""A finished trajectory as a row of the game's tables, and how a batch of rows is inserted exactly once.

In between, the row is stored on disk, so it is one flat struct that does not depend on the recording process. Its ids
and its JSON have the form that the game's own JavaScript produces.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from data_bridge.migrate import Connection


class TrajectoryRow(msgspec.Struct, frozen=True):
    """The columns of ``trajectories`` that a recorder fills, in the order of ``_INSERT``. Times are aware UTC."""

    id: str
    trajectory_id: str
    agent_id: str
    start_time: datetime
    end_time: datetime
    duration_ms: int
    window_id: str
    window_hours: int
    episode_id: str | None
    scenario_id: str | None
    steps_json: str
    reward_components_json: str
    metrics_json: str
    metadata_json: str
    total_reward: float
    episode_length: int
    final_status: str
    final_balance: float | None
    final_pnl: float | None
    trades_executed: int
    posts_created: int
    is_training_data: bool
    is_evaluation: bool
    recorded_at: datetime
    agent_name: str | None = None
    """Not a column: the agent's name for the ``"User"`` table, if we created it."""


def _columns(listed: str) -> list[list[str]]:
    """Name and type of each column, from a list as in ``CREATE TABLE``."""
    return [column.split() for column in listed.split(",")]


_COLUMNS = _columns("""
id text, trajectoryId text, agentId text, startTime timestamp, endTime timestamp, durationMs int,
windowId text, windowHours int, episodeId text, scenarioId text,
stepsJson text, rewardComponentsJson text, metricsJson text, metadataJson text,
totalReward float8, episodeLength int, finalStatus text, finalBalance float8, finalPnL float8,
tradesExecuted int, postsCreated int, isTrainingData bool, isEvaluation bool, updatedAt timestamp, createdAt timestamp
""")
_CALL_COLUMNS = _columns("""
id text, trajectoryId text, stepId text, callId text, timestamp timestamp, latencyMs int,
model text, purpose text, actionType text, systemPrompt text, userPrompt text, messagesJson text,
response text, reasoning text, temperature float8, maxTokens int, topP float8,
promptTokens int, completionTokens int, totalTokens int, metadata text, createdAt timestamp
""")


def _insert(table: str, columns: Sequence[Sequence[str]], conflict: str) -> str:
    names = ", ".join(f'"{name}"' for name, _ in columns)
    arrays = ", ".join(f"${place}::{kind}[]" for place, (_, kind) in enumerate(columns, 1))
    return (
        f'INSERT INTO "{table}" ({names}) SELECT * FROM unnest({arrays}) '
        f'ON CONFLICT ("{conflict}") DO NOTHING RETURNING "trajectoryId"'
    )


_MAX_INT = 2**31 - 1  # of an int column
_EPOCH_MS = 1_704_067_200_000  # 2024-01-01
_SEQUENCES = 1 << 12

_INSERT = _insert("trajectories", _COLUMNS, "trajectoryId")
_INSERT_CALLS = _insert("llm_call_logs", _CALL_COLUMNS, "callId")
_INSERT_AGENTS = """
INSERT INTO "User" ("id", "username", "displayName")
SELECT DISTINCT ON (id) id, name, name FROM unnest($1::text[], $2::text[]) AS agents(id, name)
ON CONFLICT ("id") DO NOTHING
"""
_SAME_ROWS = 'SELECT "trajectoryId" FROM "trajectories" WHERE "trajectoryId" = ANY($1) AND "id" = ANY($2)'


async def insert_trajectories(
    connection: Connection, rows: Sequence[TrajectoryRow], *, add_agents: bool, with_calls: bool
) -> list[TrajectoryRow]:
    """Insert ``rows`` in one transaction; rows that already exist are not changed.

    Returns the rows whose ``trajectoryId`` belongs to a different row: these can never be written.
    """
    rows, foreign = _first_of_each_id(rows)
    async with connection.transaction():
        if add_agents:
            await connection.execute(_INSERT_AGENTS, [r.agent_id for r in rows], [r.agent_name for r in rows])
        values = [_values(row) for row in rows]
        inserted = {record[0] for record in await connection.fetch(_INSERT, *zip(*values, strict=True))}
        calls = [call for row in rows if with_calls and row.trajectory_id in inserted for call in _calls(row)]
        if calls:
            await connection.execute(_INSERT_CALLS, *zip(*calls, strict=True))
        missing = [row for row in rows if row.trajectory_id not in inserted]
        if not missing:
            return foreign
        ours = await connection.fetch(_SAME_ROWS, [row.trajectory_id for row in missing], [row.id for row in missing])
        known = {record[0] for record in ours}
        return [row for row in missing if row.trajectory_id not in known] + foreign


def _first_of_each_id(rows: Sequence[TrajectoryRow]) -> tuple[list[TrajectoryRow], list[TrajectoryRow]]:
    """The first row of each trajectory id, and different rows with the same id. Repetitions are dropped."""
    first = dict[str, TrajectoryRow]()
    claimants = dict[str, TrajectoryRow]()
    for row in rows:
        if first.setdefault(row.trajectory_id, row).id != row.id:
            claimants.setdefault(row.id, row)
    return list(first.values()), list(claimants.values())


def metrics_of(
    kinds: Sequence[str], steps: int, errors: int, balance: float | None, pnl: float | None
) -> dict[str, Any]:
    """``metricsJson`` as the game's recorder counts it, from the names of the actions; what is not known is None."""
    return {
        "episodeLength": steps,
        "finalStatus": "completed_with_errors" if errors else "completed",
        "finalBalance": balance,
        "finalPnL": pnl,
        "tradesExecuted": sum("BUY" in kind or "SELL" in kind for kind in kinds),
        "postsCreated": sum("POST" in kind for kind in kinds),
        "errorCount": errors,
    }


def as_columns(row: TrajectoryRow) -> dict[str, Any]:
    """The row's values by column name, as they would be stored."""
    return dict(zip((name for name, _ in _COLUMNS), _values(row), strict=True))


def _values(row: TrajectoryRow) -> tuple[Any, ...]:
    values = [*msgspec.structs.astuple(row)[: len(_COLUMNS) - 1], row.recorded_at]
    return tuple(_naive(value) if isinstance(value, datetime) else value for value in values)


def _naive(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(tzinfo=None)


def _calls(row: TrajectoryRow) -> list[tuple[Any, ...]]:
    """The row's LLM calls, one row each, as the game also writes them for its own analysis.

    A number that does not fit this table is capped: the trajectory has the exact value and must not be lost for it.
    """
    rows = []
    for step in _from_json(row.steps_json):
        number = step["stepNumber"]
        moment = datetime.fromtimestamp(step["timestamp"] / 1000, UTC)
        for index, call in enumerate(step["llmCalls"]):
            prompts = (("system", call["systemPrompt"]), ("user", call["userPrompt"]))
            messages = call.get("messages") or [{"role": role, "content": text} for role, text in prompts]
            used = (call.get("promptTokens"), call.get("completionTokens"))
            call_id = f"{row.trajectory_id}-call-{number}-{index}"
            rows.append(
                (
                    _row_id(call_id),
                    row.trajectory_id,
                    f"{row.trajectory_id}-step-{number}",
                    call_id,
                    _naive(moment),
                    _whole(call.get("latencyMs")),
                    _storable(call["model"]),
                    _storable(call["purpose"]),
                    _storable(call.get("actionType")),
                    _storable(call["systemPrompt"]),
                    _storable(call["userPrompt"]),
                    to_json(messages),
                    _storable(call["response"]),
                    _storable(call.get("reasoning")),
                    1.0 if call["temperature"] is None else call["temperature"],
                    _whole(call["maxTokens"]) or 0,
                    call.get("topP"),
                    _whole(used[0]),
                    _whole(used[1]),
                    _whole(used[0] + used[1]) if used[0] is not None and used[1] is not None else None,
                    to_json({"modelVersion": call.get("modelVersion")}),
                    _naive(row.recorded_at),
                )
            )
    return rows


def _row_id(call_id: str) -> str:
    """Digits like those of a snowflake id, always the same for the same call."""
    return str(int.from_bytes(hashlib.blake2b(call_id.encode(), digest_size=8).digest(), "big") >> 1)


def _whole(number: float | None) -> int | None:
    return None if number is None else max(-_MAX_INT, min(round(number), _MAX_INT))


def _storable(text: str | None) -> str | None:
    """Text without NUL and unpaired surrogates, which Postgres cannot store. ``stepsJson`` keeps them as escapes."""
    if text is None:
        return None
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def to_json(value: Any) -> str:
    """JSON as JavaScript writes it where Python's encoders differ: NaN and infinities become null, and an unpaired
    surrogate (half of an emoji) is escaped."""
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        plain = json.loads(json.dumps(value), parse_constant=lambda _: None)
        return json.dumps(plain, ensure_ascii=True, separators=(",", ":"))


def _from_json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return json.loads(text)


class _Worker:
    """The game's own workers count up from 0; ours draws its number at random from the upper half."""

    def __init__(self) -> None:
        self.number = 512 + secrets.randbelow(512)
        self.lock = threading.Lock()
        self.moment = 0
        self.sequence = 0


_worker = _Worker()


def _new_worker() -> None:
    global _worker
    _worker = _Worker()


os.register_at_fork(after_in_child=_new_worker)


def snowflake_id() -> str:
    """An id like the game's: 41 bits of time, 10 of the worker, 12 of a sequence, as a decimal number.

    Unique within a process and almost always between processes; the unique index catches the rest.
    """
    worker = _worker
    with worker.lock:
        worker.moment = max(worker.moment, time.time_ns() // 1_000_000 - _EPOCH_MS)
        worker.sequence += 1
        if worker.sequence == _SEQUENCES:
            # More than 4,096 in a millisecond: use the next millisecond instead of waiting.
            worker.sequence, worker.moment = 0, worker.moment + 1
        return str(worker.moment << 22 | worker.number << 12 | worker.sequence)
