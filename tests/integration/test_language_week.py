"""The language-model benchmarks on a tiny model: what they promise about ratios, credit and runs that were kept."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_model import shared_tiny_model
from trainer.inference.policy import CpuPolicy
from trainer.train.backends.art_interface import import_art
from trainer.world.questions import questions


@pytest.fixture(scope="module")
def week() -> Any:
    return _benchmark("language_week")


def _benchmark(name: str) -> Any:
    folder = str(Path(__file__).parents[2] / "benchmarks")
    sys.path.insert(0, folder)
    try:
        import_art()
        return importlib.import_module(name)
    finally:
        sys.path.remove(folder)


def options(week: Any, **changes: Any) -> argparse.Namespace:
    values = {"steps": 7, "groups": 2, "questions": 4, "learning_rate": 3e-3, "max_importance": 1.3, "model": "tiny"}
    reader = week.Reader(questions(4, "trained", "trained"))
    return argparse.Namespace(**(values | {"reader": reader} | changes))


def policy_in(factory: pytest.TempPathFactory) -> CpuPolicy:
    return CpuPolicy(shared_tiny_model(factory), rank=4, learning_rate=3e-3, seed=0)


def test_only_foreign_tokens_have_a_ratio_of_exactly_one_and_as_0_1_0_all_old_ones_do(
    week: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = asyncio.run(week.train(policy_in(tmp_path_factory), "decoupled", "random", 0, options(week)))
    assert run.ratio_one == pytest.approx(run.foreign)
    assert 0 < max(run.foreign) < 1
    assert run.drift > 0, "it was trained"
    replaced = asyncio.run(week.train(policy_in(tmp_path_factory), "replaced", "random", 0, options(week)))
    assert replaced.ratio_one[:4] == pytest.approx(replaced.foreign[:4])
    assert min(replaced.ratio_one[4:]) > max(replaced.foreign), "beyond --max-staleness there is no ratio left"


def test_an_untrained_policy_has_not_drifted(week: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    drift, right, _ = options(week).reader.read(policy_in(tmp_path_factory))
    assert drift == pytest.approx(0, abs=1e-5)
    assert 0.3 < right < 0.7


def test_a_run_is_made_once_and_one_of_other_settings_is_refused(week: Any, tmp_path: Path) -> None:
    settings = week.settings_of(options(week))
    path = tmp_path / "decoupled-true-0.json"
    assert week.kept(path, settings) is None
    week.keep(path, {"settings": settings, "drift": 0.5})
    found = week.kept(path, settings)
    assert found["drift"] == 0.5
    with pytest.raises(SystemExit, match=r"other settings.*use another --keep"):
        week.kept(path, settings | {"steps": 3})


def test_decisions_and_whole_trajectories_are_trained_differently_from_the_same_hours(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    steps = _benchmark("language_steps")
    own = argparse.Namespace(most=1, windows=1, questions=4, discount=[0.5], learning_rate=3e-3, max_importance=1.3,
                             model="tiny")  # fmt: skip
    whole, decisions = (
        asyncio.run(steps.train(policy_in(tmp_path_factory), credit, 0, own))["right"] for credit in steps.CREDITS
    )
    assert whole[0] == decisions[0]
    assert len(whole) == len(decisions) == 2
    assert whole[1] != decisions[1]
