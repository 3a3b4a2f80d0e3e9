"""``--judge reward`` finds the planted skill of agents that run errands, and finds nothing where all is luck."""

from __future__ import annotations

import math
from statistics import fmean, stdev

import pytest

from tests.builders_played import skill_found
from trainer.world.quests.errands import Quests, StageName


@pytest.mark.parametrize(("stage", "decisions"), [("one", 1), ("several", 3)])
async def test_the_judge_by_results_ranks_the_planted_skill_where_the_news_matters(
    stage: StageName, decisions: int
) -> None:
    assert await skill_found(Quests(7, luck=0.2, stage=stage, decisions=decisions), hours=120) >= 0.9


async def test_the_judge_by_results_finds_no_skill_in_pure_luck() -> None:
    """Agents who follow the same news are lucky together, so one seed may find either sign; many average to nothing."""
    found = [await skill_found(Quests(seed, luck=1.0), hours=16) for seed in range(20)]
    assert abs(fmean(found)) < 2.6 * stdev(found) / math.sqrt(len(found))
    assert min(found) < 0 < max(found)
