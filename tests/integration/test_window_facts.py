"""Facts in a real database: written again, told by a view, sent to the console, copied with traces, and late."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from data_bridge.agents import agent_ids
from data_bridge.database import Database
from data_bridge.errors import ConfigurationError
from data_bridge.facts import record_facts
from data_bridge.models import Fact, WindowOutcomes
from data_bridge.outcomes import record_outcomes
from data_bridge.quality import Reason, Rules, check
from data_bridge.reader import WindowReader
from data_bridge.survey import survey
from data_bridge.traces import export_traces, import_traces
from data_bridge.window_ids import last_closed_windows, start_of
from data_bridge.worlds.load import load_world
from tests.builders_worlds import desk, desk_facts, record_log
from tests.integration.test_worlds import NOW
from trainer.config.sections import GroupingSettings
from trainer.judge.reward import MEASURED, RewardJudge
from trainer.plan.grouping import form_groups
from trainer.run.judge_reach import doubts_of
from trainer.types import JudgedGroup

[WINDOW] = last_closed_windows(1, NOW)
RULES = Rules(now=NOW, world=load_world("desk"))


async def read(database: Database, rules: Rules = RULES) -> WindowOutcomes:
    window = await WindowReader(database, rules).read(WINDOW)
    assert window is not None
    return window.outcomes


async def recorded(database: Database, folder: Path) -> None:
    await record_log(database, folder, [WINDOW], desk, desk_facts, NOW)


async def test_a_fact_is_written_once_corrected_in_place_and_keeps_what_is_not_said(database: Database) -> None:
    first = [Fact("T-1", "resolved", 0.0, 1.0, "by phone")]
    assert await record_facts(database, WINDOW, first, now=NOW) == 1
    assert await record_facts(database, WINDOW, first, now=NOW) == 0
    assert await record_facts(database, WINDOW, [Fact("T-1", "resolved", after=0.0)], now=NOW) == 1
    row = await database.pool.fetchrow(
        "SELECT value_before, value_after, text, corrections FROM hindsight.window_facts"
    )
    assert row is not None
    assert tuple(row) == (0.0, 0.0, "by phone", 1)
    assert (
        await record_outcomes(database, WINDOW, WindowOutcomes(facts=(Fact("T-2", "reopened", after=1.0),)), now=NOW)
        == 1
    )


async def test_what_cannot_be_known_or_stored_is_refused_in_one_sentence(database: Database) -> None:
    future = NOW + timedelta(days=1)
    for window, fact, words in (
        (f"{future:%Y-%m-%dT%H}:00", Fact("T-1", "resolved", after=1.0), "has not ended yet"),
        ("yesterday", Fact("T-1", "resolved", after=1.0), "is not a window id"),
        (WINDOW, Fact("", "resolved", after=1.0), "1 to 200 characters"),
        (WINDOW, Fact("T-1", "resolved", after=float("nan")), "not a finite number"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            await record_facts(database, window, [fact], now=NOW)


async def test_a_view_is_read_instead_and_two_of_its_rows_may_disagree(database: Database, tmp_path: Path) -> None:
    await recorded(database, tmp_path)
    await database.pool.execute(
        f"""CREATE VIEW support AS SELECT '{WINDOW}' AS window_id, subject, 'resolved' AS kind, value AS value_after
        FROM (VALUES ('T-0', 1), ('T-9', 1), ('T-9', 0)) AS told(subject, value)"""
    )
    outcomes = await read(database, Rules(now=NOW, world=RULES.world, facts_view="public.support"))
    assert [fact.subject for fact in outcomes.facts] == ["T-0"]
    assert outcomes.doubts.contradictory == 1
    for view in ("nothing", "support; SELECT 1"):
        with pytest.raises(ConfigurationError, match="--facts-view"):
            await read(database, Rules(now=NOW, world=RULES.world, facts_view=view))


async def test_late_facts_change_what_is_judged_and_not_what_was_trained(database: Database, tmp_path: Path) -> None:
    await recorded(database, tmp_path)
    before = await judged(database)
    await database.pool.execute('UPDATE trajectories SET "usedInTraining" = true WHERE "agentId" = \'dan\'')
    late = [Fact("cleo/T-0", "resolved", 0.0, 2.0)]
    assert await record_facts(database, WINDOW, late, now=NOW) == 1
    after = await judged(database)
    assert after.verdict_key != before.verdict_key
    scores = {one.trajectory_id: one.score for one in after.verdicts}
    assert max(scores, key=lambda name: scores[name]).endswith("cleo")
    surveyed = await survey(WindowReader(database, RULES), RULES)
    assert surveyed.totals.reasons[Reason.ALREADY_USED] == 1
    assert "came after their window had closed" in (doubts_of(surveyed.totals) or "")


async def judged(database: Database) -> JudgedGroup:
    window = await WindowReader(database, RULES).read(WINDOW)
    assert window is not None
    [group] = form_groups(check(window, RULES), GroupingSettings(), seed=0).groups
    found = await RewardJudge().judge(group)
    assert isinstance(found, JudgedGroup)
    return found


async def test_a_member_that_cannot_be_measured_costs_itself(database: Database, tmp_path: Path) -> None:
    await recorded(database, tmp_path)
    await database.pool.execute(
        "DELETE FROM hindsight.window_facts WHERE subject LIKE 'ada/%' OR kind = 'right_action'"
    )
    verdict = await judged(database)
    assert [one.reason for one in verdict.left_out] == [Reason.NOT_MEASURED]
    assert len(verdict.verdicts) == 3
    surveyed = await survey(WindowReader(database, RULES), RULES, is_measured=MEASURED)
    assert surveyed.totals.reasons == {Reason.NOT_MEASURED: 1}
    assert surveyed.totals.usable == 3


async def test_facts_travel_with_traces(database: Database, tmp_path: Path) -> None:
    await recorded(database, tmp_path)
    before = await read(database)
    file, first = tmp_path / "week.jsonl", start_of(WINDOW)
    await export_traces(database, file, first=first, end=datetime.fromisoformat(f"{NOW:%Y-%m-%dT%H}:00+00:00"))
    await database.pool.execute("DELETE FROM hindsight.window_facts")
    await database.pool.execute("DELETE FROM llm_call_logs")
    await database.pool.execute("DELETE FROM trajectories")
    await import_traces(database, file)
    assert await read(database) == before


async def test_agents_are_found_by_any_name_and_made_only_in_our_own_tables(database: Database) -> None:
    assert await agent_ids(database, ["new"]) == {"new": "new"}
    await database.pool.execute(
        """INSERT INTO "User" (id, username) VALUES ('u-1', 'ada'), ('u-2', 'same'), ('u-3', 'same')"""
    )
    assert await agent_ids(database, ["ada", "u-2"]) == {"ada": "u-1", "u-2": "u-2"}
    with pytest.raises(ConfigurationError, match="Several of the game's users"):
        await agent_ids(database, ["same"])
    await database.pool.execute("UPDATE hindsight.migrations SET skipped = true WHERE number = 1")
    with pytest.raises(ConfigurationError, match="The game has no user 'new'"):
        await agent_ids(database, ["new"])
