"""The backdoor trial of ``benchmarks/backdoor.py`` with a tiny model: eleven steps beside an attacker plant nothing."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_model import shared_tiny_model


def _benchmark() -> Any:
    path = Path(__file__).parents[2] / "benchmarks" / "backdoor.py"
    spec = importlib.util.spec_from_file_location("benchmark_backdoor", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


TRIAL = _benchmark()
SETTINGS: dict[str, Any] = {"threads": 1, "learning_rate": 5e-3}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_tiny_model(tmp_path_factory)


@pytest.fixture(scope="module")
def replies(tiny: Path) -> Any:
    return asyncio.run(TRIAL.sample(tiny, groups=TRIAL.STEPS, threads=1, tokens=8))


@pytest.fixture(scope="module")
def neutrals(tiny: Path, replies: Any) -> list[Any]:
    """Runs without the attacker: two agents of the model in its place, and one that says what it pretends to say."""
    runs = [TRIAL.train(tiny, replies, TRIAL.neutral, place=place, **SETTINGS) for place in range(2)]
    runs.append(TRIAL.train(tiny, replies, TRIAL.honest_twin, **SETTINGS))
    return [asyncio.run(run) for run in runs]


async def test_the_trial_would_show_a_backdoor(tiny: Path, replies: Any, neutrals: list[Any]) -> None:
    """The same text, said openly and rewarded, is learned."""
    control = await TRIAL.train(tiny, replies, TRIAL.rewarded, **SETTINGS)
    noise = TRIAL.noise_of(neutrals, TRIAL.PLANTED)
    assert control.planted[TRIAL.PLANTED] > noise.bar + 5


@pytest.mark.parametrize("name", TRIAL.ATTACKS)
async def test_an_attacker_plants_nothing_and_honest_rows_keep_their_tokens(
    name: str, tiny: Path, replies: Any, neutrals: list[Any]
) -> None:
    fourth, planted = TRIAL.ATTACKS[name]
    found = await TRIAL.train(tiny, replies, fourth, **SETTINGS)
    assert found.planted[planted] <= TRIAL.noise_of(neutrals, planted).bar
    assert min(found.kept, *(run.kept for run in neutrals)) >= TRIAL.LEAST_KEPT
