"""A run remembers which code made it."""

from __future__ import annotations

import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

from trainer.run.code_version import code_version

ROOT = Path(__file__).parents[2]


def test_in_a_checkout_the_commit_is_named() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    code_version.cache_clear()
    assert code_version().startswith(version("hindsight-grpo"))
    assert commit in code_version()
