"""Rows that agents send themselves, stamped with who they are and when they played before they are stored.

An agent does not say itself who it is or which window it belongs to: the key says the first, its start the second, and
only a window that is still open takes rows, so that nobody writes into the past. A bad row costs itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import msgspec

from data_bridge.database import Database
from data_bridge.decode import SENT_BY_AGENT, Undecodable, decode_steps, is_sent, trajectory_of
from data_bridge.errors import NotEnoughData
from data_bridge.migrate import owns_game_tables
from data_bridge.models import AgentTrajectory, UnreadableRow
from data_bridge.trajectory_rows import TrajectoryRow, insert_trajectories, metrics_of, to_json
from data_bridge.window_ids import is_closed, window_of

_BEFORE = 'SELECT "trajectoryId", "id" FROM "trajectories" WHERE "trajectoryId" = ANY($1)'
_BEHIND = timedelta(days=1)
_AHEAD = timedelta(minutes=1)
"""How far an agent's clock may be ahead of the database's."""


@dataclass(frozen=True, slots=True)
class SentTrajectory:
    """A row as an agent sends it: the game's columns that are the agent's to say."""

    trajectory_id: str
    agent_id: str
    start_time: datetime
    end_time: datetime
    steps_json: str
    metadata_json: str = "{}"
    scenario_id: str | None = None
    final_balance: float | None = None
    final_pnl: float | None = None
    total_reward: float = 0.0
    is_training_data: bool = True
    is_evaluation: bool = False


@dataclass(frozen=True, slots=True)
class StoredTrajectory:
    """What became of a row."""

    trajectory_id: str
    agent_id: str
    window_id: str | None
    state: str
    """``stored``, ``known`` (sent before; the first counts) or ``refused``."""
    reason: str = ""


async def store_sent(database: Database, sent: Sequence[SentTrajectory]) -> list[StoredTrajectory]:
    """Store what can be stored, each row once; one result for each row, in order."""
    async with database.pool.acquire() as connection:
        now: datetime = await connection.fetchval("SELECT now()")
        adds_agents = await owns_game_tables(connection)
        users = await connection.fetch('SELECT "id" FROM "User" WHERE "id" = ANY($1)', _agents(sent))
        agents = {row["id"] for row in users}
        before = {row["trajectoryId"]: row["id"] for row in await connection.fetch(_BEFORE, _ids(sent))}
        results = [
            _known(one)
            if before.get(one.trajectory_id) == _row_id(one)
            else _checked(one, now, adds_agents or one.agent_id in agents)
            for one in sent
        ]
        rows = [_row(one, now) for one, found in zip(sent, results, strict=True) if found.state == "stored"]
        if not rows:
            return results
        foreign = await insert_trajectories(connection, rows, add_agents=adds_agents, with_calls=False)
    others = {row.id for row in foreign}
    return [_outcome(one, found, others) for one, found in zip(sent, results, strict=True)]


def _ids(sent: Sequence[SentTrajectory]) -> list[str]:
    return [one.trajectory_id for one in sent]


def _known(one: SentTrajectory) -> StoredTrajectory:
    """Before any check: a sender that died before it heard of its success sends again, perhaps after the hour."""
    return StoredTrajectory(one.trajectory_id, one.agent_id, window_of(one.start_time), "known")


def _agents(sent: Sequence[SentTrajectory]) -> list[str]:
    return sorted({one.agent_id for one in sent})


def _outcome(one: SentTrajectory, found: StoredTrajectory, others: set[str]) -> StoredTrajectory:
    if found.state == "stored" and _row_id(one) in others:
        return replace(found, state="refused", reason="this trajectory id belongs to another agent's row")
    return found


def _checked(one: SentTrajectory, now: datetime, has_agent: bool) -> StoredTrajectory:
    def refused(reason: str) -> StoredTrajectory:
        return StoredTrajectory(one.trajectory_id, one.agent_id, None, "refused", reason)

    if not has_agent:
        return refused("the game has no such agent")
    if one.start_time > now + _AHEAD:
        return refused("it starts in the future")
    if now - one.start_time > _BEHIND or is_closed(window_of(one.start_time), 1, now):
        return refused("its window is closed: rows are taken until ten minutes after their hour")
    window_id = window_of(one.start_time)
    if one.end_time < one.start_time:
        return refused("it ends before it starts")
    if any("\x00" in text for text in (one.steps_json, one.metadata_json, one.scenario_id or "")):
        return refused("it has a NUL character")
    try:
        decode_steps(one.steps_json)
        metadata = msgspec.json.decode(one.metadata_json)
    except Undecodable as error:
        return refused(f"stepsJson: {error.detail}")
    except (msgspec.DecodeError, UnicodeEncodeError):
        return refused("metadataJson is not JSON")
    if not isinstance(metadata, dict):
        return refused("metadataJson is not an object")
    if not is_sent(_stamped(one)):
        return refused("metadataJson is nested too deeply, or has too many values")
    return StoredTrajectory(one.trajectory_id, one.agent_id, window_id, "stored")


def _stamped(one: SentTrajectory) -> str:
    """Its metadata, with who sent it: what the row says of its own results and rewards is the agent's word."""
    return to_json(msgspec.json.decode(one.metadata_json) | SENT_BY_AGENT)


