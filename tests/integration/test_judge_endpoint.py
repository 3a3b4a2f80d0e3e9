"""The LLM judge against a real endpoint that misbehaves in every way we know of; calls are counted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from pydantic import SecretStr

from data_bridge.errors import ConfigurationError, HindsightError, JudgeError
from data_bridge.quality import Reason
from tests.builders_judge import API_KEY, AT_ONCE, SECRETS, judge_settings, make_group
from tests.fakes import judge_server as fake
from tests.fakes.judge_server import Behaviour, JudgeServer
from trainer.config.sections import JudgeSecrets
from trainer.judge.limits import Retry
from trainer.judge.open import open_judge
from trainer.judge.ruler import LlmJudge
from trainer.ledger.verdicts import CallResult, MemoryVerdicts
from trainer.types import JudgedGroup, JudgeFailure

EXPECTED = {"trajectory-1": 0.4517, "trajectory-2": 0.625, "trajectory-3": 0.7983}
"""What the honest judge thinks of ``make_group()``."""


@asynccontextmanager
async def judge_at(
    server: JudgeServer, *, judge_api_key: str = API_KEY, retry: Retry = AT_ONCE, **changes: Any
) -> AsyncIterator[LlmJudge]:
    asked: dict[str, Any] = {"judge_base_url": server.base_url, "judge_orders": 1}
    settings, secrets = judge_settings(**(asked | changes)), JudgeSecrets(judge_api_key=SecretStr(judge_api_key))
    async with open_judge(settings, secrets, None, "run-1", retry=retry) as judge:
        assert isinstance(judge, LlmJudge)
        yield judge


async def judge_once(server: JudgeServer, **changes: Any) -> JudgedGroup | JudgeFailure:
    async with judge_at(server, **changes) as judge:
        return await judge.judge(make_group())


def scores(result: JudgedGroup | JudgeFailure) -> dict[str, float]:
    assert isinstance(result, JudgedGroup), result
    return {verdict.trajectory_id: round(verdict.score, 4) for verdict in result.verdicts}


async def test_every_agent_gets_its_own_score() -> None:
    with JudgeServer() as server:
        result = await judge_once(server)
    assert scores(result) == EXPECTED
    assert len(server.requests) == 1


async def test_a_reply_in_reversed_order_does_not_change_who_gets_which_score() -> None:
    with JudgeServer(otherwise=fake.reversed_order()) as server:
        result = await judge_once(server, judge_orders=2)
    assert scores(result) == EXPECTED
    assert len(server.requests) == 2


async def test_a_group_is_asked_about_in_different_orders_under_new_ids_every_time() -> None:
    with JudgeServer() as server:
        await judge_once(server, judge_orders=3)
    profits = [tuple(fake.profit_share(shown.content) for shown in request.shown) for request in server.requests]
    ids = [shown.id for request in server.requests for shown in request.shown]
    assert len(set(profits)) == 3
    assert len(set(ids)) == 9


async def test_scores_are_averaged_over_the_orders_and_their_spread_is_kept() -> None:
    def favours_the_first(request: fake.Request) -> dict[str, float]:
        return {shown.id: 0.9 if place == 0 else 0.3 for place, shown in enumerate(request.shown)}

    with JudgeServer(otherwise=fake.honest(favours_the_first)) as server:
        result = await judge_once(server, judge_orders=2)
    assert isinstance(result, JudgedGroup)
    # Of three agents in one order and its reverse, one was first, one was last, one was in the middle.
    found = sorted((round(verdict.score, 4), round(verdict.uncertainty, 4)) for verdict in result.verdicts)
    assert found == [(0.3, 0.0), (0.6, 0.3), (0.6, 0.3)]


BAD_REPLIES: dict[str, tuple[Behaviour, str]] = {
    "one score missing": (fake.one_missing(), "2 of 3"),
    "one score too many": (fake.one_too_many(), "id that is not among"),
    "unknown id": (fake.unknown_id(), "id that is not among"),
    "repeated id": (fake.repeated_id(), "occurs twice"),
    "score of 7": (fake.score(7), "outside 0 to 1"),
    "score of -0.1": (fake.score(-0.1), "outside 0 to 1"),
    "NaN": (fake.score(float("nan")), "not finite"),
    "text for a score": (fake.score("0.9"), "not a number"),
    "true for a score": (fake.score(True), "not a number"),
    "refusal": (fake.refusal(), "refusal"),
    "cut off": (fake.cut_off(), "cut off"),
    "no JSON": (fake.says("They were all good."), "no complete JSON"),
    "other JSON": (fake.says('{"verdict": "good"}'), "no list named scores"),
    "empty": (fake.says(""), "no complete JSON"),
}


@pytest.mark.parametrize("case", BAD_REPLIES)
async def test_a_bad_reply_is_asked_for_once_more_with_its_fault_named(case: str) -> None:
    behaviour, fault = BAD_REPLIES[case]
    with JudgeServer(script=[behaviour]) as server:
        result = await judge_once(server)
    assert scores(result) == EXPECTED
    first, second = server.requests
    assert "could not be used" not in first.user
    assert fault in second.user
    assert {shown.id for shown in first.shown}.isdisjoint(shown.id for shown in second.shown)


@pytest.mark.parametrize("case", BAD_REPLIES)
async def test_a_second_bad_reply_excludes_the_group_and_is_never_a_score(case: str) -> None:
    behaviour, fault = BAD_REPLIES[case]
    with JudgeServer(otherwise=behaviour) as server:
        result = await judge_once(server)
    assert isinstance(result, JudgeFailure)
    assert result.reason is Reason.JUDGE_BAD_REPLY
    assert fault in result.detail
    assert [len(request.shown) for request in server.requests[:2]] == [3, 3]
    # Then about its parts, in case one member is the cause; a single id cannot be repeated.
    assert len(server.requests) == (7 if case == "repeated id" else 2 + 4 * 2)
    assert result.cost_usd == pytest.approx(len(server.requests) * (1000 * 1 + 100 * 10) / 1e6)


async def test_a_judge_that_answers_nothing_is_asked_about_the_parts_of_one_group_only() -> None:
    with JudgeServer(otherwise=fake.says("")) as server:
        async with judge_at(server) as judge:
            groups = [make_group(float(number), 0.0, 1.0) for number in range(2, 6)]
            results = await asyncio.gather(*(judge.judge(group) for group in groups))
    assert [isinstance(result, JudgeFailure) and result.reason for result in results] == [Reason.JUDGE_BAD_REPLY] * 4
    assert len(server.requests) == 4 * 2 + 4 * 2


@pytest.mark.parametrize("behaviour", [fake.prose(), fake.fenced()], ids=["prose", "fence"])
async def test_words_or_a_fence_around_the_json_are_no_fault(behaviour: Behaviour) -> None:
    with JudgeServer(otherwise=behaviour) as server:
        result = await judge_once(server)
    assert scores(result) == EXPECTED
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("formats", "asked"),
    [
        (["json_schema"], ["json_schema", "json_schema"]),
        (["json_object", "text"], ["json_schema", "json_object", "json_object"]),
        (["text"], ["json_schema", "json_object", "text", "text"]),
    ],
)
async def test_the_richest_format_that_the_endpoint_takes_is_found_and_remembered(
    formats: list[str], asked: list[str]
) -> None:
    with JudgeServer(otherwise=fake.understands(*formats)) as server:
        result = await judge_once(server, judge_orders=2, judge_concurrency=1)
    assert scores(result) == EXPECTED
    assert [request.format for request in server.requests] == asked


async def test_the_strict_schema_asks_for_id_explanation_and_score() -> None:
    with JudgeServer() as server:
        await judge_once(server)
    wanted = server.requests[0].body["response_format"]["json_schema"]
    assert wanted["strict"] is True
    entry = wanted["schema"]["properties"]["scores"]["items"]
    assert entry["required"] == ["trajectory_id", "explanation", "score"]
    assert entry["additionalProperties"] is False


async def test_an_endpoint_with_the_old_name_for_the_limit_is_understood() -> None:
    with JudgeServer(otherwise=fake.wants_old_limit_name()) as server:
        result = await judge_once(server)
    assert scores(result) == EXPECTED
    assert server.requests[1].body["max_tokens"] == 4096
    assert server.requests[1].format == "json_schema"


FAULTS: dict[str, tuple[Behaviour, CallResult]] = {
    "429": (fake.busy(), CallResult.BUSY),
    "500": (fake.broken(500), CallResult.FAILED),
    "503": (fake.broken(503), CallResult.FAILED),
    "dropped connection": (fake.dropped(), CallResult.FAILED),
    "timeout": (fake.slow(30), CallResult.TIMEOUT),
    "not a completion": (lambda _: fake.Response(200, {"hello": "world"}), CallResult.FAILED),
}


@pytest.mark.parametrize("case", FAULTS)
async def test_a_failing_call_is_made_again(case: str) -> None:
    behaviour, kind = FAULTS[case]
    with JudgeServer(script=[behaviour, behaviour]) as server:
        async with judge_at(server, judge_timeout=timedelta(seconds=0.3)) as judge:
            result = await judge.judge(make_group())
            calls = _calls(judge)
    assert scores(result) == EXPECTED
    assert len(server.requests) == 3
    assert calls == [kind, kind, CallResult.OK]


@pytest.mark.parametrize("case", FAULTS)
async def test_a_judge_that_keeps_failing_is_unavailable_not_a_score(case: str) -> None:
    behaviour, kind = FAULTS[case]
    with JudgeServer(otherwise=behaviour) as server:
        async with judge_at(server, judge_timeout=timedelta(seconds=0.3)) as judge:
            result = await judge.judge(make_group())
            calls = _calls(judge)
    assert isinstance(result, JudgeFailure)
    assert result.reason is Reason.JUDGE_UNAVAILABLE
    assert len(server.requests) == 3
    assert calls == [kind] * 3


def _calls(judge: LlmJudge) -> list[CallResult]:
    assert isinstance(judge.store, MemoryVerdicts)
    return [call.result for _, call in judge.store.calls]


@pytest.mark.parametrize(
    ("usage", "cached"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 800}}, 800),
        ({"prompt_cache_hit_tokens": 640}, 640),
        ({"cache_read_input_tokens": 512}, 512),
        ({"prompt_tokens_details": {"cached_tokens": 5_000}}, 1_000),
        ({"prompt_tokens_details": {"cached_tokens": -5}}, 0),
        ({"prompt_tokens_details": "many"}, 0),
    ],
)
async def test_tokens_from_the_provider_s_cache_are_counted_and_priced(usage: dict[str, Any], cached: int) -> None:
    told = {"prompt_tokens": 1_000, "completion_tokens": 100} | usage
    with JudgeServer(otherwise=fake.with_usage(told)) as server:
        async with judge_at(server, price="1/10/0.1") as judge:
            result = await judge.judge(make_group())
    assert isinstance(result, JudgedGroup)
    assert judge.usage.cached_tokens == cached
    assert result.cost_usd == pytest.approx((1_000 - cached + 0.1 * cached + 100 * 10) / 1e6)


async def test_retry_after_is_obeyed() -> None:
    with JudgeServer(script=[fake.busy(retry_after=0.15)]) as server:
        started = time.monotonic()
        result = await judge_once(server)
        assert time.monotonic() - started >= 0.15
    assert scores(result) == EXPECTED


async def test_a_timeout_is_billed_at_our_estimate_since_the_endpoint_may_bill_it() -> None:
    with JudgeServer(script=[fake.slow(30)]) as server:
        result = await judge_once(server, judge_timeout=timedelta(seconds=0.3))
    assert isinstance(result, JudgedGroup)
    assert result.cost_usd > (1000 * 1 + 100 * 10) / 1e6


@pytest.mark.parametrize(
    "usage", [None, {}, [1, 2], "many", {"prompt_tokens": "9", "completion_tokens": 9}, {"prompt_tokens": -9}]
)
async def test_tokens_are_estimated_when_the_endpoint_does_not_tell(usage: Any) -> None:
    with JudgeServer(otherwise=fake.with_usage(usage, saying="half an emoji: \ud83d ")) as server:
        async with judge_at(server) as judge:
            assert scores(await judge.judge(make_group())) == EXPECTED
            assert isinstance(judge.store, MemoryVerdicts)
            (_, call), *_ = judge.store.calls
    assert call.tokens_estimated
    assert call.prompt_tokens > 300


@pytest.mark.parametrize(
    ("behaviour", "error", "words"),
    [
        (fake.error(401, f"Incorrect API key provided: {API_KEY}"), ConfigurationError, "JUDGE_API_KEY"),
        (fake.error(403, "no access"), ConfigurationError, "JUDGE_API_KEY"),
        (fake.error(404, "The model `judge` does not exist"), ConfigurationError, "JUDGE_MODEL"),
        (fake.error(429, "You exceeded your quota", code="insufficient_quota"), JudgeError, "credit"),
        (fake.error(400, "no"), JudgeError, "refuses our requests"),
    ],
    ids=["wrong key", "no access", "unknown model", "no credit", "refuses all"],
)
async def test_what_no_retry_can_cure_stops_all_judging_at_once(
    behaviour: Behaviour, error: type[HindsightError], words: str
) -> None:
    with JudgeServer(otherwise=behaviour) as server:
        async with judge_at(server, judge_concurrency=1) as judge:
            with pytest.raises(error, match=words) as first:
                await judge.judge(make_group())
            asked = len(server.requests)
            with pytest.raises(error):
                await judge.judge(make_group(1.0, 2.0))
            assert len(server.requests) == asked <= 3
    assert API_KEY not in str(first.value)


async def test_a_reply_limit_that_is_refused_under_either_name_ends_the_asking() -> None:
    def refuses_its_limit(request: fake.Request) -> fake.Response:
        name = "max_tokens" if "max_tokens" in request.body else "max_completion_tokens"
        return fake.error(400, f"Invalid '{name}': integer above the maximum")(request)

    with JudgeServer(otherwise=refuses_its_limit) as server, pytest.raises(JudgeError, match="above the maximum"):
        await judge_once(server)
    assert len(server.requests) == 4


async def test_an_endpoint_that_has_not_implemented_schemas_is_asked_in_json_mode() -> None:
    def behave(request: fake.Request) -> fake.Response:
        if request.format == "json_schema":
            return fake.error(501, "response_format json_schema is not implemented")(request)
        return fake.honest()(request)

    with JudgeServer(otherwise=behave) as server:
        assert scores(await judge_once(server)) == EXPECTED
    assert [request.format for request in server.requests] == ["json_schema", "json_object"]


@pytest.mark.parametrize("digits", [400, 5_000])
async def test_a_score_of_absurdly_many_digits_is_a_bad_reply(digits: int) -> None:
    def behave(request: fake.Request) -> fake.Response:
        text = str(fake.honest()(request).body["choices"][0]["message"]["content"])
        return fake.completion(text.replace('"score": 0.625', '"score": ' + "9" * digits))

    with JudgeServer(otherwise=behave) as server:
        result = await judge_once(server)
    assert scores(result) == {name: score for name, score in EXPECTED.items() if name != "trajectory-2"}
    assert isinstance(result, JudgedGroup)
    [left_out] = result.left_out
    assert (left_out.trajectory_id, left_out.reason) == ("trajectory-2", Reason.JUDGE_FILTERED)


async def test_an_endpoint_that_counts_absurdly_many_tokens_is_not_believed() -> None:
    absurd = fake.with_usage({"prompt_tokens": 10**400, "completion_tokens": 3})
    with JudgeServer(otherwise=absurd) as server:
        async with judge_at(server) as judge:
            assert scores(await judge.judge(make_group())) == EXPECTED
            assert isinstance(judge.store, MemoryVerdicts)
            assert [call.tokens_estimated for _, call in judge.store.calls] == [True]


async def test_what_an_unusable_answer_took_is_paid_for() -> None:
    def no_choices(request: fake.Request) -> fake.Response:
        return fake.completion("", choices=[])

    with JudgeServer(otherwise=no_choices) as server:
        async with judge_at(server) as judge:
            result = await judge.judge(make_group())
    assert isinstance(result, JudgeFailure)
    assert result.reason is Reason.JUDGE_UNAVAILABLE
    assert len(server.requests) == 3
    assert result.cost_usd == judge.budget.spent == pytest.approx(3 * 0.002)


async def test_a_connection_lost_after_the_request_may_be_billed_and_one_never_made_is_not() -> None:
    with JudgeServer(otherwise=fake.dropped()) as server:
        async with judge_at(server) as judge:
            await judge.judge(make_group())
        assert judge.budget.spent > 0
    brief = replace(AT_ONCE, gone_after=0.1)
    async with open_judge(judge_settings(server.base_url), SECRETS, None, "run-1", retry=brief) as nowhere:
        assert isinstance(nowhere, LlmJudge)
        with pytest.raises(JudgeError):
            await nowhere.judge(make_group())
        assert nowhere.budget.spent == 0


async def test_a_call_that_is_given_up_is_recorded_as_one_that_may_be_billed() -> None:
    with JudgeServer(otherwise=fake.slow(5)) as server:
        async with judge_at(server) as judge:
            judging = asyncio.create_task(judge.judge(make_group()))
            while not server.requests:
                await asyncio.sleep(0.01)
            judging.cancel()
            with pytest.raises(asyncio.CancelledError):
                await judging
            assert isinstance(judge.store, MemoryVerdicts)
            [(_, call)] = judge.store.calls
    assert (call.result, call.tokens_estimated) == (CallResult.TIMEOUT, True)
    assert judge.budget.spent == pytest.approx(call.cost_usd)


async def test_a_user_and_password_in_the_address_are_sent_and_not_shown() -> None:
    with JudgeServer() as server:
        address = server.base_url.replace("http://", "http://judge:p%40ss@")
        async with open_judge(judge_settings(address, judge_orders=1), SECRETS, None, "run-1", retry=AT_ONCE) as judge:
            assert scores(await judge.judge(make_group())) == EXPECTED
            assert isinstance(judge, LlmJudge)
            assert "p@ss" not in judge.endpoint.label
    assert server.requests[0].headers["authorization"] == "Basic anVkZ2U6cEBzcw=="


async def test_a_line_break_after_the_key_is_left_out() -> None:
    with JudgeServer() as server:
        await judge_once(server, judge_api_key=f"{API_KEY}\n")
    assert server.requests[0].headers["authorization"] == f"Bearer {API_KEY}"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"judge_api_key": "sk-\u2019oops"}, "JUDGE_API_KEY"),
        ({"judge_base_url": "http://127.0.0.1:99999/v1"}, "JUDGE_BASE_URL"),
    ],
)
async def test_a_key_or_an_address_that_cannot_be_is_refused_before_any_call(
    changes: dict[str, Any], words: str
) -> None:
    with JudgeServer() as server, pytest.raises(ConfigurationError, match=words):
        await judge_once(server, **changes)
    assert server.requests == []


async def test_a_client_that_cannot_be_made_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/ca.pem")
    with JudgeServer() as server, pytest.raises(ConfigurationError, match="SSL_CERT_FILE"):
        await judge_once(server)


async def test_a_prompt_that_the_endpoint_finds_too_long_is_over_context() -> None:
    too_long = fake.error(400, "This model's maximum context length is 4096 tokens", code="context_length_exceeded")
    with JudgeServer(otherwise=too_long) as server:
        result = await judge_once(server)
    assert isinstance(result, JudgeFailure)
    assert result.reason is Reason.OVER_CONTEXT
    assert len(server.requests) == 2, "with all three, and without the longest: two are the smallest group"


async def test_calls_in_flight_shrink_when_the_endpoint_is_busy_and_grow_back() -> None:
    with JudgeServer(script=[fake.busy()] * 8, otherwise=fake.honest(delay=0.02)) as server:
        async with judge_at(server, judge_concurrency=8) as judge:
            groups = [make_group(float(number), float(-number)) for number in range(1, 41)]
            running = asyncio.gather(*(judge.judge(group) for group in groups))
            async with asyncio.timeout(60):
                while judge.limiter.limit > 4:
                    await asyncio.sleep(0.001)
            results = await running
    assert all(isinstance(result, JudgedGroup) for result in results)
    assert judge.limiter.limit > 4
    assert server.most_at_once <= 8


async def test_the_budget_is_never_exceeded_and_what_was_judged_is_kept() -> None:
    price_of_a_call = (1000 * 1 + 100 * 10) / 1e6
    with JudgeServer(otherwise=fake.honest(delay=0.01)) as server:
        async with judge_at(server, max_cost=0.02, judge_concurrency=8, judge_reply_tokens=200) as judge:
            groups = [make_group(float(number), float(-number)) for number in range(1, 21)]
            results = await asyncio.gather(*(judge.judge(group) for group in groups))
    judged = [result for result in results if isinstance(result, JudgedGroup)]
    failed = [result for result in results if isinstance(result, JudgeFailure)]
    assert {result.reason for result in failed} == {Reason.OVER_BUDGET}
    assert len(server.requests) == len(judged)
    assert judge.budget.spent == pytest.approx(len(judged) * price_of_a_call)
    assert judge.budget.spent <= 0.02
    assert len(judged) >= 7, "money that was only set aside is used once the calls have come cheaper"


async def test_a_ceiling_without_a_price_is_refused() -> None:
    with JudgeServer() as server, pytest.raises(ConfigurationError, match="JUDGE_PRICE"):
        async with judge_at(server, max_cost=1.0, price=None):
            pass
    assert server.requests == []


async def test_the_same_group_twice_is_asked_about_once() -> None:
    with JudgeServer(otherwise=fake.honest(delay=0.05)) as server:
        async with judge_at(server, judge_orders=2) as judge:
            first, second = await asyncio.gather(judge.judge(make_group()), judge.judge(make_group()))
            third = await judge.judge(make_group())
    assert scores(first) == scores(second) == scores(third) == EXPECTED
    assert isinstance(third, JudgedGroup)
    assert third.cached
    assert third.cost_usd == 0
    assert len(server.requests) == 2


async def test_an_endpoint_that_falls_silent_is_gone_before_its_call_has_timed_out() -> None:
    """It has answered a probe while it judged: so its silence tells."""
    with JudgeServer(otherwise=fake.honest(delay=timedelta(hours=1).total_seconds())) as server:
        async with judge_at(server, retry=replace(AT_ONCE, gone_after=0.5)) as judge:
            judging = asyncio.create_task(judge.judge(make_group()))
            await asyncio.to_thread(server.was_probed.wait, 60)
            server.is_silent.set()
            with pytest.raises(JudgeError, match=r"is gone: group \S+ of window .* nor a probe was answered"):
                await asyncio.wait_for(judging, 60)
        assert isinstance(judge.store, MemoryVerdicts)
        [(_, call)] = judge.store.calls
    assert (call.result, call.tokens_estimated) == (CallResult.TIMEOUT, True), "it may be billed"


async def test_an_endpoint_that_does_one_thing_at_a_time_may_be_silent_while_it_judges() -> None:
    with JudgeServer(otherwise=fake.honest(delay=1.5)) as server:
        server.does_one_thing = True
        result = await judge_once(server, retry=replace(AT_ONCE, gone_after=0.2))
    assert scores(result) == EXPECTED
    assert len(server.requests) == 1
