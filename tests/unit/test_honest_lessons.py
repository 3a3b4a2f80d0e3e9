"""The gate on lessons, by differences that were measured: ``benchmarks/lessons_lift.py --quick`` wrote them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from trainer.config.training import GateSettings
from trainer.evidence import Look, Ruling
from trainer.promote.gate import Evidence, decide
from trainer.statistics.gain import spend

SCORES = json.loads((Path(__file__).parents[1] / "data" / "lessons_lift.json").read_text())["scores"]
COMPARISONS, WINDOWS = 200, 60


def measured(kind: str) -> NDArray[np.float64]:
    pairs = zip(SCORES[kind], SCORES["none"], strict=True)
    return np.array([float(shown) - float(none) for shown, none in pairs], dtype=np.float64)


def rulings(differences: NDArray[np.float64], seed: int = 0) -> list[Ruling]:
    """What the gate says to comparisons of 60 windows that are resampled from ``differences``."""
    chance = np.random.default_rng(seed)
    found = []
    for _ in range(COMPARISONS):
        drawn = tuple(float(one) for one in chance.choice(differences, WINDOWS))
        evidence = Evidence(drawn, error_rate=0.0, blocked_rate=0.0, length_ratio=1.0, kl_from_base=None)
        found.append(decide(evidence, GateSettings(), Look(1, spend(0.0))).ruling)
    return found


def share(kind: Ruling, among: list[Ruling]) -> float:
    return among.count(kind) / len(among)


def test_random_lessons_are_promoted_in_at_most_one_of_twenty_comparisons() -> None:
    random = measured("random")
    assert random.std() > 0.01, "they change something, at random"
    assert share(Ruling.PROMOTE, rulings(random)) <= 0.05
    assert share(Ruling.PROMOTE, rulings(random - random.mean())) <= 0.05, "with their true effect, which is none"


def test_lessons_that_are_wrong_on_purpose_are_never_promoted_and_refused_once_they_do_harm() -> None:
    wrong = measured("wrong")
    assert share(Ruling.PROMOTE, rulings(wrong - wrong.mean() - 0.02)) == 0.0
    harmful = wrong - wrong.mean() - 0.25  # as wrong as they are where a model believes them
    assert share(Ruling.REFUSE, rulings(harmful)) >= 0.95


@pytest.mark.parametrize("gain", [0.15])
def test_lessons_that_help_are_promoted(gain: float) -> None:
    found = measured("lessons")
    assert share(Ruling.PROMOTE, rulings(found - found.mean() + gain)) >= 0.5, "the gate is not closed to them"
