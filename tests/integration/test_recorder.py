"""The recorder: rows of the game's shape, exactly once, whatever happens to Postgres or to the process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from data_bridge.database import Database, open_database
from data_bridge.embedded import EmbeddedServer
from data_bridge.errors import DatabaseError
from data_bridge.models import Action, EnvironmentState, LLMCall
from data_bridge.quality import Rules
from data_bridge.reader import WindowReader
from data_bridge.recorder import Recorder
from data_bridge.recording import Store, TrajectoryRecording
from data_bridge.traces import import_traces
from data_bridge.trajectory_rows import TrajectoryRow

OUTAGE_SECONDS = float(os.environ.get("RECORDER_OUTAGE_SECONDS", "2"))
"""How long Postgres is away in the middle; ten in the long version of the test."""

BOOKS = {"agentBalance": 1000, "agentPnL": 12.5, "openPositions": 0}
CALL = LLMCall(
    model="hindsight@step3",
    system_prompt="You trade.",
    user_prompt="ACME at 100.",
    response="BUY ACME",
    temperature=0.7,
    max_tokens=64,
    latency_ms=312.4,
    completion_token_ids=[5, 6, 2],
    completion_logprobs=[-0.5, -0.25, -0.01],
    logprobs_temperature=1.0,
)
BUY = Action(action_type="BUY", parameters={"ticker": "ACME"}, success=True, result={"shares": 10})


async def play(recorder: Recorder, agent_id: str, steps: int = 2, **options: Any) -> str:
    async with recorder.start_trajectory(agent_id, **options) as trajectory:
        for _ in range(steps):
            async with trajectory.step(BOOKS) as step:
                step.log_provider_access("MARKET", {"ACME": 100}, "prices")
                step.log_llm_call(CALL)
                step.complete_step(BUY, reward=0.5)
        return await trajectory.end_trajectory(final_balance=990.0, final_pnl=0.0)


async def all_rows(database: Database) -> list[asyncpg.Record]:
    return await database.pool.fetch('SELECT * FROM trajectories ORDER BY "startTime"')


async def test_a_row_has_exactly_the_shape_of_the_games_recorder(database: Database, tmp_path: Path) -> None:
    started, ended = datetime(2026, 3, 2, 10, 59, tzinfo=UTC), datetime(2026, 3, 2, 11, 1, tzinfo=UTC)
    async with Recorder(database, tmp_path / "spool") as recorder:
        trajectory = recorder.start_trajectory("agent-7", started_at=started, agent_name="Ada")
        step = trajectory.step(BOOKS, at=started)
        step.log_provider_access("MARKET", {"ACME": 100}, "prices")
        step.log_llm_call(CALL)
        step.complete_step(BUY, reward=0.5)
        trajectory_id = await trajectory.end_trajectory(
            final_balance=990.0, final_pnl=0.0, game_knowledge={"actualOutcomes": {"ACME": "up"}}, at=ended
        )

    (row,) = await all_rows(database)
    assert row["trajectoryId"] == trajectory_id
    assert trajectory_id.isdecimal()
    assert 17 <= len(trajectory_id) <= 19
    assert (row["windowId"], row["scenarioId"]) == ("2026-03-02T10:00", "2026-03-02T10:00")  # of the start
    assert (row["startTime"], row["endTime"]) == (started.replace(tzinfo=None), ended.replace(tzinfo=None))
    assert (row["durationMs"], row["windowHours"], row["episodeLength"]) == (120_000, 1, 1)
    assert (row["finalStatus"], row["finalBalance"], row["finalPnL"]) == ("completed", 990.0, 0.0)
    assert (row["tradesExecuted"], row["postsCreated"], row["totalReward"]) == (1, 0, 0.5)
    assert (row["isTrainingData"], row["isEvaluation"], row["usedInTraining"]) == (True, False, False)
    assert abs(row["updatedAt"] - datetime.now(UTC).replace(tzinfo=None)) < timedelta(minutes=1)
    assert json.loads(row["stepsJson"]) == [
        {
            "stepNumber": 0,
            "timestamp": 1772449140000,
            "environmentState": BOOKS,
            "providerAccesses": [{"providerName": "MARKET", "data": {"ACME": 100}, "purpose": "prices"}],
            "llmCalls": [
                {
                    "model": "hindsight@step3",
                    "systemPrompt": "You trade.",
                    "userPrompt": "ACME at 100.",
                    "response": "BUY ACME",
                    "temperature": 0.7,
                    "maxTokens": 64,
                    "latencyMs": 312.4,
                    "purpose": "action",
                    "completionTokenIds": [5, 6, 2],
                    "completionLogprobs": [-0.5, -0.25, -0.01],
                    "logprobsTemperature": 1.0,
                }
            ],
            "action": {
                "actionType": "BUY",
                "parameters": {"ticker": "ACME"},
                "success": True,
                "result": {"shares": 10},
            },
            "reward": 0.5,
        }
    ]
    assert json.loads(row["metricsJson"]) == {
        "episodeLength": 1,
        "finalStatus": "completed",
        "finalBalance": 990,
        "finalPnL": 0,
        "tradesExecuted": 1,
        "postsCreated": 0,
        "errorCount": 0,
    }
    assert json.loads(row["metadataJson"]) == {
        "isTrainingData": True,
        "gameKnowledge": {"actualOutcomes": {"ACME": "up"}},
    }
    assert json.loads(row["rewardComponentsJson"]) == {"environmentReward": 0.5}
    assert await database.pool.fetchval('SELECT "displayName" FROM "User" WHERE id = $1', "agent-7") == "Ada"


async def test_each_model_call_is_also_logged_by_itself(database: Database, tmp_path: Path) -> None:
    async with Recorder(database, tmp_path / "spool") as recorder:
        trajectory_id = await play(recorder, "agent-1", steps=3)
    calls = await database.pool.fetch('SELECT * FROM llm_call_logs ORDER BY "callId"')
    assert [call["callId"] for call in calls] == [f"{trajectory_id}-call-{number}-0" for number in range(3)]
    assert {(call["model"], call["response"], call["latencyMs"]) for call in calls} == {
        ("hindsight@step3", "BUY ACME", 312)
    }
    messages = json.loads(calls[0]["messagesJson"])
    assert messages == [{"role": "system", "content": "You trade."}, {"role": "user", "content": "ACME at 100."}]


async def test_failed_and_unfinished_steps_are_recorded_as_errors(database: Database, tmp_path: Path) -> None:
    async def break_down(recorder: Recorder) -> None:
        async with recorder.start_trajectory("agent-1") as trajectory:
            async with trajectory.step(EnvironmentState(balance=10.0)):
                pass
            async with trajectory.step(BOOKS):
                raise RuntimeError("the agent broke")

    async with Recorder(database, tmp_path / "spool") as recorder:
        with pytest.raises(RuntimeError, match="broke"):
            await break_down(recorder)
    (row,) = await all_rows(database)
    actions = [step["action"] for step in json.loads(row["stepsJson"])]
    assert [action["actionType"] for action in actions] == ["pending", "pending"]
    assert actions[1]["error"] == "RuntimeError: the agent broke"
    assert row["finalStatus"] == "completed_with_errors"
    assert json.loads(row["stepsJson"])[0]["environmentState"] == {"agentBalance": 10.0}


async def test_text_that_postgres_or_utf8_cannot_hold_arrives_as_javascript_would_write_it(
    database: Database, tmp_path: Path
) -> None:
    async with Recorder(database, tmp_path / "spool") as recorder:
        trajectory = recorder.start_trajectory("agent-1")
        step = trajectory.step({"agentBalance": float("nan")})
        step.log_llm_call(LLMCall(model="m", response="a\x00b \ud83d", temperature=1.0, max_tokens=1))
        step.complete_step(BUY)
        await trajectory.end_trajectory()
    (row,) = await all_rows(database)
    assert '"a\\u0000b \\ud83d"' in row["stepsJson"]
    assert '"agentBalance":null' in row["stepsJson"]
    assert await database.pool.fetchval("SELECT response FROM llm_call_logs") == "a\ufffdb ?"
    assert recorder.rejected == 0


async def test_a_call_that_its_log_cannot_hold_does_not_cost_the_trajectory(database: Database, tmp_path: Path) -> None:
    async with Recorder(database, tmp_path / "spool") as recorder:
        trajectory = recorder.start_trajectory("agent-1")
        step = trajectory.step(BOOKS)
        step.log_llm_call(LLMCall(model="m\x00", temperature=float("nan"), max_tokens=1e12, latency_ms=-1e15))
        step.complete_step(BUY)
        await trajectory.end_trajectory()
    assert (recorder.delivered, recorder.rejected) == (1, 0)
    (row,) = await all_rows(database)
    assert '"maxTokens":1000000000000.0' in row["stepsJson"]
    [logged] = await database.pool.fetch('SELECT model, temperature, "maxTokens", "latencyMs" FROM llm_call_logs')
    assert tuple(logged) == ("m\ufffd", 1.0, 2**31 - 1, 1 - 2**31)


async def test_a_hundred_agents_write_a_thousand_trajectories_while_postgres_is_away(
    server_folder: Path, tmp_path: Path
) -> None:
    server = EmbeddedServer(server_folder, options={"fsync": "off"})
    server.start()
    async with open_database(server.url(), tmp_path, migrate=True) as database:
        async with Recorder(database, tmp_path / "spool", patience=timedelta(minutes=1)) as recorder:
            waits: list[float] = []

            async def agent(number: int) -> list[str]:
                ids = []
                for _ in range(10):
                    before = time.monotonic()
                    ids.append(await play(recorder, f"agent-{number}"))
                    waits.append(time.monotonic() - before)
                    await asyncio.sleep(OUTAGE_SECONDS / 8)
                return ids

            agents = [asyncio.create_task(agent(number)) for number in range(100)]
            await asyncio.sleep(OUTAGE_SECONDS / 8)
            await asyncio.to_thread(server.stop)
            written_before = recorder.delivered
            await asyncio.sleep(OUTAGE_SECONDS)
            assert recorder.delivered == written_before
            assert len(waits) > 300  # the agents went on without the database
            await asyncio.to_thread(server.start)
            recorded = sorted(id for ids in await asyncio.gather(*agents) for id in ids)
        arrived = await database.pool.fetch('SELECT "trajectoryId" FROM trajectories ORDER BY 1')
        assert [row[0] for row in arrived] == recorded
        assert len(recorded) == 1000
        assert await database.pool.fetchval("SELECT count(*) FROM llm_call_logs") == 2000
        assert (recorder.delivered, recorder.rejected) == (1000, 0)
    server.stop()
    assert list((tmp_path / "spool").iterdir()) == []


_DIES = """
import asyncio, os, signal, sys
from pathlib import Path
from data_bridge.reader import WindowReader
from data_bridge.quality import Rules
from data_bridge.recorder import Recorder
from data_bridge.models import Action

