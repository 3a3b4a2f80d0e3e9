"""Traces: what goes out, comes in and goes out again is the same."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from data_bridge.database import Database, open_database
from data_bridge.errors import ConfigurationError, DatabaseError, NotEnoughData
from data_bridge.quality import Rules
from data_bridge.reader import WindowReader
from data_bridge.traces import Passed, export_traces, import_traces
from tests.builders import insert_outcomes, insert_trajectory

ROOT = Path(__file__).parents[2]
FIRST, END = datetime(2026, 3, 2, tzinfo=UTC), datetime(2026, 3, 3, tzinfo=UTC)
MakeDatabase = Callable[..., str]


async def fill(database: Database) -> None:
    """Both writers, several windows, and what is found in real tables."""
    pool = database.pool
    await insert_trajectory(pool, "agent-1", window_id="2026-03-02T10:00")
    await insert_trajectory(pool, "agent-2", window_id="2026-03-02T10:00", writer="plugin", finalPnL=0.1 + 0.2)
    await insert_trajectory(
        pool, "agent-3", window_id="2026-03-02T10:00:00.000Z", start_time=FIRST + timedelta(hours=10)
    )
    await insert_trajectory(pool, "agent-1", window_id=None, start_time=FIRST + timedelta(hours=11))
    await insert_trajectory(pool, "agent-1", window_id="2026-03-02T12:00", steps_json='[{"cut": "\\ud83d\\u0000')
    await insert_trajectory(pool, "agent-2", window_id="2026-03-02T12:00", steps_json="null", totalReward=float("nan"))
    await insert_trajectory(pool, "agent-3", window_id="2026-03-02T12:00", steps_json='"é\n\t𝄞"', isEvaluation=True)
    await insert_trajectory(pool, "agent-2", window_id="garbage", start_time=FIRST + timedelta(hours=10))
    await insert_trajectory(pool, "agent-1", window_id="0", start_time=FIRST + timedelta(hours=12))
    await insert_trajectory(pool, "agent-1", window_id="2026-03-02 12:00:00", start_time=FIRST + timedelta(hours=12))
    await insert_trajectory(pool, "agent-1", window_id="2026-02-20T12:00")  # out of the range, as are these
    await insert_trajectory(pool, "agent-1", window_id="2026-03-03 00:00:00", start_time=END - timedelta(minutes=1))
    await insert_trajectory(pool, "agent-1", window_id="garbage", start_time=END)
    await insert_outcomes(
        pool,
        "2026-03-02T10:00",
        stocks=[{"newsEvents": '[{"headline": "1.10 \\" up", "weight": 1.10, "id": 12345678901234567890}]'}],
    )
    await insert_outcomes(pool, "2026-03-02T11:00", predictions=[])


async def export(database: Database, path: Path) -> Passed:
    return await export_traces(database, path, first=FIRST, end=END)


@pytest.mark.parametrize("name", ["traces.jsonl", "traces.jsonl.gz"])
async def test_a_round_trip_is_the_identity(
    database: Database, make_database: MakeDatabase, template_database: str, tmp_path: Path, name: str
) -> None:
    await fill(database)
    passed = await export(database, tmp_path / name)
    assert passed == Passed(trajectories=10, outcomes=3, windows=3)

    async with open_database(make_database(template_database), tmp_path) as other:
        assert (await import_traces(other, tmp_path / name)).new == 10
        await export(other, tmp_path / f"again-{name}")
        rows = "SELECT t::text FROM trajectories t WHERE id = ANY($1) ORDER BY id"
        ids = [row["id"] for row in await other.pool.fetch("SELECT id FROM trajectories")]
        assert await other.pool.fetch(rows, ids) == await database.pool.fetch(rows, ids)
        outcomes = "SELECT o::text FROM market_outcomes o ORDER BY id"
        assert await other.pool.fetch(outcomes) == await database.pool.fetch(outcomes)

    assert (tmp_path / f"again-{name}").read_bytes() == (tmp_path / name).read_bytes()


async def test_the_reader_sees_the_same_windows_in_the_copy(
    database: Database, make_database: MakeDatabase, template_database: str, tmp_path: Path
) -> None:
    await fill(database)
    await export(database, tmp_path / "t.jsonl")
    rules = Rules(now=END)
    async with open_database(make_database(template_database), tmp_path) as other:
        await import_traces(other, tmp_path / "t.jsonl")
        for window_id in ("2026-03-02T10:00", "2026-03-02T11:00"):
            original = await WindowReader(database, rules).read(window_id)
            assert original is not None
            assert await WindowReader(other, rules).read(window_id) == original


async def test_a_line_is_one_trajectory_with_its_outcomes(database: Database, tmp_path: Path) -> None:
    await fill(database)
    await export(database, tmp_path / "t.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert [(line["trajectory"]["windowId"], len(line["outcomes"])) for line in lines] == [
        ("0", 0),
        ("2026-03-02 12:00:00", 0),
        *[("2026-03-02T10:00", 2)] * 2,
        ("2026-03-02T10:00:00.000Z", 2),
        *[("2026-03-02T12:00", 0)] * 3,
        ("garbage", 2),
        (None, 1),
    ]
    assert lines[0]["agent"] == {"id": "agent-1", "username": "agent-1", "displayName": "Agent-1"}


async def test_importing_twice_changes_nothing(database: Database, tmp_path: Path) -> None:
    await fill(database)
    await export(database, tmp_path / "t.jsonl")
    assert (await import_traces(database, tmp_path / "t.jsonl")).new == 0
    await export(database, tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "t.jsonl").read_bytes()


async def test_untrained_forgets_what_training_wrote(
    database: Database, make_database: MakeDatabase, template_database: str, tmp_path: Path
) -> None:
    await insert_trajectory(
        database.pool, window_id="2026-03-02T10:00", usedInTraining=True, trainedInBatch="b1", aiJudgeReward=0.7
    )
    await export(database, tmp_path / "t.jsonl")
    async with open_database(make_database(template_database), tmp_path) as other:
        await import_traces(other, tmp_path / "t.jsonl", untrained=True)
        row = await other.pool.fetchrow('SELECT "usedInTraining", "trainedInBatch", "aiJudgeReward" FROM trajectories')
    assert row is not None
    assert tuple(row) == (False, None, None)


async def test_lines_written_by_hand_need_only_what_matters(database: Database, tmp_path: Path) -> None:
    line = {
        "trajectory": {
            "trajectoryId": "t1",
            "agentId": "ada",
            "startTime": "2026-03-02T10:05:00",
            "windowId": "2026-03-02T10:00",
            "stepsJson": [{"stepNumber": 0, "llmCalls": [], "action": {"actionType": "BUY", "success": True}}],
        },
        "outcomes": [{"windowId": "2026-03-02T10:00", "stockTicker": "ACME", "startPrice": 1, "endPrice": 2}],
    }
    (tmp_path / "t.jsonl").write_text(json.dumps(line) + "\n\n")
    assert await import_traces(database, tmp_path / "t.jsonl") == Passed(1, 1, 1, new=1)
    await import_traces(database, tmp_path / "t.jsonl")
    window = await WindowReader(database, Rules(now=END)).read("2026-03-02T10:00")
    assert window is not None
    assert [action.kind for action in window.trajectories[0].actions] == ["BUY"]
    assert [stock.ticker for stock in window.outcomes.stocks] == ["ACME"]


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        ("2026-11-15T10:05:00+02:00", datetime(2026, 11, 15, 8, 5)),
        ("2026-11-15T10:05:00.123-0130", datetime(2026, 11, 15, 11, 35, 0, 123_000)),
        ("2026-11-15T10:05:00Z", datetime(2026, 11, 15, 10, 5)),
        ("2026-11-15 10:05", datetime(2026, 11, 15, 10, 5)),
    ],
)
async def test_a_time_with_a_zone_is_stored_in_utc(
    database: Database, tmp_path: Path, written: str, stored: datetime
) -> None:
    row = {"trajectoryId": "t1", "agentId": "ada", "startTime": written, "stepsJson": "[]"}
    outcome = {"windowId": "2026-11-15T08:00", "stockTicker": "ACME", "createdAt": written}
    (tmp_path / "t.jsonl").write_text(json.dumps({"trajectory": row, "outcomes": [outcome]}))
    await import_traces(database, tmp_path / "t.jsonl")
    times = await database.pool.fetchrow('SELECT "startTime", "endTime", "createdAt", "updatedAt" FROM trajectories')
    assert times is not None
    assert set(times) == {stored}
    assert await database.pool.fetchval('SELECT "createdAt" FROM market_outcomes') == stored


async def test_a_database_that_does_not_answer_is_not_taken_for_a_file_that_cannot_be_written(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    await fill(database)
    async with database.pool.acquire() as connection, connection.transaction():
        await connection.execute("LOCK TABLE trajectories")
        behind_a_pooler = f"{database_url}&pgbouncer=true"  # where the timeout is ours, not the server's
        quick = timedelta(seconds=0.3)
        with pytest.raises(DatabaseError, match="did not answer in time"):
            async with open_database(behind_a_pooler, tmp_path, statement_timeout=quick) as slow:
                await export(slow, tmp_path / "t.jsonl")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["traces.jsonl", "traces.jsonl.gz"])
async def test_a_full_disk_is_a_sentence_that_names_the_file(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    await fill(database)
    opened = Path.open
    monkeypatch.setattr(Path, "open", lambda *_: opened(Path("/dev/full"), "wb"))
    with pytest.raises(ConfigurationError, match=rf"{name} cannot be written \(No space left on device\)"):
        await export(database, tmp_path / name)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{not json", "line 1 is not a trace"),
        ('{"trajectory": []}', "line 1 is not a trace"),
        ('{"trajectory": {"agentId": "a", "startTime": "x", "stepsJson": "[]"}}', "line 1 has no trajectoryId"),
    ],
)
async def test_what_is_no_trace_is_named_by_its_line(
    database: Database, tmp_path: Path, text: str, sentence: str
) -> None:
    (tmp_path / "t.jsonl").write_text(text)
    with pytest.raises(ConfigurationError, match=sentence):
        await import_traces(database, tmp_path / "t.jsonl")


@pytest.mark.parametrize("damage", ["cut", "scrambled"])
async def test_a_damaged_archive_is_a_sentence(database: Database, tmp_path: Path, damage: str) -> None:
    packed = bytearray(gzip.compress(b"{}" * 1000))
    if damage == "cut":
        del packed[-10:]
    else:
        packed[10:20] = b"\xff" * 10
    (tmp_path / "t.jsonl.gz").write_bytes(packed)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        await import_traces(database, tmp_path / "t.jsonl.gz")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"startTime": "soon"}, "timestamp"),
        ({"windowHours": "two"}, "integer"),
        ({"agentId": "a\0"}, "Unicode"),
        ({"windowId": "w" * 60}, "too long"),
    ],
)
async def test_a_value_that_no_column_takes_is_named_by_its_line_and_costs_nothing_else(
    database: Database, tmp_path: Path, wrong: dict[str, Any], said: str
) -> None:
    def line(number: int, **changes: Any) -> str:
        row = {"trajectoryId": f"t{number}", "agentId": "ada", "startTime": "2026-03-02T10:05:00", "stepsJson": "[]"}
        return json.dumps({"trajectory": row | changes}) + "\n"

    file = tmp_path / "t.jsonl"
    file.write_text("".join(line(number, **(wrong if number == 5 else {})) for number in range(1, 9)))
    with pytest.raises(ConfigurationError, match=f"line 5 holds what no column takes: .*{said}"):
        await import_traces(database, file)
    file.write_text("".join(line(number) for number in range(1, 9)))
    assert (await import_traces(database, file)).new == 4, "the lines before the bad one were imported"


async def test_bytes_that_are_no_text_are_named_by_their_line(database: Database, tmp_path: Path) -> None:
    row = b'{"trajectory": {"trajectoryId": "t1", "agentId": "a\xff", "startTime": "2026-03-02", "stepsJson": "[]"}}'
    (tmp_path / "t.jsonl").write_bytes(b"\n" + row)
    with pytest.raises(ConfigurationError, match="line 2 is not a trace"):
        await import_traces(database, tmp_path / "t.jsonl")


async def test_an_export_of_nothing_leaves_no_file(database: Database, tmp_path: Path) -> None:
    with pytest.raises(NotEnoughData):
        await export(database, tmp_path / "t.jsonl")
    assert list(tmp_path.iterdir()) == []


async def test_a_role_that_may_not_read_names_can_export(database: Database, database_url: str, tmp_path: Path) -> None:
    await fill(database)
    role = f"exporter_{database_url.split('test_')[1][:8]}"
    await database.pool.execute(f"CREATE ROLE {role} LOGIN; GRANT SELECT ON trajectories, market_outcomes TO {role}")
    try:
        async with open_database(database_url.replace("postgres@", f"{role}@"), tmp_path) as limited:
            assert (await export(limited, tmp_path / "t.jsonl")).trajectories == 10
    finally:
        await database.pool.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def traces(url: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "traces.py"), *arguments]
    environment = {"DATABASE_URL": url, "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)


async def test_the_command_exports_and_imports(
    database: Database, database_url: str, make_database: MakeDatabase, tmp_path: Path
) -> None:
    await fill(database)
    exported = traces(database_url, tmp_path, "export", "week.jsonl.gz", "--until", "2026-03-03T00:00", "--json")
    assert exported.returncode == 0, exported.stderr
    summary: dict[str, Any] = json.loads(exported.stdout)
    assert summary == {"action": "export", "file": "week.jsonl.gz", "trajectories": 10, "windows": 3, "outcomes": 3}

    copy = make_database()  # empty: the import brings it up to date first
    imported = traces(copy, tmp_path, "import", "week.jsonl.gz")
    assert imported.returncode == 0, imported.stderr
    assert "10 of them new" in imported.stdout
    connection = await asyncpg.connect(copy)
    assert await connection.fetchval("SELECT count(*) FROM trajectories") == 10
    await connection.close()


def test_the_command_names_a_file_that_is_not_there(database_url: str, tmp_path: Path) -> None:
    done = traces(database_url, tmp_path, "import", "nowhere.jsonl")
    assert done.returncode == 2
    assert "nowhere.jsonl cannot be read" in done.stderr
