"""Groups that show an error pattern count more: bounded, at the cost of the others, and by no agent's will."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import make_action, make_step, make_trajectory
from tests.builders_training import judged
from trainer.patterns.faults import Fault, FaultSource, Observed
from trainer.rewards import Graded, MemberReward
from trainer.train.credit import RULE, emphasised, history_of, rewards_of
from trainer.train.pattern_weights import pattern_weights
from trainer.types import JudgedGroup

MOST = 4.0
BLOCKED = "order_limit: 40% is more than 20%"
AGENTS = 8


def an_hour(number: int, errors: Mapping[int, str] = {}, best: int = 0) -> JudgedGroup:
    """Eight agents, of which those in ``errors`` are turned away with these words."""
    members = [
        make_trajectory(
            f"agent-{place}",
            trajectory_id=f"{number}-{place}",
            steps=[
                make_step(action=make_action("SELL" if place % 2 else "BUY", success=place not in errors,
                                             error=errors.get(place)))
            ],
        )
        for place in range(AGENTS)
    ]  # fmt: skip
    scores = [0.0 if place in errors else float(place % 2 == best) for place in range(AGENTS)]
    return judged(members, scores, group_id=f"hour-{number}")


def trained(hours: int, failing: Mapping[int, int], text: str = "order_limit") -> list[Observed]:
    """What was trained: ``hours`` of eight agents, of which each fails as often as ``failing`` says."""
    source = FaultSource.CODE if text == "order_limit" else FaultSource.ERROR
    return [
        Observed(
            f"old-{hour}-{place}",
            f"agent-{place}",
            "2026-11-02T00:00",
            (Fault(source, text),) if hour < failing.get(place, 0) else (),
        )
        for hour in range(hours)
        for place in range(AGENTS)
    ]


EVERYBODY = dict.fromkeys(range(AGENTS), 3)


def test_a_group_that_shows_a_known_pattern_counts_more_and_the_others_pay_for_it() -> None:
    groups = [an_hour(0, {2: BLOCKED}), *(an_hour(number, best=number % 2) for number in range(1, 12))]
    weights = pattern_weights(groups, trained(100, EVERYBODY), MOST)
    assert weights.of_groups == (MOST, *[1.0] * 11)
    assert weights.patterns == 1
    emphasis = weights.of_members(groups)
    assert set(emphasis) == {f"0-{place}" for place in range(AGENTS)}
    plain = history_of(groups)
    weighed = history_of(groups, replace(RULE, most_emphasis=MOST), emphasis=emphasis)
    assert size(weighed) == pytest.approx(size(plain), rel=1e-12), "the step is as long as without"
    for place, (before, after) in enumerate(zip(plain, weighed, strict=True)):
        ratio = after[0].credit / before[0].credit
        assert ratio == pytest.approx(after[0].pattern_weight)
        assert ratio > 2.5 if place == 0 else 0.7 < ratio < 1


def size(rewards: Sequence[Sequence[MemberReward]]) -> float:
    return sum(abs(one.credit) for own in rewards for one in own)


def test_what_every_group_shows_changes_nothing_and_leaves_room_for_what_a_few_show() -> None:
    everywhere = [an_hour(number, {2: BLOCKED}) for number in range(12)]
    weights = pattern_weights(everywhere, trained(100, EVERYBODY), MOST)
    assert len(set(weights.of_groups)) == 1
    weighed = history_of(everywhere, replace(RULE, most_emphasis=MOST), emphasis=weights.of_members(everywhere))
    assert weighed == [
        [replace(one, graded=replace(one.graded, emphasis=weights.of_groups[0])) for one in own]
        for own in history_of(everywhere)
    ], "not a bit of a credit"
    one_more = [an_hour(0, {2: BLOCKED, 5: "venue closed for the day"}), *everywhere[1:]]
    known = [*trained(100, EVERYBODY), *trained(100, EVERYBODY, "venue closed for the day")]
    rare, *rest = pattern_weights(one_more, [replaced(one, f"{n}") for n, one in enumerate(known)], MOST).of_groups
    assert rare > 2 * max(rest)


def replaced(one: Observed, name: str) -> Observed:
    return Observed(name, one.agent_id, one.window_id, one.faults)


def test_nobody_attracts_weight_alone_however_often_it_fails() -> None:
    groups = [an_hour(0, {2: BLOCKED}), *(an_hour(number) for number in range(1, 12))]
    assert set(pattern_weights(groups, trained(100, {2: 100}), MOST).of_groups) == {1.0}
    its_own_words = [an_hour(0, {2: "look at my hour please"}), *groups[1:]]
    known = trained(100, {2: 100}, "look at my hour please")
    assert set(pattern_weights(its_own_words, known, MOST).of_groups) == {1.0}


def test_who_fails_more_often_than_the_others_is_counted_by_what_they_do() -> None:
    groups = [an_hour(number, {2: BLOCKED}) for number in range(6)] + [an_hour(number) for number in range(6, 12)]
    usual = pattern_weights(groups[5:], trained(100, EVERYBODY), MOST).of_groups[0]
    eager = pattern_weights(groups, trained(100, {**EVERYBODY, 2: 100}), MOST)
    assert usual == MOST
    extra = sum(eager.of_groups) - len(groups)
    assert 0 < extra < 0.5 * (usual - 1), "all six hours together less than one by chance"
    two = pattern_weights(groups, trained(100, {2: 100, 5: 100}), MOST)
    assert max(two.of_groups) < 1 + 0.35 * (MOST - 1)


def test_what_only_the_judge_named_weighs_nothing_since_it_names_what_lost() -> None:
    weak = Fault(FaultSource.JUDGE, "It staked everything on one order.")
    known = [Observed(one.trajectory_id, one.agent_id, one.window_id, one.faults and (weak,))
             for one in trained(100, EVERYBODY)]  # fmt: skip
    own = [Observed(f"0-{place}", f"agent-{place}", "2026-11-02T00:00", (weak,)) for place in range(AGENTS)]
    groups = [an_hour(number) for number in range(12)]
    assert set(pattern_weights(groups, [*known, *own], MOST).of_groups) == {1.0}


def test_single_faults_weigh_nothing() -> None:
    groups = [an_hour(0, {2: "qwfp zxcv arst"}), *(an_hour(number) for number in range(1, 12))]
    assert set(pattern_weights(groups, trained(100, {}), MOST).of_groups) == {1.0}


weights_and_sizes = st.lists(
    st.tuples(st.floats(-5, 50), st.floats(0, 1e6, allow_subnormal=False)), min_size=1, max_size=20
)


@given(weights_and_sizes, st.floats(1, 10))
def test_weights_are_bounded_and_keep_the_length_of_a_step(groups: list[tuple[float, float]], most: float) -> None:
    emphases, sizes = [one for one, _ in groups], [one for _, one in groups]
    found = emphasised(emphases, sizes, most)
    assert all(1 / most - 1e-9 <= one <= most + 1e-9 for one in found)
    assert sum(a * b for a, b in zip(found, sizes, strict=True)) == pytest.approx(sum(sizes), rel=1e-9)


def test_without_patterns_every_bit_is_as_it_was() -> None:
    members = [Graded("", score, 0.1, "stake +1", 1.0) for score in (0.1, 0.4, 0.913)]
    for own in rewards_of([("a", members), ("b", members[::-1])], RULE):
        for one in own:
            assert one.pattern_weight == 1.0
    assert rewards_of([("a", members)], RULE) == [
        [replace(one) for one in rewards_of([("a", members)], replace(RULE, most_emphasis=MOST))[0]]
    ]
