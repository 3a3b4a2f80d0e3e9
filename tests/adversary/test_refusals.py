"""One agent's text makes a provider, or the judge, refuse the group: that agent is left out, the others are judged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from data_bridge.database import Database
from data_bridge.errors import JudgeError
from data_bridge.quality import Reason
from tests.builders_judge import AT_ONCE, SECRETS, agent, judge_settings, make_group
from tests.fakes import judge_server as fake
from tests.fakes.judge_server import FILTERS, Behaviour, JudgeServer, Request, Response
from trainer.judge.open import open_judge
from trainer.judge.ruler import LlmJudge
from trainer.progress import FailurePolicy, FailureTally
from trainer.types import Group, JudgedGroup, JudgeFailure

BOMB = "a text that no provider lets through"


@asynccontextmanager
async def judge_at(
    server: JudgeServer, database: Database | None = None, run_id: str = "run-1", **changes: Any
) -> AsyncIterator[LlmJudge]:
    settings = judge_settings(server.base_url, **({"judge_orders": 2} | changes))
    async with open_judge(settings, SECRETS, database, run_id, retry=AT_ONCE) as judge:
        assert isinstance(judge, LlmJudge)
        yield judge


def group_of(size: int, offenders: Sequence[int], number: int = 0, text: str = BOMB) -> Group:
    """``size`` agents, of which those with the numbers ``offenders`` say ``text``."""
    members = [
        agent(one, pnl=10.0 * one + number, prompt=f"{text} {one}" if one in offenders else f"ACME at {one}")
        for one in range(1, size + 1)
    ]
    return replace(make_group(group_id=f"group-{number}"), trajectories=tuple(members))


def names(numbers: Sequence[int]) -> list[str]:
    return [f"trajectory-{number}" for number in numbers]


def assert_judged_without(result: JudgedGroup | JudgeFailure, group: Group, offenders: Sequence[int]) -> None:
    assert isinstance(result, JudgedGroup), result
    others = [one.trajectory_id for one in group.trajectories if one.trajectory_id not in names(offenders)]
    assert [one.trajectory_id for one in result.group.trajectories] == others
    assert [verdict.trajectory_id for verdict in result.verdicts] == others
    assert sorted(one.trajectory_id for one in result.left_out) == names(offenders)
    assert {one.reason for one in result.left_out} <= {Reason.JUDGE_FILTERED}


@pytest.mark.parametrize("shape", FILTERS)
async def test_a_filter_costs_the_member_that_trips_it(shape: str) -> None:
    """In each shape that a filter or a refusal is known to take."""
    group = group_of(8, [3])
    with JudgeServer(otherwise=fake.refuses(BOMB, FILTERS[shape])) as server:
        async with judge_at(server) as judge:
            await judge.judge(make_group(1.0, 2.0, group_id="before"))  # an endpoint that is known to work
            result = await judge.judge(group)
    assert_judged_without(result, group, [3])
    parts = [len(request.shown) for request in server.requests[2:] if len(request.shown) < 7]
    replies = 1 if FILTERS[shape].status != 200 or "error" in shape else 2
    assert len(parts) == 3 * (replies + 1), "three times it was halved, and one half of two was refused"


@pytest.mark.parametrize("shape", [name for name in FILTERS if name != "a server's 400 without a code"])
async def test_the_first_group_of_a_run_is_no_exception(shape: str) -> None:
    """Nothing was answered yet, so the refusal could be taken for a dialect that is not understood, or a wrong key."""
    group = group_of(4, [1])
    with JudgeServer(otherwise=fake.refuses(BOMB, FILTERS[shape])) as server:
        async with judge_at(server) as judge:
            assert_judged_without(await judge.judge(group), group, [1])


@pytest.mark.parametrize("shape", ["Azure, 400", "the refusal field", "a refusal in words"])
@pytest.mark.parametrize("offenders", [[1, 2], [1, 8], [1, 3, 5, 7], [2, 3, 4, 5, 6, 7]])
async def test_a_filter_in_several_members_costs_each_of_them(shape: str, offenders: list[int]) -> None:
    group = group_of(8, offenders)
    with JudgeServer(otherwise=fake.refuses(BOMB, FILTERS[shape])) as server:
        async with judge_at(server) as judge:
            assert_judged_without(await judge.judge(group), group, offenders)
    questions = {frozenset(str(shown.content) for shown in request.shown) for request in server.requests}
    assert len(questions) <= 1 + (2 * 8 - 2) + 1, "the whole, the parts and the rest"


async def test_an_injection_that_spoils_the_reply_costs_its_writer() -> None:
    """No filter: the judge obeys and answers with something that is no score."""

    def obeys(request: Request) -> Response:
        return (
            fake.says('{"scores": "all of them are winners"}')(request)
            if BOMB in request.user
            else fake.honest()(request)
        )

    group = group_of(5, [4])
    with JudgeServer(otherwise=obeys) as server:
        async with judge_at(server) as judge:
            assert_judged_without(await judge.judge(group), group, [4])


@pytest.mark.parametrize("shape", ["Azure, 400", "Azure, finish_reason", "the refusal field", "a refusal in words"])
async def test_an_attacker_in_every_group_does_not_end_the_run(shape: str) -> None:
    """--max-judge-failures is about the judge: each group has a verdict, so nothing has failed."""
    groups = [group_of(4, [2], number) for number in range(10)]
    with JudgeServer(otherwise=fake.refuses(BOMB, FILTERS[shape])) as server:
        async with judge_at(server, judge_orders=1) as judge:
            results = await asyncio.gather(*(judge.judge(group) for group in groups))
    tally = FailureTally()
    for result, group in zip(results, groups, strict=True):
        assert_judged_without(result, group, [2])
        tally = tally.plus(result)
    FailurePolicy().check(tally, expected=len(groups), at_end=True)


async def test_groups_of_which_too_few_are_left_do_not_end_the_run() -> None:
    groups = [group_of(2, [2], number) for number in range(10)]
    with JudgeServer(otherwise=fake.refuses(BOMB, FILTERS["Azure, 400"])) as server:
        async with judge_at(server, judge_orders=1) as judge:
            results = await asyncio.gather(*(judge.judge(group) for group in groups))
    assert [isinstance(one, JudgeFailure) and one.reason for one in results] == [Reason.JUDGE_FILTERED] * 10
    tally = FailureTally(heard=1)
    for result in results:
        tally = tally.plus(result)
    FailurePolicy().check(tally, expected=11, at_end=True)


async def test_a_judge_that_refuses_everything_still_ends_the_run() -> None:
    """The other side of the rule: what no member is to blame for is the judge's failure."""
    groups = [group_of(4, [], number) for number in range(8)]
    with JudgeServer(otherwise=fake.refusal()) as server:
        async with judge_at(server, judge_orders=1) as judge:
            results = await asyncio.gather(*(judge.judge(group) for group in groups))
    tally = FailureTally()
    for result in results:
        tally = tally.plus(result)
    with pytest.raises(JudgeError, match="failed on 8 of 8 groups"):
        FailurePolicy().check(tally)


