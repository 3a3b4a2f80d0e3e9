"""Does another lineage's adapter help: steps to learn a wider market from a narrow one's, and what the gate says.

    python benchmarks/transfer.py [--seeds 20] [--quick]
    python benchmarks/transfer.py --model embedded [--seeds 3] [--days 6] [--quick]    the 135M model, in hours

The softmax policy of ``off_policy.py``. A source is trained on hours that differ in the news alone (``one``), or on
such hours with the news inverted. Then all hours are trained (``several``) from the untrained policy and from each
source, until the right answer has a chance of 0.85. Printed, with standard errors over seeds: the steps that it takes;
and how often the gate promotes each after three steps, by 100 later hours in which it answers beside the untrained
policy.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from off_policy import (
    BITS,
    GROUPS,
    STATES,
    SoftmaxPolicy,
    State,
    Week,
    figure,
    judged,
    make_step_on,
    small_tokenizer,
    step_settings,
)
from transfer_embedded import compare

from tests.builders_training import make_trainee
from trainer.config.training import GateSettings
from trainer.evidence import Look, Ruling
from trainer.promote.gate import Evidence, decide
from trainer.statistics.gain import spend
from trainer.train.backends.art_interface import import_art

ENOUGH, MOST, WINDOWS = 0.85, 60, 100
NARROW: tuple[State, ...] = tuple(state for state in STATES if state[1:] == (1,) * (BITS - 1))


async def train(policy: SoftmaxPolicy, week: Week, steps: int, options: argparse.Namespace, enough: float = 2.0) -> int:
    """Train by fresh play until the right answer is likely enough; returns the steps."""
    trainee, judge = make_trainee(min_spread=0.0), random.Random(0)
    settings = step_settings(trainee, options)
    for step in range(steps):
        if policy.right() >= enough:
            return step
        groups = [judged(*week.group(step), "true", judge) for _ in range(GROUPS)]
        await make_step_on(policy, trainee, groups, step, settings)
    return steps


def promoted(candidate: SoftmaxPolicy, seed: int) -> bool:
    """Whether the gate lets the candidate pass beside the untrained policy."""
    chance = random.Random(f"gate {seed}")
    now = candidate.everywhere()[0].exp()
    with candidate.as_base():
        base = candidate.everywhere()[0].exp()
    differences = []
    for _ in range(WINDOWS):
        row = chance.randrange(len(STATES))
        right = 0 if STATES[row][0] > 0 else 1
        scores = [float(chance.random() < float(known[row, right])) for known in (now, base)]
        differences.append(scores[0] - scores[1])
    evidence = Evidence(tuple(differences), 0.0, 0.0, 1.0, None)
    return decide(evidence, GateSettings(), Look(1, spend(0.0))).ruling is Ruling.PROMOTE


async def transfer(tokenizer: Any, source: str, seed: int, options: argparse.Namespace) -> tuple[int, bool]:
    policy = SoftmaxPolicy(tokenizer, options.learning_rate, seed)
    if source != "untrained":
        week = Week(policy, random.Random(f"one {seed}"), states=NARROW, is_inverted=source == "inverted")
        await train(policy, week, 17, options)
        policy.optimizer = policy._new_optimizer(options.learning_rate)
    week = Week(policy, random.Random(f"several {seed}"))
    early = await train(policy, week, 3, options, ENOUGH)
    passes = promoted(policy, seed)
    return early if early < 3 else 3 + await train(policy, week, MOST - 3, options, ENOUGH), passes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("softmax", "embedded"), default="softmax")
    parser.add_argument("--seeds", type=int, help="default: 20, of the embedded model 3")
    parser.add_argument("--days", type=int, default=6, help="of stage several (embedded)")
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--quick", action="store_true", help="2 seeds; embedded: 1, with short days")
    options = parser.parse_args()
    if options.model == "embedded":
        short = ("--windows-per-iteration", "6", "--agents", "4", "--groups-per-step", "3")
        quick = (1, 2, 1, short)
        compare(*(quick if options.quick else (options.seeds or 3, options.days, options.days, ())))
        return
    options.seeds, options.max_importance = 2 if options.quick else options.seeds or 20, 1.3
    import_art()
    torch.set_num_threads(1)
    gc.freeze()
    tokenizer = small_tokenizer()
    print(f"{'source':>10} {'steps':>16} {'promoted after 3':>18}")
    for source in ("untrained", "one", "inverted"):
        found = [asyncio.run(transfer(tokenizer, source, seed, options)) for seed in range(options.seeds)]
        share = fmean(passes for _, passes in found)
        print(f"{source:>10} {figure([steps for steps, _ in found]):>16} {share:18.2f}", flush=True)


if __name__ == "__main__":
    main()
