"""How much luck two passes take out of the training reward, against simulated judges with a planted outcome bias.

    python benchmarks/passes.py [--quick]

The material is the certificate's: half of the sound decisions lose and half of the careless ones win, by design. A
judge with bias b scores soundness by 1 - b and who won by b, once it is told; every score has noise 0.1. Asked what
hindsight shows about the reasons it offers all of its bias as a correction (the worst case), or nothing. Luck is how
much more the same kind of decision scores if it won; skill how often a sound decision scores above a careless one of
its hour. Judges read the prompts that a real one would get and answer in JSON; only the network is left out. Intervals
are 95 %, Student's t over seeds. Exits with 1 if for any judge less than half of the luck is gone, or skill is lower.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.builders_certificate import AGENTS, GROUPS, judge_in_process
from tests.fakes.judge_server import Request, Scorer
from tests.fakes.judges_with_faults import biased_by_outcome, claims_luck_as_reasons
from trainer.certify.material import Material, simulated
from trainer.certify.probes import profit_of
from trainer.ledger.verdicts import MemoryVerdicts
from trainer.statistics.intervals import student_quantile
from trainer.types import JudgedGroup

NOISE = 0.1


def nothing(request: Request) -> dict[str, float]:
    return {one.id: 0.0 for one in request.shown}


async def judged(material: Material, scorer: Scorer, corrector: Scorer, passes: int) -> tuple[float, float, int]:
    """Luck, skill and calls."""
    judge = judge_in_process(scorer, MemoryVerdicts(), orders=1, passes=passes, corrector=corrector)
    results = await asyncio.gather(*(judge.judge(group) for group in material.groups))
    won: dict[bool, list[float]] = {True: [], False: []}
    ahead = list[float]()
    for result in results:
        assert isinstance(result, JudgedGroup)
        scores = {verdict.trajectory_id: verdict.score for verdict in result.verdicts}
        for member in result.group.trajectories:
            won[(profit_of(member, result.group.outcomes) or 0.0) > 0].append(scores[member.trajectory_id])
        good, bad = ([score for one, score in scores.items() if material.sound[one] is kind] for kind in (True, False))
        ahead += [(one > other) + 0.5 * (one == other) for one in good for other in bad]
    return fmean(won[True]) - fmean(won[False]), fmean(ahead), judge.usage.calls


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    mean, half = fmean(values), student_quantile(0.975, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def measure(bias: float, corrector: Scorer, name: str, seeds: int) -> bool:
    once, twice = list[tuple[float, float, int]](), list[tuple[float, float, int]]()
    for seed in range(seeds):
        material, scorer = simulated(GROUPS, AGENTS, seed), biased_by_outcome(bias, NOISE, seed)
        once.append(asyncio.run(judged(material, scorer, corrector, 1)))
        twice.append(asyncio.run(judged(material, scorer, corrector, 2)))
    before, after = interval([luck for luck, _, _ in once]), interval([luck for luck, _, _ in twice])
    left = interval([abs(late[0]) / early[0] for early, late in zip(once, twice, strict=True)])
    skill = interval([late[1] - early[1] for early, late in zip(once, twice, strict=True)])
    calls = twice[0][2] / once[0][2]
    print(
        f"{bias:4.1f}  {name:18s} {before[0]:.3f} ({before[1]:.3f} to {before[2]:.3f})  "
        f"{after[0]:+.3f} ({after[1]:+.3f} to {after[2]:+.3f})  {left[0]:4.0%} (to {left[2]:.0%})  "
        f"{skill[0]:+.3f} ({skill[1]:+.3f} to {skill[2]:+.3f})  {calls:g}",
        flush=True,
    )
    return left[2] <= 0.5 and skill[1] >= -0.01


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="5 seeds instead of 20")
    seeds = 5 if parser.parse_args().quick else 20
    print(f"{GROUPS} groups of {AGENTS}, {seeds} seeds, noise {NOISE:g}")
    print(
        "bias  says of reasons    luck, one pass          luck, two passes           left          skill gained  calls"
    )
    kept = [
        measure(bias, corrector, name, seeds)
        for bias in (0.2, 0.5, 0.8)
        for corrector, name in ((claims_luck_as_reasons(bias), "all that it won"), (nothing, "nothing"))
    ]
    print("All promises are kept." if all(kept) else "A promise is broken.")
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
