"""Which settings a run must share with an unfinished one to take it up."""

from __future__ import annotations

from typing import Any

import pytest

from trainer.config.commands import TrainSettings
from trainer.config.settings import settings_from
from trainer.run.session import fingerprint


@pytest.mark.parametrize(
    "changed",
    [
        {"windows_per_iteration": 6},
        {"agents": 4},
        {"luck": 0.9},
        {"stage": "several"},
        {"decisions": 3},
        {"world_seed": 8},
        {"max_group": 4},
        {"judge_model": "another"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_run_that_plays_or_judges_otherwise_is_another_run(changed: dict[str, Any]) -> None:
    assert fingerprint(settings_from(TrainSettings, **changed)) != fingerprint(settings_from(TrainSettings))


@pytest.mark.parametrize("changed", [{"iterations": 9}, {"learning_rate": 1e-5}, {"max_steps": 3}, {"max_cost": 2.0}])
def test_a_run_may_be_taken_up_to_go_on_longer_or_more_slowly(changed: dict[str, Any]) -> None:
    assert fingerprint(settings_from(TrainSettings, **changed)) == fingerprint(settings_from(TrainSettings))
