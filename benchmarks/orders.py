"""What adaptive orders save, and what that costs in certainty, against simulated judges whose faults are known.

    python benchmarks/orders.py [--quick]

A judge scores planted skill, likes what it reads first (bias: how much the first place is worth over the last) and errs
(noise: the standard deviation of each score). It reads the prompt that a real one would get and answers in JSON; only
the network is left out. Each group has six members. The rank correlation of its scores with the planted skill is
compared with that of two orders for every group, which is what 0.1.0 asks for, and of one order for every group.
Intervals are 95 %, Student's t over seeds. Exits with 1 if for one of the first judges fewer than 35 % of the tokens
are saved, or the rank correlation may be lower by more than 0.05.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.builders import WINDOW
from tests.builders_certificate import judge_in_process
from tests.builders_judge import make_group, planted_groups, rank_correlation
from tests.fakes.judges_with_faults import planted
from trainer.ledger.verdicts import MemoryVerdicts
from trainer.statistics.intervals import student_quantile
from trainer.types import Group, JudgedGroup

MIN_SAVED = 0.35
MARGIN = 0.05
PROMISED = ((0.05, 0.1), (0.1, 0.0), (0.1, 0.1))
"""Noise and bias, where skill is spread over the whole scale (0.1 to 0.9)."""
BESIDES = ((0.1, 0.15), (0.1, 0.3), (0.15, 0.2), (0.2, 0.2), (0.3, 0.2))


def two_kinds(number: int, seed: int) -> list[Group]:
    """Sound and careless decisions, each a little better or worse than the others of its kind."""
    chance = random.Random(seed)

    def skill() -> float:
        return round((60 if chance.random() < 0.5 else -50) + chance.uniform(-10, 10), 2)

    return [make_group(*(skill() for _ in range(6)), group_id=f"{WINDOW}/{seed}-{place}") for place in range(number)]


async def judged(groups: list[Group], noise: float, bias: float, seed: int, orders: int, adaptive: bool) -> list[float]:
    """Tokens, rank correlation, calls and orders not asked for."""
    judge = judge_in_process(planted(noise, bias, seed), MemoryVerdicts(), orders=orders, adaptive=adaptive)
    results = await asyncio.gather(*(judge.judge(group) for group in groups))
    correlation = fmean(rank_correlation(result) for result in results if isinstance(result, JudgedGroup))
    usage = judge.usage
    skipped = usage.unasked.total()
    assert usage.calls + skipped == orders * len(groups), "a skipped call without a reason"
    return [usage.prompt_tokens + usage.completion_tokens, correlation, usage.calls, skipped]


def interval(values: list[float]) -> tuple[float, float, float]:
    mean, half = fmean(values), student_quantile(0.975, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def measure(
    name: str, world: Callable[[int, int], list[Group]], noise: float, bias: float, groups: int, seeds: int
) -> bool:
    """Print one line; whether it keeps the promise."""
    saved, lost, gained, whole = list[float](), list[float](), list[float](), list[float]()
    for seed in range(seeds):
        shown = world(groups, seed)
        one, two, adaptive = (
            asyncio.run(judged(shown, noise, bias, seed, orders, is_adaptive))
            for orders, is_adaptive in ((1, False), (2, False), (2, True))
        )
        saved.append(1 - adaptive[0] / two[0])
        lost.append(adaptive[1] - two[1])
        gained.append(adaptive[1] - one[1])
        whole.append(two[1])
    (save, low_save, high_save), (loss, low_loss, high_loss) = interval(saved), interval(lost)
    print(
        f"{name:10s} {noise:5.2f} {bias:5.2f}  {save:6.1%} ({low_save:.1%} to {high_save:.1%})  {fmean(whole):.3f}  "
        f"{loss:+.3f} ({low_loss:+.3f} to {high_loss:+.3f})  {fmean(gained):+.3f}",
        flush=True,
    )
    return low_save >= MIN_SAVED and low_loss >= -MARGIN


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="5 seeds instead of 20")
    seeds = 5 if parser.parse_args().quick else 20
    groups = 120
    print(f"{groups} groups of six, {seeds} seeds; rank correlation with the planted skill")
    print("skill      noise  bias  tokens saved              of two  adaptive minus two          minus one order")
    kept = [measure("graded", planted_groups, noise, bias, groups, seeds) for noise, bias in PROMISED]
    kept += [measure("two kinds", two_kinds, noise, bias, groups, seeds) for noise, bias in PROMISED]
    print("besides, where nothing is promised: judges of whom one order says little")
    for noise, bias in BESIDES:
        measure("graded", planted_groups, noise, bias, groups, seeds)
    print("All promises are kept." if all(kept) else "A promise is broken.")
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
