"""No verdict is paid for twice: not after a crash, not in the next run, not by two hosts at once."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from data_bridge.database import Database
from data_bridge.quality import Reason
from tests.builders import NOW, hours_before, insert_window
from tests.builders_judge import AT_ONCE, SECRETS, judge_settings, make_group
from tests.fakes import judge_server as fake
from tests.fakes.judge_server import JudgeServer
from trainer.judge.open import open_judge
from trainer.judge.prompt import PROMPT_VERSION
from trainer.judge.ruler import LlmJudge
from trainer.judge.view import view_of
from trainer.types import Group, JudgedGroup, JudgeFailure

ROOT = Path(__file__).resolve().parents[2]


@asynccontextmanager
async def judge_at(
    server: JudgeServer, database: Database, run_id: str = "run-1", *, lease: float = 30, **changes: Any
) -> AsyncIterator[LlmJudge]:
    settings = judge_settings(server.base_url, **changes)
    opened = open_judge(settings, SECRETS, database, run_id, retry=AT_ONCE, lease=timedelta(seconds=lease))
    async with opened as judge:
        assert isinstance(judge, LlmJudge)
        yield judge


def verdicts(result: JudgedGroup | JudgeFailure) -> dict[str, tuple[float, float, str]]:
    assert isinstance(result, JudgedGroup), result
    return {
        verdict.trajectory_id: (verdict.score, verdict.uncertainty, verdict.explanation) for verdict in result.verdicts
    }


async def test_a_second_run_makes_no_call_and_gives_the_same_verdicts(database: Database) -> None:
    with JudgeServer() as server:
        async with judge_at(server, database) as judge:
            first = await judge.judge(make_group())
        async with judge_at(server, database, "run-2") as judge:
            second = await judge.judge(make_group())
    assert verdicts(first) == verdicts(second)
    assert isinstance(second, JudgedGroup)
    assert second.cached
    assert len(server.requests) == 2


async def test_a_group_listed_in_another_order_is_the_same_group(database: Database) -> None:
    group = make_group()
    turned = Group("another-name", group.window_id, group.trajectories[::-1], group.outcomes)
    with JudgeServer() as server:
        async with judge_at(server, database) as judge:
            first, second = await judge.judge(group), await judge.judge(turned)
    assert verdicts(first) == verdicts(second)
    assert isinstance(second, JudgedGroup)
    assert [verdict.trajectory_id for verdict in second.verdicts] == ["trajectory-3", "trajectory-2", "trajectory-1"]
    assert len(server.requests) == 2


async def test_more_orders_pay_only_for_the_new_ones(database: Database) -> None:
    with JudgeServer() as server:
        async with judge_at(server, database) as judge:
            await judge.judge(make_group())
        async with judge_at(server, database, judge_orders=3) as judge:
            result = await judge.judge(make_group())
    assert isinstance(result, JudgedGroup)
    assert not result.cached
    assert len(server.requests) == 3


async def test_a_changed_rubric_judge_or_trajectory_is_asked_about_anew(database: Database, tmp_path: Path) -> None:
    own = tmp_path / "own.md"
    own.write_text("Reward patience.")
    group = make_group()
    changed_row = msgspec.structs.replace(group.trajectories[0], content_hash="edited")
    changed = Group(group.group_id, group.window_id, (changed_row, *group.trajectories[1:]), group.outcomes)
    with JudgeServer() as server:
        cases: list[tuple[dict[str, Any], Group]] = [
            ({}, group),
            ({"rubric": str(own)}, group),
            ({"judge_model": "another"}, group),
            ({}, changed),
        ]
        for settings, judged in cases:
            async with judge_at(server, database, **settings) as judge:
                await judge.judge(judged)
        assert len(server.requests) == 8
        own.write_text("Reward haste.")
        async with judge_at(server, database, rubric=str(own)) as judge:
            await judge.judge(group)
        assert len(server.requests) == 10


async def test_what_was_asked_and_answered_can_be_read_in_the_database(database: Database) -> None:
    with JudgeServer(script=[fake.score(7), fake.busy()]) as server:
        async with judge_at(server, database, judge_concurrency=1) as judge:
            result = await judge.judge(make_group())
    assert isinstance(result, JudgedGroup)
    rows = await database.pool.fetch("SELECT * FROM hindsight.verdicts ORDER BY order_number")
    assert [row["order_number"] for row in rows] == [0, 1]
    assert {row["verdict_key"] for row in rows} == {result.verdict_key}
    first = rows[0]
    assert (first["judge"], first["rubric"], first["prompt_version"]) == ("judge", "trading", PROMPT_VERSION)
    assert first["rubric_version"] == result.identity.rubric_version
    assert len(first["prompt_hash"]) == 32
    assert first["prompt_hash"] != rows[1]["prompt_hash"]
    assert (first["prompt_tokens"], first["completion_tokens"]) == (1000, 100)
    assert first["cost_usd"] == pytest.approx(0.002)
    assert {scored["trajectory_id"]: scored["explanation"] for scored in json.loads(first["scores"])} == {
        "trajectory-1": "It earned 0.4517.",
        "trajectory-2": "It earned 0.625.",
        "trajectory-3": "It earned 0.7983.",
    }
    calls = await database.pool.fetch("SELECT result, cost_usd, prompt_hash FROM hindsight.judge_calls ORDER BY result")
    assert [call["result"] for call in calls] == ["bad_reply", "busy", "ok", "ok"]
    assert sum(call["cost_usd"] for call in calls) == pytest.approx(result.cost_usd) == pytest.approx(0.006)
    asked_again = [call["prompt_hash"] for call in calls[2:]]
    assert calls[0]["prompt_hash"] in asked_again, "the same question under other ids has the same hash"
    assert await database.pool.fetchval("SELECT count(*) FROM hindsight.verdict_claims") == 0


async def test_a_failed_group_leaves_no_verdict_and_no_claim_and_is_asked_again_in_the_next_run(
    database: Database,
) -> None:
    with JudgeServer(script=[fake.score(7)] * 10) as server:
        async with judge_at(server, database, judge_orders=1) as judge:
            result = await judge.judge(make_group())
            assert isinstance(result, JudgeFailure)
            assert result.reason is Reason.JUDGE_BAD_REPLY
        assert await database.pool.fetchval("SELECT count(*) FROM hindsight.verdicts") == 0
        assert await database.pool.fetchval("SELECT count(*) FROM hindsight.verdict_claims") == 0
        async with judge_at(server, database, judge_orders=1) as judge:
            assert isinstance(await judge.judge(make_group()), JudgedGroup)


async def test_two_hosts_at_once_share_the_calls(database: Database) -> None:
    groups = [make_group(float(number), float(-number)) for number in range(1, 9)]
    with JudgeServer(otherwise=fake.honest(delay=0.05)) as server:
        async with judge_at(server, database, "host-a") as one, judge_at(server, database, "host-b") as other:
            both = await asyncio.gather(*(judge.judge(group) for group in groups for judge in (one, other)))
    assert len(server.requests) == 2 * len(groups)
    for here, there in zip(both[::2], both[1::2], strict=True):
        assert verdicts(here) == verdicts(there)
    paid = {one.usage.calls, other.usage.calls}
    assert one.usage.calls + other.usage.calls == 2 * len(groups), paid


async def test_a_claim_of_a_dead_host_runs_out(database: Database) -> None:
    with JudgeServer() as server:
        async with judge_at(server, database, judge_orders=1) as judge:
            key = view_of(make_group()).key(judge.identity)
            await database.pool.execute(
                "INSERT INTO hindsight.verdict_claims VALUES ($1, 0, 'dead', now() + interval '1 second')", key
            )
            started = time.monotonic()
            result = await judge.judge(make_group())
            assert time.monotonic() - started >= 0.9
    assert isinstance(result, JudgedGroup)
    assert len(server.requests) == 1


async def test_a_claim_is_kept_alive_as_long_as_its_call_takes(database: Database) -> None:
    with JudgeServer(otherwise=fake.honest(delay=1.5)) as server:
        async with (
            judge_at(server, database, "a", lease=0.6, judge_orders=1) as one,
            judge_at(server, database, "b", lease=0.6, judge_orders=1) as other,
        ):
            both = await asyncio.gather(one.judge(make_group()), other.judge(make_group()))
    assert len(server.requests) == 1
    assert verdicts(both[0]) == verdicts(both[1])


async def test_money_spent_before_a_crash_counts_towards_the_ceiling(database: Database) -> None:
    with JudgeServer() as server:
        async with judge_at(server, database, judge_orders=1) as judge:
            await judge.judge(make_group())
        async with judge_at(server, database, judge_orders=1, max_cost=0.01) as judge:
            assert judge.budget.spent == pytest.approx(0.002)
        async with judge_at(server, database, "another run", judge_orders=1, max_cost=0.01) as judge:
            assert judge.budget.spent == 0


async def test_a_run_killed_halfway_and_started_again_makes_only_the_missing_calls(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    windows = hours_before(number=6)
    for window_id in windows:
        await insert_window(database.pool, window_id)
    with JudgeServer(otherwise=fake.honest(delay=0.15)) as server:
        command = [
            sys.executable,
            str(ROOT / "scripts" / "judge_windows.py"),
            *("--until", NOW.isoformat(), "--judge-model", "judge", "--judge-base-url", server.base_url),
            *("--judge-concurrency", "1", "--home", str(tmp_path), "--json"),
        ]
        environment = {"DATABASE_URL": database_url, "JUDGE_API_KEY": "sk-none", "PATH": "/usr/bin:/bin"}
        log = tmp_path / "log"
        with log.open("w") as stderr:
            first = await asyncio.create_subprocess_exec(
                *command, env=environment, stdout=subprocess.DEVNULL, stderr=stderr
            )
        while len(server.requests) < 5:
            assert first.returncode is None, log.read_text()
            await asyncio.sleep(0.01)
        first.kill()
        await first.wait()
        stored = await database.pool.fetchval("SELECT count(*) FROM hindsight.verdicts")
        assert 3 <= stored <= 5
        await asyncio.sleep(1)  # what was in flight has arrived by now
        before = len(server.requests)
        # The dead process's claim would run out by itself, after its lease.
        await database.pool.execute("UPDATE hindsight.verdict_claims SET expires_at = now()")
        second = await asyncio.to_thread(subprocess.run, command, env=environment, capture_output=True, check=False)
        assert second.returncode == 0, second.stderr.decode()
        assert len(server.requests) - before == 2 * len(windows) - stored
        third = await asyncio.to_thread(subprocess.run, command, env=environment, capture_output=True, check=False)
        assert third.returncode == 0
        assert len(server.requests) - before == 2 * len(windows) - stored
    assert json.loads(second.stdout)["windows"] == json.loads(third.stdout)["windows"]
