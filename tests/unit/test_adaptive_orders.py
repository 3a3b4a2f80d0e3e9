"""When a group is shown in another order: the arithmetic, and who waits for whom."""

from __future__ import annotations

import asyncio
import random
from statistics import fmean

import pytest

from trainer.judge.adaptive import MAX_TURNED, MIN_DEGREES, OrderNoise, OrderRule, in_place, is_sample, turned_share
from trainer.ledger.order_decisions import MemoryDecisions, OrderReason
from trainer.ledger.verdicts import JudgedTrajectory, Judgement


def judgement(*scores: float) -> Judgement:
    return Judgement(
        tuple(JudgedTrajectory(f"content-{place}", f"t-{place}", score, "") for place, score in enumerate(scores)), ""
    )


def rule_with(sd: float | None, most: int = 2) -> OrderRule:
    rule = OrderRule(most, adaptive=True, decisions=MemoryDecisions())
    if sd is not None:
        for number in range(MIN_DEGREES):
            rule.noise.add(f"measured-{number}", [sd, -sd], [0.0, 0.0])
        assert rule.noise.sd == pytest.approx(sd)
    return rule


NOT_SAMPLED = next(name for name in (f"group-{number}" for number in range(100)) if not is_sample(name))
SAMPLED = next(name for name in (f"group-{number}" for number in range(100)) if is_sample(name))


def test_a_tenth_of_the_groups_is_sampled_by_name_alone() -> None:
    sampled = [is_sample(f"2026-11-02T10:00/{number}") for number in range(5_000)]
    assert 0.085 < fmean(sampled) < 0.115
    assert sampled == [is_sample(f"2026-11-02T10:00/{number}") for number in range(5_000)]


def test_the_share_that_another_order_turns_round_is_what_chance_gives() -> None:
    chance, sd, means = random.Random(1), 0.15, [0.2, 0.35, 0.5, 0.9]
    turned = whole = 0.0
    for _ in range(40_000):
        # What another order says of each, given what the first said; its mean with the first.
        moved = [mean + chance.gauss(0, sd * 2**0.5) / 2 for mean in means]
        for place, one in enumerate(means):
            for other in range(place):
                before, after = one - means[other], moved[place] - moved[other]
                turned += abs(after) if before * after < 0 else 0.0
                whole += abs(after)
    assert turned_share(means, sd, 1) == pytest.approx(turned / whole, rel=0.05)


def test_clear_differences_need_no_further_order_and_close_ones_do() -> None:
    assert turned_share([0.1, 0.5, 0.9], 0.1, 1) < MAX_TURNED < turned_share([0.45, 0.5, 0.55], 0.1, 1)
    assert turned_share([0.45, 0.5, 0.55], 0.1, 1) > turned_share([0.45, 0.5, 0.55], 0.1, 4)
    assert turned_share([0.5, 0.5, 0.5], 0.0, 1) == 0, "a judge that never moves has nothing to add"


def test_a_shift_of_the_whole_group_is_no_noise() -> None:
    noise = OrderNoise()
    for number in range(MIN_DEGREES):
        noise.add(str(number), [0.1, 0.4, 0.7], [0.3, 0.6, 0.9])
        noise.add(str(number), [0.0, 1.0], [1.0, 0.0])  # a group counts once
    assert noise.sd == pytest.approx(0, abs=1e-9)


def test_the_noise_of_a_judge_is_found_again() -> None:
    chance, noise = random.Random(2), OrderNoise()
    for number in range(400):
        true = [chance.uniform(0.2, 0.8) for _ in range(6)]
        noise.add(str(number), *([one + chance.gauss(0, 0.12) for one in true] for _ in range(2)))
    assert noise.sd == pytest.approx(0.12, rel=0.05)


def test_nothing_rests_on_too_few_groups() -> None:
    noise = OrderNoise()
    for number in range(MIN_DEGREES - 1):
        noise.add(str(number), [0.1, 0.2], [0.2, 0.1])
    assert noise.sd is None
    noise.add("one more", [0.1, 0.2], [0.2, 0.1])
    assert noise.sd is not None


