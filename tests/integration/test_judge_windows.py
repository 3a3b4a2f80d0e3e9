"""judge_windows as a user runs it, on a real Postgres and against a real endpoint."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from data_bridge.database import Database
from tests.builders import NOW, hours_before, insert_trajectory, insert_window
from tests.builders_judge import API_KEY
from tests.fakes import judge_server as fake
from tests.fakes.judge_server import JudgeServer
from trainer.cli.judge_windows import main


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Awaitable[Done]]


@pytest.fixture
def run(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command in this process: what it prints and returns."""
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("JUDGE_API_KEY", API_KEY)
    monkeypatch.setenv("JUDGE_PRICE", "1/10")

    async def call(*flags: str, server: JudgeServer | None = None) -> Done:
        chosen = ["--judge", "outcome"]
        if server is not None:
            chosen = ["--judge-model", "judge", "--judge-base-url", server.base_url]
        arguments = ["--until", NOW.isoformat(), "--home", str(tmp_path), *chosen, *flags]
        code = await asyncio.to_thread(main, arguments)
        return Done(code, *capsys.readouterr())

    return call


async def test_scores_and_explanations_are_shown_for_one_window(database: Database, run: Run) -> None:
    (window_id,) = hours_before(number=1)
    await insert_window(database.pool, window_id)
    with JudgeServer() as server:
        done = await run("--window", window_id, server=server)
    assert done.returncode == 0, done.stderr
    assert "3 scores from 0.62 to 0.66" in done.stdout
    assert "0.66 ±0.00  Agent-3  P&L +20.00" in done.stdout
    assert "It earned 0.6624" in done.stdout
    assert "Judged by judge with the rubric trading" in done.stdout
    assert "1 group judged (0 from earlier verdicts), failed: none; 2 calls, 2,200 tokens, $0.0040" in done.stdout