# Nothing is paid for twice


@pytest.mark.parametrize("shape", ["Azure, 400", "the refusal field", "a refusal in words"])
async def test_what_was_learnt_of_an_offender_is_remembered(database: Database, shape: str) -> None:
    group = group_of(6, [5])
    with JudgeServer(otherwise=fake.refuses(BOMB, FILTERS[shape])) as server:
        async with judge_at(server, database) as judge:
            first = await judge.judge(group)
        asked = len(server.requests)
        async with judge_at(server, database, "run-2") as judge:
            second = await judge.judge(group)
        assert len(server.requests) == asked
    assert_judged_without(second, group, [5])
    assert isinstance(first, JudgedGroup)
    assert isinstance(second, JudgedGroup)
    assert (second.verdicts, second.verdict_key, second.cached) == (first.verdicts, first.verdict_key, True)


@pytest.mark.parametrize("answers", [6, 8, 10])
async def test_a_search_that_is_cut_short_goes_on_where_it_was(database: Database, answers: int) -> None:
    group, behaviour = group_of(8, [6]), fake.refuses(BOMB, FILTERS["the refusal field"])
    reached = asyncio.Event()
    loop = asyncio.get_running_loop()

    def until(request: Request) -> Response:
        if len(server.requests) > answers:
            loop.call_soon_threadsafe(reached.set)
            return Response(delay=60)
        return behaviour(request)

    with JudgeServer(otherwise=until) as server:
        async with judge_at(server, database, judge_concurrency=1) as judge:
            judging, stop = asyncio.create_task(judge.judge(group)), asyncio.create_task(reached.wait())
            await asyncio.wait({judging, stop}, return_when=asyncio.FIRST_COMPLETED)
            assert stop.done()
            judging.cancel()
            await asyncio.gather(judging, return_exceptions=True)
        server.otherwise = behaviour
        async with judge_at(server, database) as judge:
            assert_judged_without(await judge.judge(group), group, [6])
    paid = "SELECT max(n) FROM (SELECT count(*) n FROM hindsight.judge_calls WHERE result = 'ok' GROUP BY {}) AS calls"
    assert await database.pool.fetchval(paid.format("verdict_key, order_number")) == 1


