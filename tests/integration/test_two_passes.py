"""Two passes over real HTTP: the first sees no outcome, luck is told apart, and nothing is paid for twice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import asynccontextmanager
from statistics import fmean
from typing import Any

import pytest

from data_bridge.database import Database
from data_bridge.errors import ConfigurationError
from data_bridge.quality import Reason
from tests.builders_judge import AT_ONCE, SECRETS, judge_settings, make_group
from tests.fakes import judge_server as fake
from tests.fakes.judge_server import JudgeServer
from tests.fakes.judges_with_faults import biased_by_outcome, claims_luck_as_reasons
from trainer.certify.material import simulated
from trainer.certify.probes import profit_of
from trainer.config.sections import JudgeSettings
from trainer.judge.cost import estimate
from trainer.judge.open import identity_of, open_judge, refuse_unusable
from trainer.judge.ruler import LlmJudge
from trainer.types import Group, JudgedGroup, JudgeFailure

BIAS = 0.5
BIASED = fake.honest(biased_by_outcome(BIAS), corrector=claims_luck_as_reasons(BIAS))


@asynccontextmanager
async def judge_at(server: JudgeServer, database: Database | None = None, **changes: Any) -> Any:
    settings = judge_settings(server.base_url, **({"judge_orders": 1} | changes))
    async with open_judge(settings, SECRETS, database, "run-1", retry=AT_ONCE) as judge:
        assert isinstance(judge, LlmJudge)
        yield judge


async def all_judged(server: JudgeServer, groups: Sequence[Group], **changes: Any) -> list[JudgedGroup]:
    async with judge_at(server, **changes) as judge:
        results = await asyncio.gather(*(judge.judge(group) for group in groups))
    return [result for result in results if isinstance(result, JudgedGroup)]


def luck_in(results: Sequence[JudgedGroup]) -> float:
    """How much more the same kind of decision scores if it won: by design half of each kind did."""
    scores: dict[bool, list[float]] = {True: [], False: []}
    for result in results:
        for member, verdict in zip(result.group.trajectories, result.verdicts, strict=True):
            scores[(profit_of(member, result.group.outcomes) or 0.0) > 0].append(verdict.score)
    return fmean(scores[True]) - fmean(scores[False])


def skill_in(results: Sequence[JudgedGroup], sound: Mapping[str, bool]) -> float:
    """How much more a sound decision scores than a careless one."""
    scores: dict[bool, list[float]] = {True: [], False: []}
    for verdict in (verdict for result in results for verdict in result.verdicts):
        scores[sound[verdict.trajectory_id]].append(verdict.score)
    return fmean(scores[True]) - fmean(scores[False])


async def test_two_passes_take_at_least_half_of_the_luck_out_of_what_is_trained() -> None:
    material = simulated(36, 6, seed=3)
    groups = material.groups[:12]
    with JudgeServer(otherwise=BIASED) as server:
        once = await all_judged(server, groups)
        twice = await all_judged(server, groups, judge_passes=2)
    assert len(once) == len(twice) == len(groups)
    assert luck_in(once) == pytest.approx(0.8 * BIAS)
    assert abs(luck_in(twice)) <= luck_in(once) / 2
    skill = skill_in(once, material.sound)
    assert skill > 0.1
    assert skill_in(twice, material.sound) > skill - 0.01, "not by saying less of everything"
    told = [abs(verdict.luck or 0.0) for result in twice for verdict in result.verdicts]
    assert fmean(told) == pytest.approx(0.4 * BIAS), "what was luck is known"
    assert all(verdict.luck is None for result in once for verdict in result.verdicts)


async def test_the_first_pass_is_told_nothing_that_happened_afterwards() -> None:
    with JudgeServer(
        otherwise=fake.honest(corrector=lambda request: dict.fromkeys(fake.by_profit(request), 0.0))
    ) as server:
        await all_judged(server, [make_group()], judge_passes=2)
    first, second = server.requests
    assert first.is_blind
    assert not second.is_blind
    assert [one.content["claimed"] for one in first.shown] == [{"starting_balance": 1000}] * 3
    for told in ("result", "profit", "ground_truth", "110"):
        assert told not in first.user
    assert all("result" not in one.content for one in first.shown)
    assert second.ground_truth
    assert second.body["response_format"]["json_schema"]["schema"]["properties"]["scores"]["items"]["required"] == [
        *("trajectory_id", "explanation", "score", "correction")
    ]


async def test_both_scores_are_stored_and_neither_pass_is_paid_for_twice(database: Database) -> None:
    with JudgeServer(otherwise=BIASED) as server:
        group = simulated(36, 6, seed=3).groups[0]
        async with judge_at(server, database, judge_passes=2) as judge:
            first = await judge.judge(group)
        async with judge_at(server, database, judge_passes=2) as judge:
            again = await judge.judge(group)
        assert len(server.requests) == 2
        await database.pool.execute("DELETE FROM hindsight.verdicts WHERE pass = 'hindsight'")
        async with judge_at(server, database, judge_passes=2) as judge:
            await judge.judge(group)
    assert [request.is_blind for request in server.requests] == [True, False, False]
    assert isinstance(first, JudgedGroup)
    assert isinstance(again, JudgedGroup)
    assert first.verdicts == again.verdicts
    stored = await database.pool.fetchval("SELECT scores FROM hindsight.verdicts WHERE pass = 'hindsight'")
    for one in json.loads(stored):
        assert {"score", "blind", "hindsight", "correction"} <= one.keys()
        assert one["hindsight"] != one["blind"]
    assert first.identity.has_two_passes
    in_one = identity_of(judge_settings())
    assert in_one != first.identity, "a judge asked in two passes is another judge"


async def test_a_judge_that_fails_in_the_second_pass_is_no_score() -> None:
    def only_blind(request: fake.Request) -> fake.Response:
        return BIASED(request) if request.is_blind else fake.completion("no")

    with JudgeServer(otherwise=only_blind) as server:
        async with judge_at(server, judge_passes=2) as judge:
            result = await judge.judge(simulated(36, 6, seed=3).groups[0])
    assert isinstance(result, JudgeFailure)
    assert result.reason is Reason.JUDGE_BAD_REPLY


async def test_a_correction_out_of_range_is_asked_for_again() -> None:
    too_much = fake.honest(biased_by_outcome(BIAS), corrector=lambda request: {one.id: 0.7 for one in request.shown})
    with JudgeServer(script=[BIASED, too_much], otherwise=BIASED) as server:
        [result] = await all_judged(server, simulated(36, 6, seed=3).groups[:1], judge_passes=2)
    assert len(result.verdicts) == 6
    assert len(server.requests) == 3
    assert "a correction is outside -0.2 to 0.2" in server.requests[-1].user


async def test_the_second_pass_is_within_the_budget_and_in_the_estimate(database: Database) -> None:
    group = simulated(36, 6, seed=3).groups[0]
    with JudgeServer(otherwise=BIASED) as server:
        async with judge_at(server, database, judge_passes=2, judge_reply_tokens=500, max_cost=0.011) as judge:
            result = await judge.judge(group)
            assert isinstance(result, JudgeFailure)
            assert result.reason is Reason.OVER_BUDGET
            assert judge.budget.spent <= 0.011
        assert [request.is_blind for request in server.requests] == [True]
        async with judge_at(server, database, judge_passes=2) as judge:
            assert isinstance(await judge.judge(group), JudgedGroup)
    assert [request.is_blind for request in server.requests] == [True, False]
    once, twice = (estimate(10, 20_000, judge_settings(judge_passes=passes)) for passes in (1, 2))
    assert once.usd is not None
    assert twice.usd == pytest.approx(2 * once.usd)
    assert twice.calls == 2 * once.calls


def test_the_offline_judge_has_no_second_pass() -> None:
    with pytest.raises(ConfigurationError, match="--judge-passes 2 needs an LLM"):
        refuse_unusable(JudgeSettings(judge="outcome", judge_passes=2), SECRETS)