async def test_json_has_every_window_in_order_with_what_was_left_out(database: Database, run: Run) -> None:
    windows = hours_before(number=3)
    for window_id in windows:
        await insert_window(database.pool, window_id)
    await insert_trajectory(database.pool, "agent-9", window_id=windows[0], steps_json="{broken")
    done = await run("--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert [window["window"] for window in result["windows"]] == windows
    assert result["windows"][0]["left_out"] == {"malformed_json": 1}
    assert result["judge"]["is_llm"] is False
    assert "not an LLM" in result["judge"]["sentence"]
    (group,) = result["windows"][1]["groups"]
    assert sorted((verdict["agent"], verdict["score"]) for verdict in group["verdicts"]) == [
        ("agent-1", 0.25),
        ("agent-2", pytest.approx(0.625)),
        ("agent-3", 1.0),
    ]


async def test_the_cost_is_estimated_before_anything_is_paid(database: Database, run: Run) -> None:
    for window_id in hours_before(number=2):
        await insert_window(database.pool, window_id)
    with JudgeServer() as server:
        done = await run("--max-cost", "0", server=server)
        assert not server.requests
    estimated = re.search(
        r"^Estimate: at most 4 calls, [\d,]+ tokens, about \$0\.\d\d \(\$0\.\d\d if one order .*\); ",
        done.stderr,
        re.MULTILINE,
    )
    assert estimated is not None, done.stderr
    assert "Estimate" not in (await run()).stderr


async def test_held_out_windows_are_judged_when_asked_for(database: Database, run: Run) -> None:
    windows = hours_before(number=30)
    for window_id in windows:
        await insert_window(database.pool, window_id)
    scores = "  3 scores from 0.25 to 1.00"
    for flags, wanted in ((("--held-out",), windows[15:]), (("--window", windows[-1]), windows[-1:])):
        done = await run(*flags)
        assert done.returncode == 0, done.stderr
        assert sorted(re.findall(f"^(.*){scores}", done.stdout, re.MULTILINE)) == wanted
    done = await run()
    assert not any(f"{window_id}{scores}" in done.stdout for window_id in windows[15:])
    assert f"{windows[0]}{scores}" in done.stdout


async def test_nothing_is_written_into_the_game_unless_asked_for(database: Database, run: Run) -> None:
    (window_id,) = hours_before(number=1)
    await insert_window(database.pool, window_id)
    before = await database.pool.fetch('SELECT * FROM trajectories ORDER BY "trajectoryId"')
    assert (await run()).returncode == 0
    assert await database.pool.fetch('SELECT * FROM trajectories ORDER BY "trajectoryId"') == before
    assert await database.pool.fetchval("SELECT count(*) FROM reward_judgments") == 0


async def test_write_back_fills_the_games_columns_and_can_be_repeated(database: Database, run: Run) -> None:
    (window_id,) = hours_before(number=1)
    ids = await insert_window(database.pool, window_id)
    for _ in range(2):
        with JudgeServer() as server:
            done = await run("--write-back", server=server)
        assert done.returncode == 0, done.stderr
    rows = await database.pool.fetch('SELECT * FROM trajectories ORDER BY "trajectoryId"')
    assert [round(row["aiJudgeReward"], 4) for row in rows] == [0.625, 0.6437, 0.6624]
    assert rows[2]["aiJudgeReasoning"] == "It earned 0.6624."
    now = datetime.now(UTC).replace(tzinfo=None)
    assert all(now - row["judgedAt"] < timedelta(minutes=1) for row in rows)
    assert all(now - row["updatedAt"] < timedelta(minutes=1) for row in rows)
    assert not any(row["usedInTraining"] for row in rows)
    judgments = await database.pool.fetch('SELECT * FROM reward_judgments ORDER BY "rank"')
    assert [row["trajectoryId"] for row in judgments] == ids[::-1]
    best = judgments[0]
    assert (best["judgeModel"], best["rank"], best["groupId"]) == ("judge", 1, f"{window_id}/1")
    assert best["judgeVersion"].startswith("trading@3-")
    assert best["overallScore"] == best["normalizedScore"] == pytest.approx(0.6624)
    assert json.loads(best["criteriaJson"])["rubric"] == "trading"


async def test_a_judge_that_fails_too_often_ends_with_exit_4_and_no_score(database: Database, run: Run) -> None:
    (window_id,) = hours_before(number=1)
    await insert_window(database.pool, window_id)
    with JudgeServer(otherwise=fake.score(7)) as server:
        done = await run("--write-back", "--judge-orders", "1", server=server)
    assert done.returncode == 4
    assert "judge_bad_reply" in done.stdout
    assert "error: The judge failed on 1 of 1 group" in done.stderr
    assert await database.pool.fetchval('SELECT count(*) FROM trajectories WHERE "aiJudgeReward" IS NOT NULL') == 0


async def test_a_wrong_key_is_one_sentence_and_exit_2(database: Database, run: Run) -> None:
    for window_id in hours_before(number=3):
        await insert_window(database.pool, window_id)
    with JudgeServer(otherwise=fake.error(401, f"Incorrect API key provided: {API_KEY}")) as server:
        done = await run("--judge-concurrency", "1", server=server)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("error: 127.0.0.1 does not accept the judge's key (401)")
    assert len(server.requests) == 1


async def test_the_key_is_in_no_output_and_no_table_after_a_full_run(
    database: Database, run: Run, tmp_path: Path
) -> None:
    for window_id in hours_before(number=4):
        await insert_window(database.pool, window_id)
    leaking = [
        fake.error(429, f"slow down, {API_KEY}", headers={"Retry-After": "0.01"}),
        fake.error(500, f"Authorization: Bearer {API_KEY}"),
        fake.error(400, f"bad request from {API_KEY}: json_schema"),
        fake.score(7),
    ]
    with JudgeServer(script=leaking) as server:
        done = await run("--debug", "--write-back", "--json", server=server)
    with JudgeServer(otherwise=fake.error(403, f"{API_KEY} may not")) as refused:
        failed = await run("--debug", "--rubric", str(_rubric(tmp_path)), server=refused)
    assert done.returncode == 0, done.stderr
    assert failed.returncode == 2
    assert any(request.headers["authorization"] == f"Bearer {API_KEY}" for request in server.requests)
    for text in (done.stdout, done.stderr, failed.stdout, failed.stderr):
        assert API_KEY not in text
    recorded = await database.pool.fetch("SELECT fault FROM hindsight.judge_calls WHERE fault LIKE '%[secret]%'")
    assert len(recorded) >= 3, "the endpoint's words are kept, the key in them is not"
    dumped = await _everything(database)
    assert "It earned" in dumped
    assert API_KEY not in dumped
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or API_KEY.encode() not in file.read_bytes()


async def test_a_cost_that_is_not_known_is_never_shown_as_nothing(
    database: Database, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    await insert_window(database.pool, hours_before(number=1)[0])
    monkeypatch.delenv("JUDGE_PRICE")
    with JudgeServer() as server:
        shown, as_json = await run(server=server), await run("--json", server=server)
    assert shown.returncode == as_json.returncode == 0
    assert "$" not in shown.stdout + shown.stderr
    assert "cost unknown (set JUDGE_PRICE)" in shown.stdout
    assert json.loads(as_json.stdout)["usage"]["cost_usd"] is None


async def test_what_is_no_window_id_is_one_sentence(run: Run) -> None:
    done = await run("--window", "yesterday")
    assert done.returncode == 2
    assert "--window: write the id as" in done.stderr


def _rubric(folder: Path) -> Path:
    own = folder / "own.md"
    own.write_text("Reward patience.")
    return own


async def _everything(database: Database) -> str:
    """Every row of every table, as text."""
    tables = await database.pool.fetch(
        "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname IN ('public', 'hindsight')"
    )
    rows = [await database.pool.fetch(f"SELECT t::text FROM {table[0]} AS t") for table in tables]
    return "\n".join(str(row[0]) for found in rows for row in found)


_WITHOUT_BOOKS: Any = {"finalPnL": None, "finalBalance": None}
_OTHER_MARKET = """
UPDATE trajectories SET "stepsJson" =
    regexp_replace("stepsJson", '"ticker": *"[^"]+"', '"ticker":"NONE"', 'g')
WHERE "windowId" = $1 AND NOT "agentId" = ANY($2)
"""
_NO_BOOKS = """
UPDATE trajectories SET "stepsJson" = regexp_replace("stepsJson", '"agentPnL": *[-0-9.e]+', '"agentPnL":null', 'g')
"""


async def test_every_window_with_two_measurable_agents_is_judged(database: Database, run: Run) -> None:
    """The market engine's rows have no P&L, and many of its trades name no market of the window."""
    windows = hours_before(number=4)
    for number, window_id in enumerate(windows):
        await insert_window(database.pool, window_id, agents=10, **_WITHOUT_BOOKS)
        measurable = ["agent-1", "agent-2"] if number else ["agent-1"]
        await database.pool.execute(_OTHER_MARKET, window_id, measurable)
    await database.pool.execute(_NO_BOOKS)
    done = await run("--json", "--max-group", "4")
    assert done.returncode == 0, done.stderr
    found = {one["window"]: one for one in json.loads(done.stdout)["windows"]}
    for window_id in windows[1:]:
        [group] = found[window_id]["groups"]
        assert {one["agent"] for one in group["verdicts"]} == {"agent-1", "agent-2"}
        assert found[window_id]["left_out"] == {"no_pnl": 8}
    assert found[windows[0]]["groups"] == []
    assert found[windows[0]]["left_out"] == {"no_pnl": 9, "too_few_agents": 1}


async def test_it_exits_3_when_nothing_could_be_judged(database: Database, run: Run) -> None:
    (window_id,) = hours_before(number=1)
    await insert_window(database.pool, window_id, **_WITHOUT_BOOKS)
    await database.pool.execute(_OTHER_MARKET, window_id, [])
    done = await run()
    assert done.returncode == 3
    assert "Nothing could be judged (3 no_pnl)" in done.stderr