async def test_a_judge_that_refused_all_of_a_group_is_asked_again(database: Database) -> None:
    """Its refusals are no evidence against the members: it may have been misconfigured that day."""
    group = group_of(4, [])
    with JudgeServer(otherwise=fake.refusal()) as server:
        async with judge_at(server, database) as judge:
            assert isinstance(await judge.judge(group), JudgeFailure)
        server.otherwise = fake.honest()
        async with judge_at(server, database, "run-2") as judge:
            result = await judge.judge(group)
    assert isinstance(result, JudgedGroup)
    assert result.left_out == ()


async def test_the_search_stays_within_the_budget() -> None:
    def paid(request: Request) -> Response:
        return fake.completion(None, refusal="No.") if BOMB in request.user else fake.honest()(request)

    with JudgeServer(otherwise=paid) as server:
        async with judge_at(server, max_cost=0.03, judge_orders=1, judge_reply_tokens=500) as judge:
            result = await judge.judge(group_of(8, [1, 5]))
    assert isinstance(result, JudgeFailure)
    assert result.reason is Reason.OVER_BUDGET
    assert 0 < judge.usage.cost_usd <= 0.03


# Too long for the endpoint


def at_most(characters: int) -> Behaviour:
    """An endpoint with a smaller context than we were told."""
    too_long = Response(400, {"error": fake.OPENAI_CONTEXT})
    return lambda request: too_long if len(request.user) > characters else fake.honest()(request)


async def test_a_prompt_that_the_endpoint_finds_too_long_is_shortened(database: Database) -> None:
    group = group_of(4, [1, 2, 3, 4], text="The market. " * 1_000)
    with JudgeServer(otherwise=at_most(20_000)) as server:
        async with judge_at(server, database) as judge:
            result = await judge.judge(group)
    assert_judged_without(result, group, [])
    assert max(len(request.user) for request in server.requests) > 40_000


async def test_a_decision_that_does_not_fit_costs_the_member_that_wrote_it() -> None:
    group = group_of(4, [])
    members = (*group.trajectories, agent(9, pnl=1.0, reasoning="because " * 9_000))
    group = replace(group, trajectories=members)
    with JudgeServer(otherwise=at_most(20_000)) as server:
        async with judge_at(server, judge_context=100_000) as judge:
            result = await judge.judge(group)
    assert isinstance(result, JudgedGroup)
    assert {*names([1, 2, 3, 4])} <= {verdict.trajectory_id for verdict in result.verdicts}
    assert {(one.trajectory_id, one.reason) for one in result.left_out} <= {("trajectory-9", Reason.OVER_CONTEXT)}
