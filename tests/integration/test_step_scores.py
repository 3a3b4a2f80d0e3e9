"""The LLM judge scores decisions as well as the whole, in the same call, over real HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from data_bridge.database import Database
from tests.builders import hours_before, insert_window
from tests.builders_judge import API_KEY, AT_ONCE, SECRETS, judge_settings, make_group
from tests.builders_run import World
from tests.builders_training import make_batch
from tests.fakes import judge_server as fake
from tests.fakes.judge_server import JudgeServer
from tests.fakes.training_backend import FakeBackend
from tests.integration.test_step_credit import hour
from trainer.judge.cost import STEP_TOKENS, estimate
from trainer.judge.open import describe, identity_of, open_judge
from trainer.judge.prompt import PROMPT_VERSION
from trainer.judge.ruler import LlmJudge
from trainer.train.credit import history_of
from trainer.train.step_credit import by_decision
from trainer.types import Group, JudgedGroup

GROUP = hour((0.1, -0.1, 0.1), (("BUY", "SELL", "BUY"), ("BUY", "BUY", "BUY"), ("SELL", "SELL", "SELL")))
"""Right are BUY, SELL, BUY: agent 0 errs in nothing, 1 in the second decision, 2 in the first and the third."""
RIGHT = {"t0": (0.9, 0.9, 0.9), "t1": (0.9, 0.1, 0.9), "t2": (0.1, 0.9, 0.1)}


@asynccontextmanager
async def judge_at(
    server: JudgeServer, database: Database | None = None, *, with_steps: bool = True, **changes: Any
) -> AsyncIterator[LlmJudge]:
    settings = judge_settings(server.base_url, **({"judge_orders": 1} | changes))
    async with open_judge(settings, SECRETS, database, "run-1", retry=AT_ONCE, with_steps=with_steps) as judge:
        assert isinstance(judge, LlmJudge)
        yield judge


async def judged(server: JudgeServer, group: Group = GROUP, **options: Any) -> JudgedGroup:
    async with judge_at(server, **options) as judge:
        found = await judge.judge(group)
    assert isinstance(found, JudgedGroup)
    return found


def steps_of(found: JudgedGroup) -> dict[str, tuple[float | None, ...]]:
    return {verdict.trajectory_id: verdict.steps for verdict in found.verdicts}


def entry_schema(request: fake.Request) -> dict[str, Any]:
    schema = request.body["response_format"]["json_schema"]["schema"]
    return dict(schema["properties"]["scores"]["items"])


async def test_without_step_credit_neither_the_question_nor_the_key_knows_of_decisions() -> None:
    with JudgeServer() as server:
        found = await judged(server, with_steps=False)
    [request] = server.requests
    assert not request.asks_steps
    assert entry_schema(request)["required"] == ["trajectory_id", "explanation", "score"]
    assert all("step" not in step for shown in request.shown for step in shown.content["steps"])
    assert found.identity.prompt_version == PROMPT_VERSION
    assert all(verdict.steps == () for verdict in found.verdicts)


async def test_each_decision_has_its_score_by_id_and_number_whatever_the_order() -> None:
    def shuffled(request: fake.Request) -> dict[str, Any]:
        return {name: steps[::-1] for name, steps in reversed(fake.by_result(request).items())}

    with JudgeServer(otherwise=fake.honest(step_scorer=shuffled)) as server:
        found = await judged(server)
    [request] = server.requests
    assert [step["step"] for step in request.shown[0].content["steps"]] == [1, 2, 3]
    assert entry_schema(request)["required"] == ["trajectory_id", "explanation", "score", "steps"]
    assert entry_schema(request)["properties"]["steps"]["items"]["required"] == ["step", "score"]
    assert steps_of(found) == RIGHT
    assert found.identity.scores_steps
    assert found.identity.prompt_version != PROMPT_VERSION
    assert "decision by decision" in describe(found.identity)


async def test_scores_of_decisions_are_averaged_over_the_orders_that_gave_one() -> None:
    """The judge gives whoever is shown first 0.2 more, and in the second order forgets the third decisions."""
    asked = list[fake.Request]()

    def biased(request: fake.Request) -> dict[str, Any]:
        asked.append(request)
        given = {shown.id: 0.7 if place == 0 else 0.5 for place, shown in enumerate(request.shown)}
        numbers = (1, 2, 3) if len(asked) == 1 else (1, 2)
        return {name: [{"step": number, "score": score} for number in numbers] for name, score in given.items()}

    options: dict[str, Any] = {"judge_orders": 2, "judge_order_rule": "all", "judge_concurrency": 1}
    with JudgeServer(otherwise=fake.honest(step_scorer=biased)) as server:
        found = await judged(server, **options)
    assert len(asked) == 2
    steps = sorted(steps_of(found).values(), key=str)
    assert [[round(score or 0.0, 6) for score in own[:2]] for own in steps] == [[0.5, 0.5], [0.6, 0.6], [0.6, 0.6]]
    assert sorted(round(own[2] or 0.0, 6) for own in steps) == [0.5, 0.5, 0.7], "one order alone scored it"


WRONG: list[Any] = [1.2, -0.1, True, "0.5", None, float("nan"), float("inf"), [0.5]]


@pytest.mark.parametrize("score", WRONG)
async def test_a_score_that_cannot_be_used_costs_that_score_alone(score: Any) -> None:
    def one_wrong(request: fake.Request) -> dict[str, Any]:
        return {name: [steps[0], {"step": 2, "score": score}, steps[2]] for name, steps in given(request)}

    await costs_one_score(one_wrong)


def given(request: fake.Request) -> Any:
    return fake.by_result(request).items()


@pytest.mark.parametrize(
    "change",
    [
        lambda steps: [steps[0], steps[2]],
        lambda steps: [steps[0], {**steps[1], "step": 7}, steps[2]],
        lambda steps: [steps[0], {**steps[1], "step": 0}, steps[2]],
        lambda steps: [steps[0], {**steps[1], "step": "2"}, steps[2]],
        lambda steps: [steps[0], {"score": 0.5}, steps[2]],
        lambda steps: [steps[0], "2: 0.5", steps[2]],
        lambda steps: [*steps, {"step": 2, "score": 0.3}],
    ],
    ids=["missing", "unknown", "from zero", "text", "without a number", "no object", "twice"],
)
async def test_an_unknown_missing_or_repeated_decision_has_no_score(change: Any) -> None:
    await costs_one_score(lambda request: {name: change(steps) for name, steps in given(request)})


async def costs_one_score(step_scorer: fake.StepScorer) -> None:
    with JudgeServer(otherwise=fake.honest(step_scorer=step_scorer)) as server:
        found = await judged(server)
    assert len(server.requests) == 1, "it is not asked again for that"
    assert steps_of(found) == {name: (own[0], None, own[2]) for name, own in RIGHT.items()}
    assert found.left_out == ()
    parted = by_decision(make_batch(found), 0.5)
    assert {(one.trajectory_id, one.number) for one in parted.decisions.values()} == {
        (name, number) for name in RIGHT for number in (0, 2)
    }


@pytest.mark.parametrize("steps", [None, [], {}, "all good"])
async def test_a_member_without_any_score_of_a_decision_keeps_its_whole_and_its_group_is_credited_as_a_whole(
    steps: Any,
) -> None:
    def silent_about_one(request: fake.Request) -> dict[str, Any]:
        told = fake.by_result(request)
        return {**told, next(iter(told)): steps}

    with JudgeServer(otherwise=fake.honest(step_scorer=silent_about_one)) as server:
        found = await judged(server)
    assert len(server.requests) == 1
    assert sorted(map(len, steps_of(found).values())) == [0, 3, 3]
    batch = make_batch(found)
    assert by_decision(batch, 0.5).batch == batch


async def test_a_name_that_a_decision_has_twice_costs_its_score_alone() -> None:
    def repeated(request: fake.Request) -> fake.Response:
        text = fake.scored(fake.by_profit(request), steps=fake.by_result(request)).body["choices"][0]["message"]
        said = str(text["content"]).replace('{"step": 2, ', '{"step": 2, "step": 3, ')
        return fake.completion(said)

    with JudgeServer(otherwise=repeated) as server:
        found = await judged(server)
    assert len(server.requests) == 1
    assert all(own[1] is None and own[0] is not None for own in steps_of(found).values())


async def test_an_agent_with_one_decision_has_the_score_of_the_whole() -> None:
    with JudgeServer() as server:
        found = await judged(server, make_group())
    assert [verdict.steps for verdict in found.verdicts] == [(verdict.score,) for verdict in found.verdicts]


async def test_they_are_stored_with_the_verdict_and_not_paid_for_twice(database: Database) -> None:
    with JudgeServer() as server:
        first = await judged(server, database=database)
        again = await judged(server, database=database)
        assert len(server.requests) == 1
        plain = await judged(server, database=database, with_steps=False)
        assert len(server.requests) == 2, "another question has another key"
    assert again.cached
    assert again.verdicts == first.verdicts
    assert steps_of(again) == RIGHT
    assert plain.verdict_key != first.verdict_key
    stored = await database.pool.fetchval(
        "SELECT scores FROM hindsight.verdicts WHERE verdict_key = $1", first.verdict_key
    )
    assert {one["trajectory_id"]: tuple(one["steps"]) for one in json.loads(stored)} == RIGHT


async def test_in_two_passes_the_first_scores_the_decisions_and_what_the_reasons_show_moves_them_all() -> None:
    def blind_scores(request: fake.Request) -> dict[str, Any]:
        assert request.is_blind
        return {shown.id: [{"step": number, "score": 0.3 * number} for number in (1, 2, 3)] for shown in request.shown}

    def corrections(request: fake.Request) -> dict[str, float]:
        return {shown.id: 0.1 if place == 0 else -0.2 for place, shown in enumerate(request.shown)}

    behaviour = fake.honest(step_scorer=blind_scores, corrector=corrections)
    with JudgeServer(otherwise=behaviour) as server:
        found = await judged(server, judge_passes=2)
    first, second = server.requests
    assert (first.asks_steps, second.asks_steps) == (True, False)
    assert entry_schema(first)["required"][-1] == "steps"
    assert entry_schema(second)["required"][-1] == "correction"
    assert found.identity.has_two_passes
    assert found.identity.scores_steps
    moves = set[float]()
    for verdict in found.verdicts:
        moved = [round((score or 0.0) - 0.3 * number, 6) for number, score in enumerate(verdict.steps, start=1)]
        assert moved[0] == moved[1]
        assert moved[2] in (moved[0], 0.1), "never above 1"
        moves.add(moved[0])
    assert len(moves) > 1


async def test_an_llm_finds_the_bad_decision_of_a_trajectory_that_did_well_as_a_whole() -> None:
    with JudgeServer() as server:
        found = await judged(server)
    parted = by_decision(make_batch(found), 0.0)
    credit = {
        (decision.trajectory_id, decision.number): one.advantage
        for rewards in history_of(parted.batch.groups)
        for one in rewards
        for decision in [parted.decisions[one.graded.trajectory_id]]
    }
    assert min((number for number in range(3)), key=lambda number: credit["t1", number]) == 1
    assert credit["t0", 1] > 0 > credit["t1", 1]
    assert credit["t2", 1] > 0 > credit["t2", 0]


@pytest.mark.parametrize("step_credit", [False, True])
async def test_training_asks_for_them_only_with_step_credit(
    database: Database, tmp_path: Path, step_credit: bool
) -> None:
    for window_id in hours_before(number=3):
        await insert_window(database.pool, window_id, agents=3)
    backend = FakeBackend(tmp_path)
    asked: dict[str, Any] = {"judge_model": "judge", "price": "1/10", "judge_orders": 1, "held_out_share": 0}
    with JudgeServer() as server:
        values = asked | {"judge_api_key": API_KEY, "judge_base_url": server.base_url, "step_credit": step_credit}
        await World(database, tmp_path).train(backend, **values)
    assert len(server.requests) == 3
    assert all(request.asks_steps is step_credit for request in server.requests)
    told = [verdict.steps for batch in backend.trained for one in batch.groups for verdict in one.verdicts]
    assert [len(own) for own in told] == [2 if step_credit else 0] * 9, "two decisions each"


def test_the_estimate_has_the_longer_reply() -> None:
    for passes in (1, 2):
        settings = judge_settings(judge_passes=passes)
        plain, longer = (estimate(10, 20_000, settings, scored_decisions=number) for number in (0, 240))
        assert longer.calls == plain.calls
        assert longer.completion_tokens - plain.completion_tokens == 240 * STEP_TOKENS * settings.judge_orders
        assert plain.usd is not None
        assert longer.usd is not None
        assert longer.usd > plain.usd
    assert identity_of(judge_settings()) == identity_of(judge_settings(), with_steps=False)
