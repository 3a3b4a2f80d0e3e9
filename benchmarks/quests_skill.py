"""How well ``--judge reward`` finds planted skill in the simulated quests, by luck: rank correlations over seeds.

    python benchmarks/quests_skill.py            20 seeds, 200 hours, 8 agents
    python benchmarks/quests_skill.py --quick    4 seeds, 40 hours

Each seed is a world with a cast of its own; an agent's mean score over the hours is ranked against its planted skill.
Mean and 95 % interval (Student's t) over seeds. At luck 1 what is told says nothing, so nothing should be found.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

import numpy as np
from scipy.stats import t

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.builders_played import skill_found
from trainer.world.quests.errands import Quests, StageName


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--hours", type=int, default=200)
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--quick", action="store_true", help="a short run")
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.hours = 4, 40
    print(f"{options.seeds} seeds, {options.hours} hours, {options.agents} agents")
    stages: tuple[tuple[StageName, int], ...] = (("one", 1), ("several", 3))
    for stage, decisions in stages:
        for luck in (0.0, 0.2, 0.5, 1.0):
            worlds = [Quests(seed, luck, stage, decisions) for seed in range(options.seeds)]
            found = np.array([await skill_found(world, options.hours, options.agents) for world in worlds])
            half = t.ppf(0.975, len(found) - 1) * found.std(ddof=1) / np.sqrt(len(found))
            print(
                f"stage {stage:8s} luck {luck:.1f}: rank correlation {found.mean():+.2f} "
                f"[{found.mean() - half:+.2f}, {found.mean() + half:+.2f}], lowest {found.min():+.2f}",
                flush=True,
            )


if __name__ == "__main__":
    asyncio.run(main())
