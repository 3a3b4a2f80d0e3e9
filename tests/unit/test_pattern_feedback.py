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


def test_a_planted_error_is_found_replayed_more_often_and_gone_earlier() -> None:
    trial = _benchmark()
    world = trial.Trial("blocked")
    without, fed_back = ([trial.trained(seed, world, arm) for seed in range(6)] for arm in ("replay", "with patterns"))
    assert all(run.found for run in fed_back)
    assert fmean(run.of_kind for run in fed_back) > 1.4 * fmean(run.of_kind for run in without)
    assert fmean(run.steps for run in fed_back) < 0.95 * fmean(run.steps for run in without)
    assert fmean(run.score for run in fed_back) > fmean(run.score for run in without) - 0.02, "reading costs nothing"
