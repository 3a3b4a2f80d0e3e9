"""What each backend's update is: one object in code, one table in docs, and no flag without effect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from data_bridge.errors import ConfigurationError
from trainer.abilities import Update, abilities_of
from trainer.config.training import TrainingSettings
from trainer.train.backends.choose import refuse_ignored

PAGE = Path(__file__).parents[2] / "docs" / "gpu-and-serverless.md"
BACKENDS = ("cpu", "local", "serverless")
ROWS = {
    "optimizer_steps": "optimizer steps per batch",
    "optimizer": "optimizer",
    "weight_decay": "weight decay",
    "saves_optimizer": "optimizer state kept with a checkpoint",
    "clips_gradient": "gradient clipping",
    "has_kl": "`--kl`",
    "weighs_stale": "stale tokens weighted, `--max-importance`",
    "masks_moved": "tokens that have moved masked",
    "corrects_sampling": "temperature and top-p corrected",
    "ignored": "refused",
}
WORDS = {True: "yes", False: "no", None: "W&B decides"}


def cell(value: Any) -> str:
    if isinstance(value, frozenset):
        return ", ".join(f"`--{name.replace('_', '-')}`" for name in sorted(value)) or "nothing"
    return value if isinstance(value, str) else WORDS[value]


@pytest.mark.parametrize("field", Update.__dataclass_fields__)
def test_the_table_says_what_the_object_says(field: str) -> None:
    cells = [cell(getattr(abilities_of(name).update, field)) for name in BACKENDS]
    assert f"| {ROWS[field]} | {' | '.join(cells)} |" in PAGE.read_text()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_changed_setting_that_a_backend_ignores_is_refused(backend: str) -> None:
    changed: dict[str, Any] = {
        "updates": 2,
        "warm_start": 1,
        "entropy_bonus": 0.1,
        "weight_decay": 0.1,
        "token_weights": "token",
        "init_from": "other@step1",
        "train_workers": 2,
        "kl": 0.1,
        "lora_rank": 8,
        "max_grad_norm": 2.0,
        "max_importance": 3.0,
    }
    ignored = abilities_of(backend).update.ignored
    assert ignored <= changed.keys()
    for name, value in changed.items():
        settings = TrainingSettings(**{name: value})
        if name in ignored:
            with pytest.raises(ConfigurationError, match=f"--{name.replace('_', '-')} has no effect"):
                refuse_ignored(backend, settings)
        else:
            refuse_ignored(backend, settings)


def test_a_setting_at_its_default_is_no_reason_to_refuse() -> None:
    """As in a file that --save-config wrote, which names them all."""
    refuse_ignored("serverless", TrainingSettings(updates=1, lora_rank=16, max_grad_norm=1.0))
