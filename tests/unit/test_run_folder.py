"""The folder of a run is never in its way: what cannot be written there is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_bridge.errors import ConfigurationError
from trainer.ledger.run_folder import RunFolder

FULL_DISK = Path("/dev/full")


@pytest.mark.skipif(not FULL_DISK.exists(), reason="this system has no disk that is always full")
def test_a_full_disk_is_one_warning_and_the_run_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = RunFolder(tmp_path, "run-1")
    (folder.path / "metrics.jsonl").symlink_to(FULL_DISK)
    (folder.path / ".summary.json.tmp").symlink_to(FULL_DISK)
    for step in (1, 2):
        folder.append("metrics.jsonl", [{"step": step}])
    folder.write("summary.json", {"steps": 2})
    folder.append("windows.jsonl", [{"window": "2026-10-15T13:00"}])
    [warning] = caplog.messages
    assert "metrics.jsonl cannot be written (No space left on device); the run continues" in warning
    assert not (folder.path / "summary.json").exists(), "half a document is none"
    assert (folder.path / "windows.jsonl").read_text().count("\n") == 1


def test_a_home_that_cannot_hold_the_folder_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(ConfigurationError, match="--home"):
        RunFolder(tmp_path, "run-1")
