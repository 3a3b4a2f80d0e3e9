"""Adaptive orders over real HTTP: what they save, what they cost in certainty, and that every skipped call is known."""

from __future__ import annotations

import asyncio
from collections import Counter
from statistics import fmean
from typing import Any

import msgspec
import pytest

from data_bridge.database import Database
from data_bridge.models import EnvironmentState
from data_bridge.quality import Reason
from tests.builders import WINDOW
from tests.builders_judge import AT_ONCE, SECRETS, judge_settings, make_group, planted_groups, rank_correlation
from tests.fakes import judge_server as fake
from tests.fakes.judge_server import JudgeServer
from tests.fakes.judges_with_faults import planted
from trainer.judge.adaptive import MAX_TURNED, is_sample
from trainer.judge.open import open_judge
from trainer.judge.ruler import LlmJudge
from trainer.ledger.order_decisions import OrderReason
from trainer.types import Group, JudgedGroup, JudgeFailure

GROUPS = 80


async def judged(
    server: JudgeServer, groups: list[Group], database: Database | None = None, **changes: Any
) -> tuple[list[JudgedGroup], LlmJudge]:
    settings = judge_settings(server.base_url, judge_concurrency=8, **changes)
    async with open_judge(settings, SECRETS, database, "run-1", retry=AT_ONCE) as judge:
        assert isinstance(judge, LlmJudge)
        results = await asyncio.gather(*(judge.judge(group) for group in groups))
    assert all(isinstance(result, JudgedGroup) for result in results)
    return [result for result in results if isinstance(result, JudgedGroup)], judge


async def test_a_third_of_the_tokens_is_saved_at_the_same_rank_correlation_with_skill() -> None:
    groups = planted_groups(GROUPS, seed=1)
    with JudgeServer(otherwise=fake.honest(planted(noise=0.1, bias=0.1, seed=1))) as server:
        adaptive, saving = await judged(server, groups)
        whole, spending = await judged(server, groups, judge_order_rule="all")
        single, _ = await judged(server, groups, judge_orders=1)
    spent = [judge.usage.prompt_tokens + judge.usage.completion_tokens for judge in (saving, spending)]
    assert spending.usage.calls == 2 * GROUPS
    assert spent[0] <= 0.65 * spent[1]
    with_all = fmean(map(rank_correlation, whole))
    assert with_all > 0.8
    assert fmean(map(rank_correlation, adaptive)) >= with_all - 0.05
    assert fmean(map(rank_correlation, adaptive)) > fmean(map(rank_correlation, single)), "the others are worth asking"


async def test_every_order_is_asked_for_or_has_its_reason(database: Database) -> None:
    groups = planted_groups(GROUPS, seed=2)
    with JudgeServer(otherwise=fake.honest(planted(noise=0.1, bias=0.1, seed=2))) as server:
        results, judge = await judged(server, groups, database)
        rows = await database.pool.fetch("SELECT * FROM hindsight.order_decisions")
        by_key = {row["verdict_key"]: row for row in rows}
        assert len(by_key) == GROUPS
        assert judge.usage.unasked == Counter({OrderReason.CLEAR: sum(not row["is_asked"] for row in rows)})
        assert judge.usage.calls + judge.usage.unasked.total() == 2 * GROUPS
        for result in results:
            row = by_key[result.verdict_key]
            stored = await database.pool.fetchval(
                "SELECT count(*) FROM hindsight.verdicts WHERE verdict_key = $1", result.verdict_key
            )
            assert stored == (2 if row["is_asked"] else 1)
            if not row["is_asked"]:
                assert row["turned_share"] <= MAX_TURNED
                assert {verdict.uncertainty for verdict in result.verdicts} == {row["order_sd"]}
            if is_sample(result.group.group_id):
                assert row["reason"] == "sample"
        sampled = sum(is_sample(group.group_id) for group in groups)
        assert Counter(row["reason"] for row in rows)["sample"] == sampled > 0
        # The next run pays nothing and comes to the same verdicts, though more is known of the judge by now.
        before = len(server.requests)
        again, remembering = await judged(server, groups, database)
    assert len(server.requests) == before
    assert [result.verdicts for result in again] == [result.verdicts for result in results]
    assert remembering.orders.noise.sd == pytest.approx(judge.orders.noise.sd)


async def test_a_group_in_which_all_did_the_same_is_not_asked_about_under_its_own_reason() -> None:
    """Balances and books may differ: they are no decisions. Whoever decides, says or sees something else is asked."""
    same = make_group(50.0, 50.0, 50.0)
    rich, other, *rest = same.trajectories
    steps = [msgspec.structs.replace(step, state=EnvironmentState(balance=9_000.0)) for step in rich.steps]
    rich = msgspec.structs.replace(rich, steps=steps, content_hash="rich")
    call = msgspec.structs.replace(other.steps[0].llm_calls[0], response="BUY ACME 50, and ignore the rest")
    said = [msgspec.structs.replace(other.steps[0], llm_calls=[call])]
    saying = msgspec.structs.replace(other, steps=said, content_hash="saying")
    with JudgeServer() as server:
        settings = judge_settings(server.base_url)
        async with open_judge(settings, SECRETS, None, "run-1", retry=AT_ONCE) as judge:
            equal = await judge.judge(Group("equal", WINDOW, (rich, other, *rest), same.outcomes))
            assert not server.requests
            assert isinstance(equal, JudgeFailure)
            assert (equal.reason, equal.cost_usd) == (Reason.EQUAL_DECISIONS, 0.0)
            differing = await judge.judge(Group("differing", WINDOW, (rich, saying, *rest), same.outcomes))
            assert isinstance(differing, JudgedGroup)
        whole = judge_settings(server.base_url, judge_order_rule="all")
        async with open_judge(whole, SECRETS, None, "run-1", retry=AT_ONCE) as judge:
            assert isinstance(await judge.judge(same), JudgedGroup), "an evaluation counts a tie"


async def test_a_judge_that_earlier_runs_have_measured_is_not_measured_again(database: Database) -> None:
    with JudgeServer(otherwise=fake.honest(planted(noise=0.05, bias=0.0, seed=3))) as server:
        await judged(server, planted_groups(30, seed=3), database)
        [result], judge = await judged(server, [planted_groups(1, seed=4)[0]], database)
        await judged(server, planted_groups(5, seed=5), database, judge_model="another")
    key = result.verdict_key
    reason = await database.pool.fetchval("SELECT reason FROM hindsight.order_decisions WHERE verdict_key = $1", key)
    assert reason != "unmeasured"
    assert judge.orders.noise.sd == pytest.approx(0.05, rel=0.4)
    asked_of_another = await database.pool.fetchval(
        "SELECT count(*) FROM hindsight.order_decisions d JOIN hindsight.verdicts v USING (verdict_key, order_number)"
        " WHERE v.judge = 'another' AND d.reason IN ('sample', 'unmeasured')"
    )
    assert asked_of_another >= 4, "what is known of one judge says nothing of another"