def read_sent(one: SentTrajectory, now: datetime) -> AgentTrajectory:
    """The row as the reader would read it from the log. NotEnoughData if it could not."""
    steps = one.steps_json.encode("utf-8", "replace")
    row = {
        "trajectoryId": one.trajectory_id,
        "agentId": one.agent_id,
        "windowHours": 1,
        "startTime": one.start_time,
        "endTime": one.end_time,
        "createdAt": now,
        "scenarioId": one.scenario_id,
        "finalStatus": "completed",
        "finalBalance": one.final_balance,
        "finalPnL": one.final_pnl,
        "isTrainingData": True,
        "isEvaluation": False,
        "usedInTraining": False,
        "steps": steps,
        "size": len(steps),
        "metadata": one.metadata_json,
    }
    read = trajectory_of(row, window_of(one.start_time), None)
    if isinstance(read, UnreadableRow):
        raise NotEnoughData(f"{one.trajectory_id!r} cannot be read: {read.detail}.")
    return msgspec.structs.replace(read, is_sent=True)


def _row_id(one: SentTrajectory) -> str:
    """Always the same for the same agent's trajectory, so that a repetition is known and a stranger's is not."""
    digest = hashlib.blake2b(f"{one.agent_id}\0{one.trajectory_id}".encode(), digest_size=8).digest()
    return str(int.from_bytes(digest, "big") >> 1)


def _row(one: SentTrajectory, now: datetime) -> TrajectoryRow:
    """What the game's recorder writes beside the steps is counted here from the steps: nobody says it of themselves."""
    steps = decode_steps(one.steps_json)
    actions = [step.action for step in steps if step.action is not None]
    errors = len(steps) - sum(action.success for action in actions)
    metrics = metrics_of([action.kind for action in actions], len(steps), errors, one.final_balance, one.final_pnl)
    window_id, duration = window_of(one.start_time), (one.end_time - one.start_time) / timedelta(milliseconds=1)
    scenario = one.scenario_id or window_id
    return TrajectoryRow(
        id=_row_id(one),
        trajectory_id=one.trajectory_id,
        agent_id=one.agent_id,
        start_time=one.start_time,
        end_time=one.end_time,
        duration_ms=min(int(duration), 2**31 - 1),
        window_id=window_id,
        window_hours=1,
        episode_id=f"{scenario}-{round(one.end_time.timestamp() * 1000)}"[:100],
        scenario_id=scenario,
        steps_json=one.steps_json,
        reward_components_json=to_json({"environmentReward": one.total_reward}),
        metrics_json=to_json({name: figure for name, figure in metrics.items() if figure is not None}),
        metadata_json=_stamped(one),
        total_reward=one.total_reward,
        episode_length=len(steps),
        final_status=metrics["finalStatus"],
        final_balance=one.final_balance,
        final_pnl=one.final_pnl,
        trades_executed=metrics["tradesExecuted"],
        posts_created=metrics["postsCreated"],
        is_training_data=one.is_training_data,
        is_evaluation=one.is_evaluation,
        recorded_at=now.astimezone(UTC),
    )
