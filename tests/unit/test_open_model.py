"""A checkpoint is asked on the base model it was trained on, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_bridge.database import GONE_AFTER
from data_bridge.errors import ConfigurationError
from trainer.config.sections import WandbSecrets
from trainer.config.training import AddressSettings, ModelSettings
from trainer.inference.chat_models import Access, open_chat_model
from trainer.types import Checkpoint


async def test_a_checkpoint_is_not_asked_on_another_base_model(tmp_path: Path) -> None:
    """It would answer, in other words, and be compared by them."""
    (tmp_path / "adapter_config.json").write_text("{}")
    checkpoint = Checkpoint("hindsight", 3, "another-base", "cpu", str(tmp_path))
    addresses = AddressSettings()
    access = Access(tmp_path, ModelSettings(), addresses, WandbSecrets(), GONE_AFTER)
    with pytest.raises(ConfigurationError, match="--base-model another-base"):
        async with open_chat_model(checkpoint, access, None):
            pass
