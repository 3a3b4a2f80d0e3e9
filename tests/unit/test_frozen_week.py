"""A short, seeded version of ``benchmarks/off_policy.py``: what a log does to a policy that is trained on it."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest


def _benchmark() -> Any:
    path = Path(__file__).parents[2] / "benchmarks" / "off_policy.py"
    spec = importlib.util.spec_from_file_location("benchmark_off_policy", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look for it there
    spec.loader.exec_module(module)
    return module


WEEK = _benchmark()
OPTIONS = argparse.Namespace(steps=12, learning_rate=0.1, max_importance=1.3)
SEEDS = range(2)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    WEEK.import_art()
    return WEEK.small_tokenizer()


def runs(tokenizer: Any, way: str, how: str) -> list[Any]:
    return [asyncio.run(WEEK.train(tokenizer, way, how, seed, OPTIONS)) for seed in SEEDS]


def test_random_verdicts_move_the_policy_little_from_the_one_that_played(tokenizer: Any) -> None:
    drift = {
        way: fmean(run.drift for run in runs(tokenizer, way, "random")) for way in ("replaced", "logged", "decoupled")
    }
    assert drift["decoupled"] <= 2 * drift["logged"]
    assert drift["replaced"] > 2 * drift["logged"]  # what it was, and what the test would see


def test_only_foreign_tokens_have_a_ratio_of_exactly_one(tokenizer: Any) -> None:
    [run, _] = runs(tokenizer, "decoupled", "true")
    assert run.foreign == pytest.approx(run.ratio_one)
    assert all(0 < share < 1 for share in run.foreign)
    assert run.right > 0.8


def test_a_judge_of_pure_noise_moves_the_policy_little_and_a_true_one_as_before(tokenizer: Any) -> None:
    def trained(told: str, how: str) -> list[Any]:
        return [asyncio.run(WEEK.train_uncertain(tokenizer, told, how, seed, OPTIONS)) for seed in SEEDS]

    blind, aware = (fmean(run.drift for run in trained(told, "noise in two orders")) for told in ("0.1.0", "batch"))
    assert aware <= blind / 4
    blind, aware = (fmean(run.right for run in trained(told, "true in two orders")) for told in ("0.1.0", "batch"))
    assert aware >= blind - 0.05
    untrained = fmean(WEEK.SoftmaxPolicy(tokenizer, OPTIONS.learning_rate, seed).right() for seed in SEEDS)
    assert aware > untrained + 0.2, "there is something to learn, so the margin says something"


def test_true_verdicts_on_an_old_log_teach_hardly_less_than_fresh_play(tokenizer: Any) -> None:
    frozen, fresh = (fmean(run.right for run in runs(tokenizer, way, "true")) for way in ("decoupled", "fresh"))
    assert frozen >= fresh - 0.05
    assert fresh > 0.8
