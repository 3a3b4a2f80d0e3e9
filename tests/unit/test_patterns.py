"""Planted error patterns are found, and chance is not called one."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import pytest

from data_bridge.window_ids import windows_from
from tests.builders import make_action, make_call, make_step, make_trajectory
from tests.builders_ledger import make_judged
from trainer.patterns.faults import (
    CODES,
    FAILED,
    LONGEST,
    MOST_FAULTS,
    NO_ACTION,
    Fault,
    FaultSource,
    Observed,
    weaknesses,
)
from trainer.patterns.faults import observed as observed_in
from trainer.patterns.significance import ErrorPattern, patterns_of, week_of
from trainer.patterns.templates import MOST_TEMPLATES, Templates
from trainer.types import JudgedGroup, JudgeIdentity

PLANTED = (
    "insufficient margin for {amount} shares of ${ticker}",
    "order {number} was rejected by venue after {amount} ms",
    'market "{word}" closed {number} minutes ago',
    "price moved {amount}% beyond the limit of agent {word}",
    "cannot parse size {word} in line {number}",
)
WORDS = [
    f"{a}{b}" for a in ("ba", "ko", "mi", "re", "su", "ta", "vo", "zu") for b in ("lan", "mor", "pek", "rin", "tos")
]
AGENTS = [f"agent-{number}" for number in range(10)]
TWO_WEEKS = windows_from("2026-11-02T00:00", 14 * 24)


def filled(rng: random.Random, template: str) -> str:
    return template.format(
        amount=f"{rng.uniform(1, 900):.2f}", number=rng.randint(1, 90_000), ticker=rng.choice(WORDS).upper(),
        word=rng.choice(WORDS),
    )  # fmt: skip


def noise(rng: random.Random) -> str:
    """A message that is like no other."""
    return " ".join(rng.choice(WORDS) + rng.choice(WORDS) for _ in range(rng.randint(3, 8)))


def log_of(seed: int, planted: Sequence[str], share: float = 0.02, size: int = 2000) -> list[Observed]:
    """Trajectories of two weeks: planted patterns, rare ones beside them, and messages that are like no other."""
    rng = random.Random(seed)
    rare = [(f"{noise(rng)} {{number}} {{word}}", rng.uniform(0.0005, 0.003)) for _ in range(30)]
    rows = []
    for number in range(size):
        said = [filled(rng, one) for one in planted if rng.random() < share]
        said += [filled(rng, one) for one, often in rare if rng.random() < often]
        said += [noise(rng)] * (rng.random() < 0.05)
        faults = tuple(Fault(FaultSource.ERROR, text) for text in said)
        rows.append(Observed(f"t{number:05}", rng.choice(AGENTS), rng.choice(TWO_WEEKS), faults))
    return rows


def is_planted(pattern: ErrorPattern) -> str | None:
    """Which of the planted ones it is: all words that do not vary are in the template."""
    for one in PLANTED:
        fixed = {word for word in one.split() if not any(sign in word for sign in "{}")}
        if fixed <= set(pattern.template.split()):
            return one
    return None


def test_five_patterns_planted_at_two_per_cent_are_found_and_hardly_a_false_one() -> None:
    found = false = significant = 0
    for seed in range(20):
        names = [is_planted(one) for one in patterns_of(log_of(seed, PLANTED)) if one.significant]
        found += len({name for name in names if name is not None})
        false += sum(name is None for name in names)
        significant += len(names)
        assert len(names) - sum(name is None for name in names) <= len(PLANTED), "each is one pattern, not several"
    assert found >= 0.95 * 20 * len(PLANTED)
    assert false <= 0.05 * significant


def test_where_nothing_is_planted_nothing_is_significant() -> None:
    assert sum(bool(one.significant) for seed in range(20) for one in patterns_of(log_of(seed, ()))) <= 1


def test_what_began_this_week_is_rising_and_what_one_agent_does_is_its_own() -> None:
    rng = random.Random(5)
    rows = []
    for number in range(1500):
        agent, window = rng.choice(AGENTS), rng.choice(TWO_WEEKS)
        faults = []
        if week_of(window) == "2026-W46" and rng.random() < 0.03:
            faults.append(Fault(FaultSource.ERROR, f"venue timeout after {number} ms"))
        if agent == "agent-3" and rng.random() < 0.15:
            faults.append(Fault(FaultSource.CODE, "order_limit"))
        rows.append(Observed(f"t{number}", agent, window, tuple(faults)))
    found = {one.template: one for one in patterns_of(rows)}
    rising, own = found["venue timeout after <*> ms"], found["order_limit"]
    assert "rising" in rising.significant
    assert "one agent's" not in rising.significant
    assert "one agent's" in own.significant
    assert "rising" not in own.significant
    assert own.worst_agent == "agent-3"
    assert set(rising.by_week) == {"2026-W46"}


def test_a_trajectory_counts_once_however_often_it_says_it() -> None:
    row = Observed("t1", "a", TWO_WEEKS[0], tuple(Fault(FaultSource.ERROR, f"venue down {n}") for n in range(9)))
    [pattern] = patterns_of([row, row])
    assert pattern.trajectories == ("t1",)


def test_a_code_is_of_the_closed_list_and_a_text_cannot_pass_for_one() -> None:
    steps = [
        make_step(0, action=make_action("BUY", success=False, error="order_limit: 30% is more than 20%")),
        make_step(1, action=make_action("BUY", success=False, error="my_own_code: look at me")),
        make_step(2, action=make_action("BUY", success=False, error="x" * 10_000)),
        msgspec.structs.replace(make_step(3, calls=[make_call("hm")]), action=None),
        make_step(4, action=make_action("BUY", success=False)),
        make_step(5, action=make_action("BUY")),
    ]
    faults = observed_in(make_trajectory(steps=steps)).faults
    assert [one.text for one in faults if one.source is FaultSource.CODE] == ["order_limit", NO_ACTION, FAILED]
    assert [len(one.text) for one in faults if one.source is FaultSource.ERROR] == [23, LONGEST]


def test_a_row_with_a_thousand_errors_counts_for_a_few() -> None:
    steps = [make_step(n, action=make_action("BUY", success=False, error=f"{'a' * n} broke")) for n in range(1, 1000)]
    assert len(observed_in(make_trajectory(steps=steps)).faults) == MOST_FAULTS


def test_the_codes_are_those_of_the_simulated_worlds() -> None:
    import inspect
    import re

    from trainer.world import actions, guard
    from trainer.world.quests import carrying

    sources = "".join(inspect.getsource(module) for module in (actions, guard, carrying))
    said = re.findall(r'(?:ActionError|blocked)\(\s*"(\w+)"', sources)
    assert set(said) == CODES


def llm(judged: JudgedGroup) -> JudgedGroup:
    from dataclasses import replace

    return replace(judged, identity=JudgeIdentity("judge", "trading", "2", "2", is_llm=True))


def test_what_an_llm_judge_finds_weak_is_a_fault_of_those_below_the_mean() -> None:
    judged = make_judged((0.1, 0.5, 0.9))
    found = weaknesses(llm(judged))
    assert [one.trajectory_id for one in found] == [judged.group.trajectories[0].trajectory_id]
    assert found[0].faults == (Fault(FaultSource.JUDGE, "because"),)
    assert weaknesses(judged) == [], "what the offline judge says is computed, not found"


@pytest.mark.parametrize(
    ("texts", "template"),
    [
        (("no balance: 12.5 of $COIN", "no balance: 3 of $NOVA"), "no balance: <*> of <*>"),
        (("user 'bob' is unknown", "user 'eve' is unknown"), "user <*> is unknown"),
        (("job 9f8e7d6c-11aa failed", "job 1234abcd-22bb failed"), "job <*> failed"),
    ],
)
def test_texts_that_differ_in_names_and_numbers_are_one_template(texts: Sequence[str], template: str) -> None:
    miner = Templates()
    assert [miner.add(text) for text in texts][-1] == template.split()


def test_templates_are_bounded() -> None:
    miner = Templates()
    found = [miner.add(f"{'a' * (n % 40)}{chr(97 + n % 26)}{n // 40 * 'b'} x y") for n in range(3000)]
    assert len({id(one) for one in found if one is not None}) <= MOST_TEMPLATES
