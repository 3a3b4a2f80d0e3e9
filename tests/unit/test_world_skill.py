"""The planted skill is what the P&L shows when news matters, and is not when prices are pure noise."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean, stdev

import pytest

from data_bridge.window_ids import windows_from
from trainer.world.agents import scripted_cast
from trainer.world.market import Market, StageName
from trainer.world.player import Player

WINDOWS = windows_from("2026-03-02T00:00", 200)


async def mean_pnl_and_skill(
    market: Market, agents: int, windows: Sequence[str] = WINDOWS
) -> tuple[list[float], list[float]]:
    cast = scripted_cast(agents, market.seed)
    made: dict[str, list[float]] = defaultdict(list)
    async for played in Player(market, cast).play(windows):
        for life in played.agents:
            made[life.agent.agent_id].append(life.pnl)
    means = [sum(made[agent.agent_id]) / len(windows) for agent in cast]
    return means, [agent.skill or 0.0 for agent in cast]


def spearman(left: list[float], right: list[float]) -> float:
    def ranks(values: list[float]) -> list[float]:
        order = sorted(range(len(values)), key=values.__getitem__)
        return [float(order.index(index)) for index in range(len(values))]

    a, b = ranks(left), ranks(right)
    middle = (len(a) - 1) / 2
    spread = sum((rank - middle) ** 2 for rank in a)
    return sum((x - middle) * (y - middle) for x, y in zip(a, b, strict=True)) / spread


@pytest.mark.parametrize("stage", ["one", "several"])
@pytest.mark.parametrize("decisions", [1, 3])
async def test_mean_window_pnl_ranks_the_planted_skill_when_the_news_matters(stage: StageName, decisions: int) -> None:
    pnl, skill = await mean_pnl_and_skill(Market(seed=7, luck=0.2, stage=stage, decisions=decisions), agents=8)
    assert spearman(pnl, skill) >= 0.9


async def test_mean_window_pnl_says_nothing_about_skill_in_pure_noise() -> None:
    """Agents who follow the same news are lucky together, so one seed may find either sign; many average to nothing."""
    found = []
    for seed in range(24):
        pnl, skill = await mean_pnl_and_skill(Market(seed=seed, luck=1.0), agents=8, windows=WINDOWS[:24])
        found.append(spearman(pnl, skill))
    assert abs(fmean(found)) < 2.6 * stdev(found) / math.sqrt(len(found))
    assert min(found) < 0 < max(found)
