"""One agent costs only itself: neither how long a window is nor what is read of it depends on one agent's rows."""

from __future__ import annotations

import asyncio
import json
import secrets
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_bridge.database import Database, open_database
from data_bridge.quality import CheckedWindow, Reason, Rules, check
from data_bridge.reader import WindowReader
from data_bridge.shares import MAX_LISTED, MAX_ROWS, ROWS_OF_AGENT
from data_bridge.survey_types import summarise
from tests.adversary.test_resources import MOST_MB, READS, memory_of
from tests.builders import (
    NOW,
    WINDOW,
    hours_before,
    insert_agents,
    insert_rows,
    insert_window,
    plugin_steps,
    recorder_steps,
    trajectory_row,
)
from tests.integration.test_check_windows import Call, call, fill
from trainer.cli import train_mmo
from trainer.config.sections import GroupSettings
from trainer.ledger.runs import Ledger
from trainer.plan.plan import make_plan

__all__ = ["call"]  # a fixture

RUN = "20261102-123000-abcdef"
RULES = Rules(now=NOW)
HONEST = {"agent-1", "agent-2", "agent-3"}


async def checked_windows(database: Database, rules: Rules = RULES) -> list[CheckedWindow]:
    """What a run would train: discovered as eligible, read and checked."""
    reader = WindowReader(database, rules)
    return [check(window, rules) async for window in reader.stream(await reader.discover())]


async def write(database: Database, *rows: dict[str, Any]) -> None:
    await insert_agents(database.pool, [row["agentId"] for row in rows])
    await insert_rows(database.pool, "trajectories", rows)


def usable(checked: CheckedWindow) -> set[str]:
    return {one.agent_id for one in checked.usable}


# How long a window is

WITHOUT_REPLY = json.dumps([{**step, "llmCalls": []} for step in recorder_steps()])
LONG: dict[str, list[dict[str, Any]]] = {
    "nine unreadable rows": [trajectory_row("mallory", steps_json="{{{", windowHours=168) for _ in range(9)],
    "nine readable rows of one agent": [trajectory_row("mallory", windowHours=168) for _ in range(9)],
    "unreadable rows of nine agents": [
        trajectory_row(f"mallory-{n}", steps_json="{{{", windowHours=168) for n in range(9)
    ],
    "rows without a reply of nine agents": [
        trajectory_row(f"mallory-{n}", steps_json=WITHOUT_REPLY, windowHours=168) for n in range(9)
    ],
    "agents that come first in the index": [trajectory_row(f"a-{n}", windowHours=168) for n in range(3)],
    "rows without an id": [
        trajectory_row(
            "mallory", window_id=None, windowHours=168, start_time=datetime.fromisoformat(f"{WINDOW}:20+00:00")
        )
        for _ in range(9)
    ],
}


@pytest.mark.parametrize("name", LONG)
async def test_a_claim_of_a_week_does_not_keep_a_window_open(database: Database, name: str) -> None:
    """As many or more rows say 168 hours; the honest agents' hour is over and used."""
    await insert_window(database.pool)
    await write(database, *LONG[name])
    [checked] = await checked_windows(database)
    assert checked.window.hours == 1
    assert usable(checked) >= HONEST


async def test_a_claim_of_an_hour_does_not_close_a_longer_window_early(database: Database) -> None:
    """Rows of a day that is not over would be judged without its outcome."""
    await insert_window(database.pool, windowHours=24)
    await write(database, *(trajectory_row("mallory", windowHours=1) for _ in range(9)))
    [checked] = await checked_windows(database)
    assert checked.window.hours == 24
    assert {one.reason for one in checked.excluded if one.agent_id in HONEST} == {Reason.WINDOW_OPEN}


@pytest.mark.parametrize("hours", [-(2**31), -1, 0, 169, 2**31 - 1])
async def test_a_length_that_no_window_has_is_no_vote(database: Database, hours: int) -> None:
    await insert_window(database.pool, agents=2, windowHours=2)
    await write(database, *(trajectory_row(f"mallory-{n}", windowHours=hours) for n in range(5)))
    [checked] = await checked_windows(database, replace(RULES, min_agents=2))
    assert checked.window.hours == 2


