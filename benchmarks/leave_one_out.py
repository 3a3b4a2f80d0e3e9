"""What leave-one-out changes in the simulated market: agents' effect on each other, and on what is credited.

    python benchmarks/leave_one_out.py [--hours 200] [--agents 8]

Scripted agents of skills from 0 to 1 play hours of the market. Printed for each stage: how far an agent's contribution
(what all made together, minus what they would have made had it held) is from its own result, as a share of the latter;
and how much ``--baseline leave-one-out`` changes the advantages of the offline judge's groups (mean size of the change
over the mean size of an advantage), whole and by decision.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data_bridge.window_ids import windows_from
from tests.builders_played import group_of
from trainer.judge.outcome import OutcomeJudge
from trainer.run.leave_one_out import baselines_of
from trainer.train.credit import history_of
from trainer.train.step_credit import by_decision
from trainer.types import Batch, JudgedGroup
from trainer.world.agents import scripted_cast
from trainer.world.leave_one_out import played_orders
from trainer.world.market import Market, StageName
from trainer.world.player import Player
from trainer.world.replay import SimulatedWindow


def change(plain: list[float], other: list[float]) -> float:
    return fmean(abs(a - b) for a, b in zip(plain, other, strict=True)) / fmean(map(abs, plain))


async def measured(stage: StageName, decisions: int, hours: int, agents: int) -> tuple[float, float, float]:
    market = Market(seed=7, luck=0.2, stage=stage, decisions=decisions)
    own: list[float] = []
    beyond: list[float] = []
    advantages: dict[bool, tuple[list[float], list[float]]] = {False: ([], []), True: ([], [])}
    async for hour in Player(market, scripted_cast(agents, 7)).play(windows_from("2026-03-02T00:00", hours)):
        group = group_of(hour)
        orders = played_orders(SimulatedWindow(group.window_id, market, hour.tape), group.trajectories)
        judged = await OutcomeJudge().judge(group)
        assert orders is not None
        assert isinstance(judged, JudgedGroup)
        made = orders.returns()
        own += map(abs, made.values())
        beyond += [abs(orders.contribution(name) - made[name]) for name in made]
        for with_steps, (plain, other) in advantages.items():
            found = baselines_of(judged.group, orders, 0.5 if with_steps else None)
            batch = Batch("batch", "hindsight", 0, (judged,), baselines=found)
            batch = by_decision(batch, 0.5).batch if with_steps else batch
            for target, baselines in ((plain, {}), (other, batch.baselines)):
                rewards = history_of(batch.groups, baselines=baselines)
                target += [one.advantage for members in rewards for one in members]
    return fmean(beyond) / fmean(own), change(*advantages[False]), change(*advantages[True])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=int, default=200)
    parser.add_argument("--agents", type=int, default=8)
    options = parser.parse_args()
    print(f"{'stage':>8} {'decisions':>9} {'effect on others':>17} {'change, whole':>14} {'by decision':>12}")
    parts: tuple[tuple[StageName, int], ...] = (("one", 1), ("one", 3), ("several", 3))
    for stage, decisions in parts:
        found = asyncio.run(measured(stage, decisions, options.hours, options.agents))
        print(f"{stage:>8} {decisions:9} {found[0]:17.3f} {found[1]:14.3f} {found[2]:12.3f}", flush=True)


if __name__ == "__main__":
    main()
