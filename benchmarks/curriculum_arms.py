"""What a day of one arm is worth to a policy that was trained on all of them: why no schedule gains much.

    python benchmarks/curriculum_arms.py [--seeds 30] [--first-seed 100] [--explore temperature]

The policy, the market and the steps are those of ``curriculum.py``. It plays and trains even days; after one, three and
six of them it also tries, from the same weights, a whole day of each arm. Printed: how much a day adds to the direction
in stage ``several`` (100 hours of another world), with its standard error over seeds, for 1,000 trained tokens, and
as a share of what an even day adds.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter, defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from curriculum import HOURS, Learner, examine, told, unseen_hours, untrained

from trainer.statistics.curriculum import draw, equal_chances
from trainer.world.agents import Exploring
from trainer.world.arms import arms_of, markets_of
from trainer.world.market import Market

AFTER = (1, 3, 6)
Found = dict[tuple[int, str], list[tuple[float, int]]]


async def tried(seed: int, rate: float, luck: float, explore: Exploring, found: Found) -> None:
    """Add what a day of each arm is worth to ``found``: the gain in direction, and the tokens trained."""
    markets = markets_of(Market(seed, luck, "several"))
    arms, learner = arms_of(list(markets)), Learner(seed, rate, explore, markets)
    weights, asked = untrained(seed), unseen_hours(seed)
    drawn = Counter[str]()
    for number in range(max(AFTER) + 1):
        if number in AFTER:
            now = examine(weights, asked).direction
            for arm in arms:
                day = await learner.day(number, weights, [arm] * HOURS)
                after = examine(day.steps[-1][0], asked).direction if day.steps else now
                found[number, arm.name].append((after - now, sum(tokens for _, tokens in day.steps)))
        chosen = draw(arms, equal_chances(arms), drawn, learner.windows(number), f"{seed}")
        drawn.update(arm.name for arm in chosen)
        day = await learner.day(number, weights, chosen)
        weights = day.steps[-1][0] if day.steps else weights


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--rate", type=float, default=4.0, help="length of a step")
    parser.add_argument("--luck", type=float, default=0.2)
    parser.add_argument("--explore", choices=("answers", "temperature"), default="answers")
    options = parser.parse_args()
    found: Found = defaultdict(list)
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        asyncio.run(tried(seed, options.rate, options.luck, options.explore, found))
    print(f"{'after':>7s} {'arm':20s} {'direction':>16s} {'for 1,000 tokens':>17s} {'share of an even day':>21s}")
    for number in AFTER:
        worth = {}
        for (after, name), own in found.items():
            if after == number:
                worth[name] = 1000 * sum(gain for gain, _ in own) / max(1, sum(tokens for _, tokens in own))
        even = float(np.mean(list(worth.values())))
        for name, one in worth.items():
            gains = told([gain for gain, _ in found[number, name]], 4)
            print(f"{number:2d} days {name:20s} {gains:>16s} {one:17.4f} {one / even:21.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