# How much of it an agent may fill

_COPIES = """
INSERT INTO trajectories SELECT (jsonb_populate_record(t, jsonb_build_object('id', 'f-' || n || '-' || w,
  'trajectoryId', 'f-' || n || '-' || w, 'windowId', w))).*
FROM trajectories t, generate_series(1, $1) n, unnest($2::text[]) w WHERE t."trajectoryId" = 'flood'
"""


async def test_a_flood_of_rows_costs_the_agent_that_writes_it(database: Database) -> None:
    """1,000 rows of one agent, in several spellings of the window's id: they are counted, few are read."""
    await insert_window(database.pool)
    await write(database, trajectory_row("mallory", trajectoryId="flood"))
    await database.pool.execute(_COPIES, 333, [WINDOW, f"{WINDOW}:00", f"{WINDOW}:00.000Z"])
    [checked] = await checked_windows(database)
    assert usable(checked) == HONEST | {"mallory"}
    left_out = [one for one in checked.excluded if one.reason is Reason.TOO_MANY_ROWS]
    assert sum(one.agent_id == "mallory" for one in checked.window.trajectories) == MAX_ROWS
    assert len(left_out) == MAX_LISTED
    assert {one.agent_id for one in left_out} == {"mallory"}
    assert f"1000 rows of the agent in this window, of at most {MAX_ROWS}" in left_out[0].detail
    assert left_out[-1].detail.endswith(f", and {1000 - MAX_ROWS - MAX_LISTED} more")


def long_row(agent: str, size: int, **columns: Any) -> dict[str, Any]:
    return trajectory_row(agent, steps=recorder_steps(1, prompt="x" * (size - 1_000)), **columns)


async def test_a_flood_of_bytes_costs_the_agent_that_writes_it(database: Database) -> None:
    rules = replace(RULES, max_bytes=100_000)
    await insert_window(database.pool)
    await write(database, *(long_row("mallory", 90_000) for _ in range(30)))
    [checked] = await checked_windows(database, rules)
    assert usable(checked) == HONEST | {"mallory"}
    assert sum(one.agent_id == "mallory" for one in checked.window.trajectories) == ROWS_OF_AGENT
    assert [one.reason for one in checked.excluded].count(Reason.OVER_SHARE) == 30 - ROWS_OF_AGENT


async def test_many_agents_that_fill_a_window_push_out_none_that_wrote_less(database: Database) -> None:
    """Forty agents, each at the limit for one row: together more than is read of a window."""
    rules = replace(RULES, max_bytes=100_000)
    await insert_window(database.pool)
    await write(database, *(long_row(f"a-{n:02}", 90_000) for n in range(40)))
    [checked] = await checked_windows(database, rules)
    assert usable(checked) >= HONEST
    assert {one.reason for one in checked.excluded} == {Reason.OVER_SHARE}


async def test_rows_of_a_prompt_of_megabytes_take_little_memory(database: Database, database_url: str) -> None:
    await insert_window(database.pool)
    _, before = memory_of(READS, database_url, WINDOW)
    await write(database, long_row("mallory", 4_900_000, trajectoryId="flood"))
    await database.pool.execute(_COPIES, 80, [WINDOW])
    said, peak = memory_of(READS, database_url, WINDOW)
    assert said == "4 duplicate_agent over_share"
    assert peak - before < MOST_MB


async def test_large_rows_behind_small_ones_take_little_memory(database: Database, database_url: str) -> None:
    """Small windows, from which a reader could guess that the next ones are small too."""
    windows = hours_before(number=90)
    for window_id in windows:
        await insert_window(database.pool, window_id, agents=1, outcomes=False)
    _, before = memory_of(READS, database_url, WINDOW)
    await write(database, long_row("mallory", 4_900_000, trajectoryId="flood"))
    await database.pool.execute(_COPIES, 2, windows[-60:])
    _, peak = memory_of(READS, database_url, WINDOW)
    assert peak - before < MOST_MB


