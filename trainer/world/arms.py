"""The arms of the curriculum in the simulated market: its stages and its luck, from easy to hard.

The hardest is the market that was asked for, on which the result is evaluated: no arm has a later stage or more luck.
An hour's arm changes what is offered and how often the news is right; regimes, words and tickers are the world's own.
"""

from __future__ import annotations

from dataclasses import replace

from trainer.statistics.curriculum import Arm
from trainer.world.market import STAGES, Market


def markets_of(market: Market) -> dict[str, Market]:
    """The markets up to ``market`` by the name of their arm, from easy to hard: first all luck of a stage."""
    stages = list(STAGES)[: list(STAGES).index(market.stage) + 1]
    lucks = sorted({0.0, market.luck})
    found = [replace(market, stage=stage, luck=luck) for stage in stages for luck in lucks]
    return {f"{one.stage}, luck {one.luck:g}": one for one in found}


def arms_of(names: list[str]) -> tuple[Arm, ...]:
    """Arms from easy to hard, evenly far apart."""
    return tuple(Arm(name, place / max(1, len(names) - 1)) for place, name in enumerate(names))