async def test_a_clear_group_is_left_at_one_order_with_its_reason() -> None:
    rule = rule_with(0.05)
    async with rule.course("key", NOT_SAMPLED, 3) as course:
        assert await course.wanted({}) == [0]
        assert await course.wanted({0: judgement(0.1, 0.5, 0.9)}) == []
    assert course.unasked is not None
    assert (course.unasked.reason, course.unasked.unasked) == (OrderReason.CLEAR, 1)
    assert course.order_sd(1) == course.unasked.order_sd == pytest.approx(0.05)


async def test_a_close_group_is_shown_again_up_to_the_maximum() -> None:
    rule = rule_with(0.3, most=3)
    async with rule.course("key", NOT_SAMPLED, 3) as course:
        known = {0: judgement(0.48, 0.5, 0.52)}
        assert await course.wanted(known) == [1]
        known[1] = judgement(0.52, 0.5, 0.48)
        assert await course.wanted(known) == [2]
        known[2] = judgement(0.5, 0.5, 0.5)
        assert await course.wanted(known) == []
    assert course.unasked is None


async def test_a_sampled_group_is_shown_in_two_orders_whatever_its_scores() -> None:
    rule = rule_with(0.01)
    async with rule.course("key", SAMPLED, 2) as course:
        assert await course.wanted({}) == [0, 1]
        before = rule.noise.sd
        assert await course.wanted({0: judgement(0.1, 0.9), 1: judgement(0.9, 0.1)}) == []
    assert rule.noise.sd != before, "it measures the judge"


async def test_a_decision_is_made_once_whatever_is_known_later() -> None:
    decisions = MemoryDecisions()
    first, later = rule_with(0.01), rule_with(0.4)
    first.decisions = later.decisions = decisions
    for rule in (first, later):
        async with rule.course("key", NOT_SAMPLED, 3) as course:
            assert await course.wanted({0: judgement(0.1, 0.5, 0.9)}) == []
        assert course.order_sd(1) == pytest.approx(0.01)


async def test_groups_wait_for_the_measurement_that_is_under_way_and_are_not_measured_as_well() -> None:
    rule = rule_with(None)
    asked = list[str]()
    are_due = asyncio.Event()

    async def judge(number: int) -> None:
        async with rule.course(f"key-{number}", NOT_SAMPLED, 6) as course:
            known = {0: judgement(0.0, 0.2, 0.4, 0.6, 0.8, 1.0)}
            while await course.wanted(known):
                asked.append(course.decisions[1].reason)
                if len(asked) == MIN_DEGREES / 5:
                    are_due.set()
                await are_due.wait()
                known[1] = judgement(0.01, 0.2, 0.4, 0.6, 0.8, 1.0)

    await asyncio.gather(*(judge(number) for number in range(40)))
    assert asked == [OrderReason.UNMEASURED] * (MIN_DEGREES // 5)


async def test_if_a_measurement_fails_another_group_takes_its_place() -> None:
    rule = rule_with(None)

    async def fails() -> None:
        async with rule.course("failing", NOT_SAMPLED, MIN_DEGREES + 1) as course:
            assert await course.wanted({0: judgement(*[0.5] * (MIN_DEGREES + 1))}) == [1]
            await asyncio.sleep(0)
            raise RuntimeError("the judge is down")

    async def waits() -> list[int]:
        async with rule.course("waiting", NOT_SAMPLED, 3) as course:
            return await course.wanted({0: judgement(0.1, 0.5, 0.9)})

    failed, wanted = await asyncio.gather(fails(), waits(), return_exceptions=True)
    assert isinstance(failed, RuntimeError)
    assert wanted == [1]


def test_scores_of_two_orders_are_compared_by_content() -> None:
    one, other = judgement(0.1, 0.9), judgement(0.1, 0.9)
    turned = Judgement(other.scores[::-1], "")
    assert in_place(one.scores) == in_place(turned.scores)