@pytest.mark.parametrize("kind", ["usable", "unreadable"])
async def test_an_id_that_the_ledger_cannot_index_costs_its_row(database: Database, kind: str) -> None:
    """It fits the index of the game's table, but not ours, which also holds the run."""
    await insert_window(database.pool)
    text = "{{{" if kind == "unreadable" else None
    await write(database, trajectory_row("mallory", trajectoryId=secrets.token_urlsafe(2_010), steps_json=text))
    [checked] = await checked_windows(database)
    [left_out] = checked.excluded
    assert (left_out.reason, usable(checked)) == (Reason.BAD_ID, HONEST)
    plan = make_plan([summarise(checked)], GroupSettings(), seed=0)
    plan = replace(plan, excluded=(*plan.excluded, *checked.excluded))
    named = {"model": "m", "base_model": "b", "backend": "cpu", "fingerprint": "f"}
    await Ledger(database).start_run(RUN, **named, settings={}, plan=plan)
    assert await Ledger(database).exclusion_counts(RUN) == {"bad_id": 1}


@pytest.mark.parametrize("column", ["startTime", "endTime", "createdAt"])
@pytest.mark.parametrize("moment", ["20000-01-01", "4000-01-01 BC", "infinity", "-infinity"])
async def test_a_time_that_python_does_not_know_stops_nobody(database: Database, column: str, moment: str) -> None:
    await insert_window(database.pool)
    await write(database, trajectory_row("mallory", trajectoryId="m"))
    await database.pool.execute(f"""UPDATE trajectories SET "{column}" = '{moment}' WHERE "trajectoryId" = 'm'""")
    [checked] = await checked_windows(database)
    assert usable(checked) >= HONEST


# Whatever one agent writes

_SPELLINGS = st.sampled_from(
    [WINDOW, f"{WINDOW}:00Z", WINDOW.replace("T", " "), None, "", "window-7", "2026-11-02T99:00", "9999-12-31T23:00"]
)
_TEXTS = st.one_of(
    st.sampled_from(["{{{", "null", "[]", "[{}]", "[" * 500, '[{"llmCalls": [{"response": "x"}]}]', WITHOUT_REPLY]),
    st.integers(100, 30_000).map(lambda size: json.dumps(recorder_steps(1, prompt="x" * size))),
    st.integers(1, 3).map(lambda number: json.dumps(plugin_steps(number))),
    st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=20),
)
_ROWS = st.fixed_dictionaries(
    {
        "window_id": _SPELLINGS,
        "steps_json": _TEXTS,
        "windowHours": st.sampled_from([1, 1, 2, 24, 168, 169, 0, -5, 2**31 - 1]),
        "isTrainingData": st.booleans(),
        "isEvaluation": st.booleans(),
        "usedInTraining": st.booleans(),
        "finalPnL": st.one_of(st.none(), st.floats()),
        "metadataJson": st.sampled_from(["{}", "{{{", '{"role": 7}', "[]"]),
        "finalStatus": st.sampled_from(["completed", "x" * 10_000, "\x1b[2J"]),
        "createdAt": st.sampled_from([datetime(1970, 1, 1), datetime(2026, 11, 2, 11), datetime(2999, 1, 1)]),
    }
)
_NAMES = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=600)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    rows=st.lists(_ROWS, max_size=6),
    times=st.sampled_from([1, 1, 2, 40]),
    agent=st.one_of(
        st.sampled_from(["", "agent-", "agent-1 ", "\x1b[31m", "zz"]), _NAMES.filter(lambda n: n not in HONEST)
    ),
    names=st.lists(_NAMES, max_size=6),
)
def test_no_rows_of_one_agent_change_what_is_used_of_others(
    database_url: str, rows: list[dict[str, Any]], times: int, agent: str, names: list[str]
) -> None:
    """Read, checked and planned: the others' rows, the window's hours and the window itself stay as they are."""
    start = datetime.fromisoformat(f"{WINDOW}:20+00:00")
    names = [*dict.fromkeys(names), *(f"mallory-{n}" for n in range(len(rows) * times))]
    written = [
        trajectory_row(agent, **{**row, "trajectoryId": names[place * times + copy]}, start_time=start)
        for place, row in enumerate(rows)
        for copy in range(times)
    ]

    async def used() -> None:
        async with open_database(database_url, Path("unused")) as database:
            if not await database.pool.fetchval('SELECT count(*) FROM "User"'):
                await insert_window(database.pool)
            before = await _used(database)
            try:
                await write(database, *written)
                assert await _used(database) == before
            finally:
                await database.pool.execute('DELETE FROM trajectories WHERE NOT "agentId" = ANY($1)', list(HONEST))

    asyncio.run(used())


