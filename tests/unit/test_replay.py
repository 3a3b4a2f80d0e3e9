"""What is replayed follows the stated chances, and a wrong sampler would be found."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare, kstest

from tests.builders_ledger import make_judged
from trainer.config.training import ReplaySettings, ReplayShareSettings
from trainer.ledger.replays import Replayable
from trainer.train.replay import Places, draw, places_of, priorities
from trainer.types import JudgedGroup

NEWEST = 20
BUFFER = [
    Replayable(number, f"batch-{number}", "g", NEWEST - number % 9, 0.1 + 0.05 * (number % 7), 1 + number % 2)
    for number in range(24)
]
"""Twenty-four groups of other ages and spreads."""
SEEDS, DRAWS = 50, 2000


def replaying(**values: Any) -> ReplaySettings:
    return ReplaySettings(**({"replay": "prioritised"} | values))


def placed(**values: Any) -> ReplayShareSettings:
    return ReplayShareSettings(**({"replay": "prioritised"} | values))


def stated(groups: Sequence[Replayable]) -> Any:
    """As docs/credit.md states them: spread times freshness."""
    weights = np.array([one.spread * (1 - (NEWEST - one.step) / 9) for one in groups])
    return weights / weights.sum()


def first_draws(seed: int, chances: Any) -> list[int]:
    """The first group of each of many draws from the frozen buffer."""
    return [draw(BUFFER, chances, 4, f"{seed}:hindsight:{step}:0")[0].number for step in range(DRAWS)]


def p_values(chances: Any, seeds: int = SEEDS) -> list[float]:
    """For each seed, how well its first draws agree with the stated chances."""
    found = []
    for seed in range(seeds):
        counts = Counter(first_draws(seed, chances))
        observed = [counts[one.number] for one in BUFFER]
        found.append(float(chisquare(observed, stated(BUFFER) * DRAWS).pvalue))
    return found


def test_first_draws_over_fifty_seeds_follow_the_stated_priorities() -> None:
    assert priorities(BUFFER, replaying(), NEWEST) == pytest.approx(stated(BUFFER))
    assert kstest(p_values(priorities(BUFFER, replaying(), NEWEST)), "uniform").pvalue > 0.01


@pytest.mark.parametrize(
    "wrong",
    [
        lambda one: 1.0,
        lambda one: one.spread,
        lambda one: one.spread**2 * (1 - (NEWEST - one.step) / 9),
        lambda one: one.spread * (1 - (NEWEST - one.step) / 12),
    ],
    ids=["uniform", "without age", "spread counted twice", "another lag"],
)
def test_a_wrong_sampler_is_rejected(wrong: Callable[[Replayable], float]) -> None:
    weights = np.array([wrong(one) for one in BUFFER])
    assert kstest(p_values(weights / weights.sum(), seeds=20), "uniform").pvalue < 1e-6


def test_uniform_replay_gives_every_group_the_same_chance() -> None:
    assert set(priorities(BUFFER, replaying(replay="uniform"), NEWEST)) == {1 / len(BUFFER)}


def test_the_same_key_draws_the_same_and_another_step_draws_others() -> None:
    chances = priorities(BUFFER, replaying(), NEWEST)
    assert draw(BUFFER, chances, 6, "0:hindsight:3:0") == draw(BUFFER, chances, 6, "0:hindsight:3:0")
    assert draw(BUFFER, chances, 6, "0:hindsight:3:0") != draw(BUFFER, chances, 6, "0:hindsight:4:0")


def test_a_draw_repeats_no_group_and_gives_all_there_are_at_most() -> None:
    drawn = draw(BUFFER, priorities(BUFFER, replaying(), NEWEST), 100, "key")
    assert sorted(one.number for one in drawn) == [one.number for one in BUFFER]


def test_half_of_the_chance_is_for_error_patterns_an_equal_part_each() -> None:
    rare, common = frozenset({("batch-3", "g")}), frozenset((f"batch-{number}", "g") for number in range(6, 24))
    plain, marked = priorities(BUFFER, replaying(), NEWEST), priorities(BUFFER, replaying(), NEWEST, (rare, common))
    assert marked.sum() == pytest.approx(1)
    assert marked[3] == pytest.approx(plain[3] / 2 + 1 / 4), "however many groups show the other pattern"
    assert marked[6:].sum() == pytest.approx(plain[6:].sum() / 2 + 1 / 4)
    assert marked[[0, 1, 2, 4, 5]] == pytest.approx(plain[[0, 1, 2, 4, 5]] / 2), "the others keep half of theirs"
    assert set(priorities(BUFFER, replaying(replay="uniform"), NEWEST, (rare, common))) == {1 / len(BUFFER)}


def test_a_pattern_that_no_group_of_the_buffer_shows_takes_nothing() -> None:
    gone = (frozenset({("batch-gone", "g")}), frozenset[tuple[str, str]]())
    assert priorities(BUFFER, replaying(), NEWEST, gone) == pytest.approx(stated(BUFFER))


def test_a_group_that_is_beyond_the_lag_has_no_chance() -> None:
    old = [*BUFFER[:4], Replayable(99, "batch-99", "g", NEWEST - 9, 1.0, 1)]
    assert priorities(old, replaying(), NEWEST)[-1] == 0


# The places of a step


def took(places: Places, signs: str) -> list[tuple[int, int, str]]:
    """Groups with signal (S) and without (-) in order; of each step: groups, empty places, groups without signal."""
    found = []
    for number, sign in enumerate(signs):
        one: JudgedGroup = make_judged(group_id=f"g{number}")
        step = places.take(one if sign == "S" else None, one.group)
        if step is not None:
            found.append((len(step.groups), step.empty, "".join(step.without_signal)))
    rest = places.rest()
    return found if rest is None else [*found, (len(rest.groups), rest.empty, "".join(rest.without_signal))]


def test_without_replay_a_step_waits_for_enough_groups_with_signal() -> None:
    assert took(places_of(ReplayShareSettings(), 3), "S-S--S-SS") == [(3, 0, "g1g3g4"), (2, 0, "g6")]


def test_with_replay_a_group_without_signal_takes_a_place() -> None:
    assert took(places_of(placed(), 4), "S-S-SSSS") == [(2, 2, "g1g3"), (4, 0, "")]


def test_replay_never_takes_more_than_its_share_of_a_step() -> None:
    assert took(places_of(placed(replay_share=0.25), 4), "-----SSS---S") == [(3, 1, "g0g1g2g3g4"), (1, 0, "g8g9g10")]
    assert took(places_of(placed(replay_share=0.9), 4), "------S") == [(1, 3, "g0g1g2g3g4g5")]


def test_a_day_without_signal_trains_nothing() -> None:
    assert took(places_of(placed(), 4), "-----") == []


# What it is worth: the short version of ``benchmarks/replay.py``


def _benchmark() -> Any:
    path = Path(__file__).parents[2] / "benchmarks" / "replay.py"
    spec = importlib.util.spec_from_file_location("benchmark_replay", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def test_seven_tenths_of_the_judged_groups_give_the_same_score_with_replay_and_not_without() -> None:
    trial = _benchmark()
    world = trial.Trial(luck=0.2, rate=4.0, preference=2.5)
    whole, fewer, replayed = (
        trial.figures(20, world, how, judged)[0] for how, judged in (("off", 240), ("off", 168), ("prioritised", 168))
    )
    error = (replayed - whole).std(ddof=1) / np.sqrt(20)
    assert (replayed - whole).mean() - 1.96 * error > -0.05
    assert (fewer - whole).mean() < -0.05, "the margin says something: without replay they do not"


def test_where_all_is_luck_replay_gains_nothing() -> None:
    trial = _benchmark()
    world = trial.Trial(luck=1.0, rate=4.0, preference=2.5)
    scores, _, again = trial.figures(20, world, "prioritised", 240)
    assert again > 50
    assert abs(scores.mean() - 0.5) < 3 * scores.std(ddof=1) / np.sqrt(20)
