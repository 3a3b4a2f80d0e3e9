"""Arms near what half of the agents succeed at are drawn most, none is ever empty, and a key gives the same draws."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from data_bridge.survey_types import Coverage, UsableTrajectory, WindowSummary
from trainer.plan.difficulty import EASY, FLAT, HARD, MIDDLE, UNKNOWN, of_gains, of_scores
from trainer.statistics.curriculum import (
    FLOOR,
    TARGET,
    Arm,
    Result,
    chances,
    draw,
    in_order,
    moved,
    with_patterns,
)
from trainer.world.arms import arms_of, markets_of
from trainer.world.market import Market

ARMS = arms_of(["a", "b", "c", "d"])
PLACES = [f"window-{number}" for number in range(400)]


def test_the_arms_of_the_market_end_with_the_market_that_was_asked_for() -> None:
    several = markets_of(Market(3, 0.2, "several", 2))
    assert list(several) == ["one, luck 0", "one, luck 0.2", "several, luck 0", "several, luck 0.2"]
    assert several["several, luck 0.2"] == Market(3, 0.2, "several", 2)
    assert list(markets_of(Market(3, 0.0, "one"))) == ["one, luck 0"]
    assert [arm.difficulty for arm in arms_of(list(several))] == pytest.approx([0, 1 / 3, 2 / 3, 1])


def test_the_arm_at_the_aim_is_the_likeliest_and_none_is_below_the_floor() -> None:
    for aim, best in ((0.0, 0), (0.35, 1), (0.6, 2), (1.0, 3)):
        found = chances(ARMS, aim)
        assert found.index(max(found)) == best
        assert min(found) >= FLOOR
        assert sum(found) == pytest.approx(1)


def test_the_aim_moves_up_where_more_than_the_target_succeed_and_down_where_fewer_do() -> None:
    def after(share: float) -> float:
        return moved(0.5, [Result(round(1000 * share), 1000)])

    assert after(TARGET) == pytest.approx(0.5)
    assert 0.5 < after(TARGET + 0.1) < after(TARGET + 0.3)
    assert after(TARGET - 0.3) < after(TARGET - 0.1) < 0.5
    assert moved(0.9, [Result(9, 9)]) == 1.0
    assert moved(0.1, [Result(0, 9)]) == 0.0
    assert moved(0.3, []) == 0.3, "a round that nobody tried says nothing"


@pytest.mark.parametrize("aim", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("number", [4, 10])
def test_at_every_moment_every_arm_has_its_share_of_the_draws(number: int, aim: float) -> None:
    arms = arms_of([f"arm-{place}" for place in range(number)])
    counts = Counter[str]()
    for place, arm in enumerate(draw(arms, chances(arms, aim), {}, PLACES, "key"), start=1):
        counts[arm.name] += 1
        if place >= number:
            assert min(counts[one.name] for one in arms) >= FLOOR * place


def test_draws_follow_the_chances_where_no_arm_is_due() -> None:
    likely = [0.1, 0.2, 0.3, 0.4]
    counts = Counter(arm.name for seed in range(20) for arm in draw(ARMS, likely, {}, PLACES, str(seed)))
    for arm, chance in zip(ARMS, likely, strict=True):
        assert counts[arm.name] / counts.total() == pytest.approx(chance, abs=0.02)


def test_draws_can_be_made_in_parts_and_come_out_the_same() -> None:
    likely = chances(ARMS, 0.2)
    whole = [arm.name for arm in draw(ARMS, likely, {}, PLACES, "7")]
    first = [arm.name for arm in draw(ARMS, likely, {}, PLACES[:50], "7")]
    rest = [arm.name for arm in draw(ARMS, likely, Counter(first), PLACES[50:], "7")]
    assert first + rest == whole
    assert whole != [arm.name for arm in draw(ARMS, likely, {}, PLACES, "8")], "another seed draws others"


def test_a_log_is_drawn_whole_with_the_arm_at_the_aim_first() -> None:
    members = {arm: [f"{arm.name}{number}" for number in range(50)] for arm in ARMS}
    order = in_order(members, 0.0, "seed")
    assert sorted(order) == sorted(name for own in members.values() for name in own)
    head = Counter(order[name].name for name in list(order)[:40])
    assert head.most_common(1)[0][0] == "a"
    assert min(head[arm.name] for arm in ARMS) >= FLOOR * 40
    assert list(order) == list(in_order(members, 0.0, "seed"))


def test_error_patterns_make_an_arm_up_to_twice_as_heavy() -> None:
    drawn = {"w1": "a", "w2": "a", "w3": "b", "w4": "c"}
    heavier = with_patterns(ARMS, drawn, {"w1": 1.0, "w2": 0.0, "w3": 1.0})
    assert [arm.weight for arm in heavier] == [1.5, 2.0, 1.0, 1.0]
    assert chances(heavier, 0.33)[1] > chances(ARMS, 0.33)[1]
    assert with_patterns([FLAT], {"w": "flat"}, {"w": 1.0}) == [FLAT], "what teaches nothing stays at its floor"


def window(*gains: float | None) -> WindowSummary:
    usable = tuple(UsableTrajectory(f"t{n}", f"a{n}", None, None, 1, 1, gain=gain) for n, gain in enumerate(gains))
    return WindowSummary("w", 1, len(gains), len(gains), 0, 0, Coverage(1, 1, 0, 0), None, usable, ())


def test_windows_of_a_log_are_as_hard_as_their_agents_lost() -> None:
    assert of_gains(window(0.1, 0.2, 0.1)).arm is EASY
    assert of_gains(window(0.1, -0.2)).arm is MIDDLE
    assert of_gains(window(-0.1, -0.2, -0.1)).arm is HARD
    assert of_gains(window(0.1, 0.1, 0.1)).arm is FLAT, "nobody differs from anybody"
    assert of_gains(window(None, 0.1)).arm is UNKNOWN


def test_a_judged_window_is_as_hard_as_its_agents_fall_behind_the_incumbent() -> None:
    scores = (0.6, 0.7, 0.65)
    assert of_scores(scores, 0.5, 0.0).arm is EASY
    assert of_scores(scores, 0.8, 0.0).arm is HARD
    assert of_scores(scores, 0.8, 0.3).arm is FLAT, "less than --min-spread"
    assert of_scores((0.4, 0.6), None, 0.0).arm is MIDDLE


def test_more_arms_than_floors_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="1 to 10 arms"):
        chances([Arm(str(number), 0.0) for number in range(11)], 0.0)


# What it is worth: the short version of ``benchmarks/curriculum.py``


def benchmark() -> Any:
    path = Path(__file__).parents[2] / "benchmarks" / "curriculum.py"
    spec = importlib.util.spec_from_file_location("benchmark_curriculum", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_a_policy_learns_by_curriculum_and_no_arm_has_less_than_its_share_of_the_draws() -> None:
    module = benchmark()
    found = await module.learn(0, "auto", days=4, rate=4.0)
    assert sum(found.draws.values()) == 24 * found.days
    assert min(found.draws.values()) >= FLOOR * found.draws.total()
    assert len(found.draws) == 4
    assert found.latest.valid > 2 * found.base.valid
    again = await module.learn(0, "auto", days=4, rate=4.0)
    assert again == found, "seeded"