async def main():
    async with Recorder("postgresql://nobody@127.0.0.1:9/none", Path(sys.argv[1])) as recorder:
        for number in range(20):
            trajectory = recorder.start_trajectory(f"agent-{number}")
            trajectory.step({"agentBalance": number}).complete_step(Action(action_type="BUY", success=True))
            print(await trajectory.end_trajectory(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def record_and_die(spool: Path) -> list[str]:
    died = subprocess.run([sys.executable, "-c", _DIES, str(spool)], capture_output=True, text=True, check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr
    return died.stdout.split()


async def test_kill_9_after_end_trajectory_loses_nothing(database: Database, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    acknowledged = await asyncio.to_thread(record_and_die, spool)
    assert len(acknowledged) == 20

    async with Recorder(database, spool) as recorder:
        own = await play(recorder, "agent-last")

    arrived = [row["trajectoryId"] for row in await all_rows(database)]
    assert arrived == [*acknowledged, own]  # in order
    assert list(spool.iterdir()) == []


async def test_a_living_recorder_delivers_what_a_dead_process_left(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("data_bridge.recorder._LOOK_FOR_ORPHANS", 0.1)
    async with Recorder(database, tmp_path / "spool") as recorder:
        acknowledged = await asyncio.to_thread(record_and_die, tmp_path / "spool")
        async with asyncio.timeout(60):
            while recorder.delivered < len(acknowledged):
                await asyncio.sleep(0.05)
    assert [row["trajectoryId"] for row in await all_rows(database)] == acknowledged


async def test_a_replay_of_rows_that_arrived_changes_nothing(database: Database, tmp_path: Path) -> None:
    """As after a crash between the commit and the end of the segment."""
    stored: list[TrajectoryRow] = []

    async def keep(row: TrajectoryRow) -> None:
        stored.append(row)

    async with Recorder(database, tmp_path / "spool") as recorder:
        trajectory = recorder.start_trajectory("agent-1")
        trajectory._store = keep
        await trajectory.end_trajectory()
        for _ in range(3):
            await recorder._store(stored[0])
            await recorder.flush()
    assert len(await all_rows(database)) == 1
    assert recorder.rejected == 0


async def test_a_row_that_postgres_refuses_costs_that_row_and_is_kept(database: Database, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    async with Recorder(database, spool) as recorder:
        good = [asyncio.create_task(play(recorder, f"agent-{number}")) for number in range(3)]
        bad = await play(recorder, "agent-bad", scenario_id="x" * 101)
        await asyncio.gather(*good)
    assert len(await all_rows(database)) == 3
    assert (recorder.delivered, recorder.rejected) == (3, 1)
    rejected = json.loads((spool / "rejected.jsonl").read_text())
    assert rejected["trajectory"]["trajectoryId"] == bad
    assert "character varying(100)" in rejected["reason"]


@pytest.mark.parametrize(
    ("record", "file_name", "kept"),
    [
        ({"agent_id": 7}, "undecodable.jsonl", "record"),  # as another version of the recorder might leave it
        ({"steps_json": '[{"stepNumber": 0}]'}, "rejected.jsonl", "trajectory"),
        ({"steps_json": "no JSON"}, "rejected.jsonl", "trajectory"),
    ],
)
async def test_a_record_that_cannot_be_delivered_costs_itself_only_and_is_kept(
    database: Database, tmp_path: Path, record: dict[str, Any], file_name: str, kept: str
) -> None:
    stored: list[TrajectoryRow] = []

    async def keep(row: TrajectoryRow) -> None:
        stored.append(row)

    await recording(keep).end_trajectory()
    spool = tmp_path / "spool"
    async with Recorder(database, spool) as recorder:
        await asyncio.gather(
            play(recorder, "agent-1"),
            recorder._store(msgspec.structs.replace(stored[0], **record)),
            play(recorder, "agent-2"),
        )
        await recorder.flush()
        await play(recorder, "agent-3")
    assert {row["agentId"] for row in await all_rows(database)} == {"agent-1", "agent-2", "agent-3"}
    assert (recorder.delivered, recorder.rejected) == (3, 1)
    (line,) = (spool / file_name).read_text().splitlines()
    assert json.loads(line)["reason"]
    assert json.loads(line)[kept]


async def test_a_full_disk_under_the_rejected_rows_does_not_end_the_delivery(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("data_bridge.recorder._LOOK_FOR_ORPHANS", 0.1)
    (tmp_path / "rejected.jsonl").mkdir()  # stands for a disk that takes nothing
    async with Recorder(database, tmp_path) as recorder:
        bad = await play(recorder, "agent-bad", scenario_id="x" * 101)
        with pytest.raises(DatabaseError, match="still wait"):
            await recorder.flush(timedelta(seconds=1))
        (tmp_path / "rejected.jsonl").rmdir()
        await play(recorder, "agent-1")
    assert bad in (tmp_path / "rejected.jsonl").read_text()
    assert [row["agentId"] for row in await all_rows(database)] == ["agent-1"]


async def test_a_value_of_another_type_is_refused_where_it_is_given(database: Database, tmp_path: Path) -> None:
    wrong: Any
    async with Recorder(database, tmp_path / "spool") as recorder:
        for wrong in ({"agent_id": 7}, {"agent_id": "a", "trajectory_id": 7}, {"agent_id": "a", "window_hours": "1"}):
            with pytest.raises(TypeError, match=r"must be (str|int), not"):
                recorder.start_trajectory(**wrong)
        trajectory = recorder.start_trajectory("agent-1")
        step = trajectory.step(BOOKS)
        wrong = "512"
        with pytest.raises(TypeError, match=r"LLMCall cannot be recorded: .* at `\$.maxTokens`"):
            step.log_llm_call(LLMCall(max_tokens=wrong))
        wrong = None
        with pytest.raises(TypeError, match=r"Action cannot be recorded: .* at `\$.actionType`"):
            step.complete_step(Action(action_type=wrong))
        wrong = "much"
        with pytest.raises(TypeError, match="final_pnl must be a number, not 'much'"):
            await trajectory.end_trajectory(final_pnl=wrong)


async def test_decimals_arrive_as_the_numbers_they_are(database: Database, tmp_path: Path) -> None:
    exact: Any = Decimal("990.10")
    async with Recorder(database, tmp_path / "spool") as recorder:
        trajectory = recorder.start_trajectory("agent-1")
        trajectory.step(BOOKS).complete_step(BUY, reward=exact)
        await trajectory.end_trajectory(final_balance=exact, final_pnl=exact)
    (row,) = await all_rows(database)
    assert (row["finalBalance"], row["finalPnL"], row["totalReward"]) == (990.1, 990.1, 990.1)
    assert json.loads(row["metricsJson"])["finalBalance"] == 990.1
    assert json.loads(row["stepsJson"])[0]["reward"] == 990.1


async def test_a_refused_row_can_be_imported_when_the_reason_is_gone(database: Database, tmp_path: Path) -> None:
    await database.pool.execute("ALTER TABLE trajectories ADD CONSTRAINT none CHECK (false)")
    async with Recorder(database, tmp_path) as recorder:
        refused = await play(recorder, "agent-1")
    await database.pool.execute("ALTER TABLE trajectories DROP CONSTRAINT none")
    await import_traces(database, tmp_path / "rejected.jsonl")
    (row,) = await all_rows(database)
    assert (row["trajectoryId"], row["finalBalance"]) == (refused, 990.0)


async def test_an_id_that_belongs_to_another_row_is_not_taken_for_a_repetition(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Recorder(database, tmp_path / "spool") as recorder:
        taken = await play(recorder, "agent-1")
        await recorder.flush()
        trajectory = recorder.start_trajectory("agent-2")
        trajectory.trajectory_id = taken
        await trajectory.end_trajectory()
    assert recorder.rejected == 1
    assert [row["agentId"] for row in await all_rows(database)] == ["agent-1"]


async def test_of_two_rows_with_one_trajectory_id_the_first_is_stored_and_the_other_kept_aside(
    database: Database, tmp_path: Path
) -> None:
    spool = tmp_path / "spool"
    async with Recorder(database, spool) as recorder:
        # Both are on disk before the delivery looks, so that they share a batch.
        await asyncio.gather(*(play(recorder, f"agent-{number}", trajectory_id="same") for number in (1, 2)))
    assert (recorder.delivered, recorder.rejected) == (1, 1)
    assert [row["agentId"] for row in await all_rows(database)] == ["agent-1"]
    rejected = json.loads((spool / "rejected.jsonl").read_text())
    assert rejected["trajectory"]["agentId"] == "agent-2"
    assert await database.pool.fetchval("SELECT count(*) FROM llm_call_logs") == 2


async def test_on_the_games_database_agents_are_not_added(database: Database, tmp_path: Path) -> None:
    await database.pool.execute("UPDATE hindsight.migrations SET skipped = true WHERE number = 1")
    async with Recorder(database, tmp_path / "spool") as recorder:
        await play(recorder, "stranger")
    assert recorder.rejected == 1
    assert await database.pool.fetchval('SELECT count(*) FROM "User"') == 0


async def test_flush_says_why_rows_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data_bridge.database._FIRST_CONNECT_PAUSES", ())
    url = "postgresql://someone:topsecret@127.0.0.1:9/game"
    async with Recorder(url, tmp_path / "spool", patience=timedelta(0)) as recorder:
        await play(recorder, "agent-1")
        with pytest.raises(DatabaseError, match="still wait in") as raised:
            await recorder.flush(timedelta(seconds=1))
    assert "cannot be reached" in str(raised.value)
    assert "topsecret" not in str(raised.value)
    assert len(list((tmp_path / "spool").glob("*.spool"))) == 1


async def test_a_trajectory_that_could_not_be_stored_can_be_ended_again() -> None:
    stored: list[TrajectoryRow] = []

    async def fails_once(row: TrajectoryRow) -> None:
        if not disk_was_full:
            disk_was_full.append(True)
            raise OSError(28, "No space left on device")
        stored.append(row)

    disk_was_full: list[bool] = []
    trajectory = recording(fails_once)
    with pytest.raises(OSError, match="No space"):
        await trajectory.end_trajectory(final_balance=990.0)
    await trajectory.end_trajectory(final_balance=990.0)
    with pytest.raises(RuntimeError, match="has already ended"):
        await trajectory.end_trajectory()

    disk_was_full.clear()
    async with recording(fails_once) as left_to_its_block:
        with pytest.raises(OSError, match="No space"):
            await left_to_its_block.end_trajectory(final_balance=991.0)
    assert [row.final_balance for row in stored] == [990.0, 991.0]


async def test_of_two_endings_at_once_one_is_stored() -> None:
    stored: list[TrajectoryRow] = []

    async def store(row: TrajectoryRow) -> None:
        await asyncio.sleep(0)
        stored.append(row)

    trajectory = recording(store)
    ended = await asyncio.gather(trajectory.end_trajectory(), trajectory.end_trajectory(), return_exceptions=True)
    assert [type(result) for result in ended] == [str, RuntimeError]
    assert len(stored) == 1


def recording(store: Store) -> TrajectoryRecording:
    return TrajectoryRecording(
        store,
        "agent-1",
        started_at=datetime.now(UTC),
        window_id=None,
        window_hours=1,
        scenario_id=None,
        agent_name=None,
        is_training_data=True,
        is_evaluation=False,
    )


async def test_token_ids_without_their_logprobs_and_times_without_a_zone_are_refused() -> None:
    async def store(_: TrajectoryRow) -> None: ...

    trajectory = recording(store)
    with pytest.raises(ValueError, match="no time zone"):
        trajectory.step({}, at=datetime(2026, 11, 2, 10, 5))
    with pytest.raises(ValueError, match="2 completion token ids but 1"):
        trajectory.step(BOOKS).log_llm_call(LLMCall(completion_token_ids=[1, 2], completion_logprobs=[-1.0]))


async def test_the_reader_reads_what_the_recorder_wrote(database: Database, tmp_path: Path) -> None:
    started = datetime(2026, 3, 2, 10, 5, tzinfo=UTC)
    async with Recorder(database, tmp_path / "spool") as recorder:
        trajectory_id = await play(recorder, "agent-1", started_at=started, agent_name="Ada")

    window = await WindowReader(database, Rules(now=started + timedelta(days=1))).read("2026-03-02T10:00")

    assert window is not None
    (read,) = window.trajectories
    assert (read.trajectory_id, read.agent_name, read.lifetime_pnl) == (trajectory_id, "Ada", 0.0)
    assert [call.completion_token_ids for call in read.llm_calls] == [[5, 6, 2], [5, 6, 2]]
    assert [call.completion_logprobs for call in read.llm_calls] == [[-0.5, -0.25, -0.01]] * 2
    assert read.actions[0] == BUY
