"""Which code is running: stored with every run, so that a checkpoint can be traced to it."""

from __future__ import annotations

import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]


@cache
def code_version() -> str:
    """Package version and, in a checkout, the commit; ``+changes`` if the tree differs from the commit."""
    try:
        release = version("hindsight-grpo")
    except PackageNotFoundError:
        release = "0"
    commit = _git("rev-parse", "--short=12", "HEAD")
    if not commit:
        return release
    changed = (
        "+changes" if _git("status", "--porcelain", "--untracked-files=no", "--", "trainer", "data_bridge") else ""
    )
    return f"{release} ({commit}{changed})"


def _git(*arguments: str) -> str:
    """The output of git, or nothing without git or outside a checkout."""
    if not (_ROOT / ".git").exists():
        return ""
    try:
        asked = subprocess.run(
            ["git", "-C", str(_ROOT), *arguments], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return asked.stdout.strip() if asked.returncode == 0 else ""
