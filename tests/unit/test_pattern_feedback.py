"""A short, seeded version of ``benchmarks/patterns.py``: what error patterns do to what is replayed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from statistics import fmean
from typing import Any


def _benchmark() -> Any:
    folder = Path(__file__).parents[2] / "benchmarks"
    spec = importlib.util.spec_from_file_location("benchmark_patterns", folder / "patterns.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look for it there
    spec.loader.exec_module(module)
    return module


SEEDS = range(200, 208)
"""Neither those that the weight was chosen on nor those of the figures in the docs. The bounds below are three standard
errors of eight seeds from what twenty seeds measured, so that another draw of chance does not fail them."""


def test_a_planted_error_is_found_counts_more_and_is_gone_earlier() -> None:
    trial = _benchmark()
    world = trial.Trial("blocked")
    without, fed_back = (
        [trial.trained(seed, world, trial.ARMS[arm]) for seed in SEEDS] for arm in ("replay", "replay, both")
    )
    assert all(run.found for run in fed_back)
    assert all(0 < run.weighed < 0.3 for run in fed_back), "few groups show it"
    assert fmean(run.of_kind for run in fed_back) > 1.2 * fmean(run.of_kind for run in without), "and are drawn more"
    shares = [own.steps / other.steps for own, other in zip(fed_back, without, strict=True)]
    assert fmean(shares) < 0.75, "draws alone come to 0.9"
    assert fmean(run.score for run in fed_back) > fmean(run.score for run in without) - 0.03, "reading costs little"
    assert fmean(run.length for run in fed_back) < 1.15 * fmean(run.length for run in without), "not by longer steps"


def test_what_luck_called_wrong_is_not_unlearnt_for_being_named() -> None:
    """At luck 1 an answer that wins as often as any other is a pattern too: the judge names it where it lost."""
    trial = _benchmark()
    world = trial.Trial("innocent", luck=1.0, preference=0.0)
    plain, fed_back = (
        [trial.trained(seed, world, trial.ARMS[arm], scored_at=20, longest=20) for seed in SEEDS[:4]]
        for arm in ("no replay", "no replay, weights")
    )
    assert any(run.found for run in fed_back)
    assert [run.chance for run in fed_back] == [run.chance for run in plain], "not a bit: nothing is weighed by it"