async def _used(database: Database) -> tuple[int, frozenset[str]]:
    """The hours of the honest agents' window, and who of them is in a group."""
    [checked] = await checked_windows(database, replace(RULES, max_bytes=20_000))
    plan = make_plan([summarise(checked)], GroupSettings(dropout=0.0), seed=0)
    planned = {name for window in plan.windows for group in window.groups for name in group.trajectory_ids}
    assert {one.trajectory_id for one in checked.excluded}.isdisjoint(planned)
    members = frozenset(one.agent_id for one in checked.usable if one.trajectory_id in planned) & HONEST
    return checked.window.hours, members


# What the offline judge cannot measure

UNMEASURED = [
    {**step, "environmentState": {}, "action": {**step["action"], "parameters": {"ticker": "NONE"}, "result": None}}
    for step in recorder_steps()
]


def unmeasured_windows(pool: Any, number: int = 3) -> Any:
    async def insert() -> None:
        for window_id in hours_before(number=number):
            await insert_window(pool, window_id, agents=4, steps=UNMEASURED, finalPnL=None, finalBalance=None)

    return insert()


def test_check_windows_is_not_ready_for_a_judge_that_can_measure_nothing(database_url: str, call: Call) -> None:
    """A writer that logs neither accounts nor prices: each of its windows would be lost after "Ready"."""
    fill(database_url, unmeasured_windows)
    code, out, _ = call("--judge", "outcome")
    assert code == 3
    assert "Ready" not in out
    assert "The offline judge cannot measure 12 trajectories (no_pnl)" in out
    report = json.loads(call("--judge", "outcome", "--json")[1])
    assert (report["ready"], report["unmeasured"], report["reasons"]) == (False, 12, {"no_pnl": 12})
    assert "0 of 4" not in call("--judge", "outcome", "--window", WINDOW)[1]
    code, out, _ = call("--judge-model", "gpt-5-mini")
    assert (code, "Ready for a training run." in out) == (0, True)


async def test_a_member_that_cannot_be_measured_does_not_take_its_peers_along(database: Database) -> None:
    from data_bridge.survey import survey
    from trainer.config.sections import JudgeSettings
    from trainer.judge.open import measured_by

    await insert_window(database.pool)
    await write(database, trajectory_row("mallory", steps=UNMEASURED, finalPnL=None, finalBalance=None))
    judge = JudgeSettings(judge="outcome")
    surveyed = await survey(WindowReader(database, RULES), RULES, is_measured=measured_by(judge))
    plan = make_plan(surveyed.windows, GroupSettings(dropout=0.0), seed=0)
    assert [len(group.trajectory_ids) for window in plan.windows for group in window.groups] == [3]
    assert surveyed.totals.reasons == {Reason.NO_PNL: 1}


def test_a_run_that_cannot_be_promoted_says_so_before_it_trains(
    database_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def windows(pool: Any) -> None:
        for window_id in hours_before(number=3):
            await insert_window(pool, window_id)

    fill(database_url, windows)
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.chdir(tmp_path)
    flags = ["--dry-run", "--backend", "cpu", "--judge", "outcome", "--until", NOW.isoformat()]
    said = "warning: nothing that this run trains can be promoted"
    assert train_mmo.main(flags) == 0
    assert said in capsys.readouterr().err
    assert train_mmo.main([*flags, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["warnings"][0].startswith(said.removeprefix("warning: "))
    assert train_mmo.main([*flags, "--no-promote"]) == 0
    assert said not in capsys.readouterr().err
