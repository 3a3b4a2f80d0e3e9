"""The small rules around judging: price, budget, calls in flight, retries, dialects, when to give up."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from data_bridge.errors import ConfigurationError, JudgeError
from data_bridge.quality import Reason
from tests.builders_judge import SECRETS, judge_settings, make_group
from trainer.config.sections import JudgeSecrets, JudgeSettings
from trainer.judge import cost
from trainer.judge.client import Dialect, Structure, retry_after_of
from trainer.judge.cost import Price, estimate, price_of
from trainer.judge.limits import Budget, Limiter, OverBudget, Retry
from trainer.judge.open import identity_of, open_judge, refuse_unusable
from trainer.judge.outcome import IDENTITY, OutcomeJudge
from trainer.judge.prompt import load_rubric, parse_rubric
from trainer.progress import FailurePolicy, FailureTally
from trainer.run.judge_windows import judge_stream
from trainer.types import Group, JudgedGroup, JudgeFailure

# Price


def test_the_users_price_overrides_the_table_and_dated_models_cost_what_their_family_costs() -> None:
    assert price_of(judge_settings(price=None, judge_model="gpt-5-mini-2025-08-07")) == price_of(
        judge_settings(price="0.25/2/0.025")
    )
    assert price_of(judge_settings(price=None, judge_model="unheard-of")) is None


def test_a_listed_price_that_cannot_be_one_is_called_unknown() -> None:
    known, wrong_unit, free = (
        price_of(judge_settings(price=None, judge_model=model))
        for model in ("gpt-4.1-mini", "wandb/openai/gpt-oss-20b", "github_copilot/gpt-4o")
    )
    assert known == Price(0.4, 1.6, cached=0.1)
    assert (wrong_unit, free) == (None, None)


@pytest.mark.parametrize("spec", [None, ModuleSpec("litellm", None)])
def test_without_the_table_no_price_is_known(monkeypatch: pytest.MonkeyPatch, spec: ModuleSpec | None) -> None:
    monkeypatch.setattr(cost, "find_spec", lambda name: spec)
    monkeypatch.setattr(cost, "_list_prices", cost._list_prices.__wrapped__)
    assert price_of(judge_settings(price=None, judge_model="gpt-5-mini")) is None
    assert price_of(judge_settings(price="0.25/2", judge_model="gpt-5-mini")) == Price(0.25, 2.0)


@pytest.mark.parametrize("text", ["2", "1/2/3", "a/b", "-1/2", "1 / "])
def test_a_price_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="JUDGE_PRICE"):
        price_of(judge_settings(price=text))


def test_cached_tokens_have_their_own_price_and_cost_the_full_one_where_it_is_not_known() -> None:
    with_cache, without = (price_of(judge_settings(price=price)) for price in ("1/10/0.1", "1/10"))
    assert with_cache is not None
    assert without is not None
    assert with_cache.cost(1_000_000, 0, 400_000) == pytest.approx(0.6 + 0.04)
    assert without.cost(1_000_000, 0, 400_000) == pytest.approx(1.0)


def test_the_estimate_says_what_is_saved_where_one_order_is_enough() -> None:
    adaptive = estimate(10, 20_000, judge_settings(judge_orders=2))
    fixed = estimate(10, 20_000, judge_settings(judge_orders=2, judge_order_rule="all"))
    assert adaptive.usd == fixed.usd
    assert adaptive.least == pytest.approx(0.55)
    assert fixed.least == 1.0
    assert "at most" in str(adaptive)
    assert "at most" not in str(fixed)


def test_the_estimate_counts_every_order_and_never_more_than_the_context() -> None:
    once = estimate(10, 20_000, judge_settings(judge_orders=1))
    twice = estimate(10, 20_000, judge_settings(judge_orders=2))
    assert (once.calls, twice.calls) == (10, 20)
    assert once.usd is not None
    assert twice.usd == pytest.approx(2 * once.usd)
    assert estimate(10, 10**9, judge_settings(judge_orders=1)).prompt_tokens == 10 * 24_000


def test_the_estimate_says_when_nothing_is_paid_and_when_the_price_is_unknown() -> None:
    assert estimate(10, 1_000, JudgeSettings(judge="outcome")).usd == 0
    unknown = estimate(10, 1_000, judge_settings(price=None))
    assert unknown.usd is None
    assert "JUDGE_PRICE" in str(unknown)


def test_the_estimate_of_nothing_names_the_judge_that_would_have_judged() -> None:
    assert str(estimate(0, 0, JudgeSettings(judge="outcome"))).startswith("offline judge")
    assert str(estimate(0, 0, judge_settings())).startswith("nothing to judge")
    with pytest.raises(ConfigurationError, match="JUDGE_PRICE"):
        estimate(0, 0, judge_settings(price="free"))


@pytest.mark.parametrize("url", ["api.example.com/v1", "ftp://judge/v1", "http://", "http://[::1/v1"])
def test_an_endpoint_that_is_no_address_is_refused_before_anything_is_asked(url: str) -> None:
    with pytest.raises(ConfigurationError, match="JUDGE_BASE_URL"):
        refuse_unusable(judge_settings(url), SECRETS)


def test_what_the_judge_lacks_is_refused_before_anything_is_opened() -> None:
    refuse_unusable(judge_settings(), SECRETS)
    refuse_unusable(JudgeSettings(judge="outcome", judge_base_url="nonsense", max_cost=1.0), JudgeSecrets())
    with pytest.raises(ConfigurationError, match="--max-cost needs the price"):
        refuse_unusable(judge_settings(price=None, max_cost=1.0), SECRETS)
    with pytest.raises(ConfigurationError, match="rubric"):
        refuse_unusable(judge_settings(rubric="/nowhere.md"), SECRETS)


# Budget


async def test_a_call_waits_for_money_that_is_only_set_aside() -> None:
    budget = Budget(1.0)
    entered = asyncio.Event()

    async def second() -> None:
        async with budget.set_aside(0.6):
            entered.set()

    async with budget.set_aside(0.6):
        waiting = asyncio.create_task(second())
        await asyncio.sleep(0)
        assert not entered.is_set()
        budget.pay(0.1)
    await waiting
    assert entered.is_set()


async def test_once_the_ceiling_has_stopped_a_call_it_stops_all_later_ones() -> None:
    budget = Budget(1.0)
    with pytest.raises(OverBudget):
        async with budget.set_aside(1.1):
            pass
    with pytest.raises(OverBudget):
        async with budget.set_aside(0.1):
            pass


async def test_money_set_aside_comes_back_when_a_call_fails_or_is_cancelled() -> None:
    budget = Budget(1.0)

    async def hold() -> None:
        async with budget.set_aside(1.0):
            await asyncio.sleep(60)

    held = asyncio.create_task(hold())
    await asyncio.sleep(0)
    held.cancel()
    await asyncio.gather(held, return_exceptions=True)
    async with asyncio.timeout(60), budget.set_aside(1.0):
        pass


# Calls in flight


async def test_no_more_calls_than_the_limit_run_at_once_and_cancelled_ones_free_their_place() -> None:
    limiter = Limiter(2)
    running = most = 0

    async def call() -> None:
        nonlocal running, most
        async with limiter.slot():
            running += 1
            most = max(most, running)
            try:
                await asyncio.sleep(0.001)
            finally:
                running -= 1

    calls = [asyncio.create_task(call()) for _ in range(20)]
    await asyncio.sleep(0)
    for cancelled in calls[::3]:
        cancelled.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert most == 2
    async with asyncio.timeout(60), limiter.slot(), limiter.slot():
        pass


def test_the_limit_is_halved_once_for_calls_made_together_and_grows_back_to_its_most() -> None:
    limiter = Limiter(16)
    together = time.monotonic()
    for _ in range(10):
        limiter.busy(together)
    assert limiter.limit == 8
    for _ in range(9):
        limiter.answered()
    assert limiter.limit == 9
    for _ in range(1_000):
        limiter.answered()
    assert limiter.limit == 16
    for _ in range(10):
        limiter.busy(time.monotonic())
    assert limiter.limit == 1


# Retries


def test_backoff_doubles_up_to_its_longest_and_the_endpoints_wish_comes_first() -> None:
    rule = Retry(first_delay=1.0, max_delay=8.0)
    chance = random.Random(0)
    for failures, most in [(1, 1.0), (2, 2.0), (4, 8.0), (9, 8.0)]:
        assert most / 2 <= rule.delay(failures, None, chance) <= most
    assert rule.delay(1, 3.5, chance) == 3.5
    assert rule.delay(1, 3_600.0, chance) == 8.0
    assert rule.delay(1, float("nan"), chance) <= 1.0


def test_retry_after_is_understood_in_all_its_forms() -> None:
    now = datetime(2026, 11, 2, 12, 0, tzinfo=UTC)
    assert retry_after_of({"retry-after": "2.5"}) == 2.5
    assert retry_after_of({"retry-after-ms": "250"}) == 0.25
    assert retry_after_of({"retry-after": "Mon, 02 Nov 2026 12:00:30 GMT"}, now) == 30.0
    assert retry_after_of({"retry-after": "soon"}) is None
    assert retry_after_of({}) is None


def test_a_dialect_gets_poorer_only_by_what_was_refused() -> None:
    full = Dialect()
    assert full.poorer("Unsupported parameter: max_completion_tokens") == Dialect(limit_name="max_tokens")
    assert full.poorer("temperature does not support 0") == Dialect(temperature=None)
    assert full.poorer("no json_schema") == Dialect(structure=Structure.JSON_MODE)
    assert Dialect(structure=Structure.TEXT).poorer("no") is None


# When to give up


def failure(reason: Reason) -> JudgeFailure:
    return JudgeFailure(make_group(), reason, "it was down")


def tally(judged: int, failed: int) -> FailureTally:
    found = FailureTally()
    for _ in range(judged):
        found = found.plus(JudgedGroup(make_group(), (), IDENTITY, ""))
    for _ in range(failed):
        found = found.plus(failure(Reason.JUDGE_UNAVAILABLE))
    return found


def test_a_run_stops_when_more_than_its_share_of_groups_has_failed() -> None:
    policy = FailurePolicy(0.2, enough=10)
    policy.check(tally(8, 2))
    with pytest.raises(JudgeError, match="3 of 11 groups") as error:
        policy.check(tally(8, 3))
    assert error.value.exit_code == 4


def test_a_run_does_not_stop_for_its_first_groups_but_at_its_end() -> None:
    policy = FailurePolicy(0.2, enough=10)
    policy.check(tally(0, 3))
    with pytest.raises(JudgeError):
        policy.check(tally(0, 3), at_end=True)


def test_a_spent_budget_and_a_long_group_are_no_failures_of_the_judge() -> None:
    found = FailureTally().plus(failure(Reason.OVER_BUDGET)).plus(failure(Reason.OVER_CONTEXT))
    assert found == FailureTally()


# Rubrics


def test_a_rubrics_version_is_the_declared_one_and_its_content() -> None:
    first, second = (
        parse_rubric("own", "version: 3\nReward patience."),
        parse_rubric("own", "version: 3\nReward haste."),
    )
    assert first.version.startswith("3-")
    assert first.version != second.version
    assert first.text == "Reward patience."
    assert parse_rubric("own", "Reward patience.").version.startswith("0-")


def test_a_rubric_is_a_built_in_name_or_a_file(tmp_path: Path) -> None:
    own = tmp_path / "patience.md"
    own.write_text("Reward patience.")
    assert load_rubric(str(own)).name == "patience"
    assert "could be known" in load_rubric("trading").text
    for missing in ("no-such-rubric", str(tmp_path), "../trading"):
        with pytest.raises(ConfigurationError, match="--rubric"):
            load_rubric(missing)
    with pytest.raises(ConfigurationError, match="empty"):
        parse_rubric("own", "version: 1\n  \n")


# The judge that the settings ask for


async def test_without_a_model_the_judge_is_the_offline_one() -> None:
    async with open_judge(JudgeSettings(), JudgeSecrets(), None, "run") as judge:
        assert isinstance(judge, OutcomeJudge)


def test_an_llm_judge_needs_a_model_and_a_known_kind() -> None:
    with pytest.raises(ConfigurationError, match="JUDGE_MODEL"):
        identity_of(JudgeSettings(judge="llm"))
    with pytest.raises(ConfigurationError, match="--judge"):
        identity_of(JudgeSettings(judge="oracle"))


async def test_openai_needs_a_key() -> None:
    with pytest.raises(ConfigurationError, match="JUDGE_API_KEY"):
        async with open_judge(JudgeSettings(judge_model="gpt-5-mini"), JudgeSecrets(), None, "run"):
            pass


# The stream


class SlowJudge(OutcomeJudge):
    in_flight = most = 0

    async def judge(self, group: Group) -> JudgedGroup | JudgeFailure:
        SlowJudge.in_flight += 1
        SlowJudge.most = max(SlowJudge.most, SlowJudge.in_flight)
        await asyncio.sleep(0.001)
        SlowJudge.in_flight -= 1
        if group.group_id == "bad":
            raise JudgeError("no more")
        return await super().judge(group)


async def numbered(number: int, read: list[str], *, bad: bool = False) -> AsyncIterator[Group]:
    for place in range(number):
        read.append(str(place))
        yield make_group(group_id="bad" if bad and place == 5 else str(place))


async def test_the_stream_judges_every_group_once_with_a_bounded_number_in_flight() -> None:
    read: list[str] = []
    heard = [result.group.group_id async for result in judge_stream(SlowJudge(), numbered(30, read), in_flight=4)]
    assert sorted(heard) == sorted(read)
    assert SlowJudge.most == 4


async def test_an_error_of_the_judge_ends_the_stream_and_leaves_nothing_running() -> None:
    read: list[str] = []
    with pytest.raises(JudgeError):
        async for _ in judge_stream(SlowJudge(), numbered(1_000, read, bad=True), in_flight=4):
            pass
    assert len(read) < 30
    assert [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("judge ")] == []
