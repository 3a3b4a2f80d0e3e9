"""wandb is never in the way: it may be slow, broken or away, and the key is in no environment."""

from __future__ import annotations

import logging
import os
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from trainer.config.training import BackendSettings
from trainer.train import tracking
from trainer.train.tracking import Tracker, mode_of

KEY = SecretStr("k" * 40)


class Run:
    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.is_finished = False

    def log(self, metrics: dict[str, float], step: int) -> None:
        self.logged.append((step, metrics))

    def finish(self) -> None:
        self.is_finished = True


def test_steps_are_logged_in_order_and_the_run_is_finished() -> None:
    run = Run()
    tracker = Tracker(lambda: run)
    for step in range(3):
        tracker.log(step, {"reward": float(step)})
    tracker.close()
    assert run.logged == [(step, {"reward": float(step)}) for step in range(3)]
    assert run.is_finished


def test_a_tracker_that_cannot_start_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    def start() -> Run:
        raise ConnectionError("no network")

    with caplog.at_level(logging.WARNING):
        tracker = Tracker(start)
        tracker.log(1, {"reward": 1.0})
        tracker.close()
    assert "wandb tracking is off: no network" in caplog.text


def test_a_tracker_that_hangs_does_not_hold_the_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracking, "_MAX_FINISH_SECONDS", 0.1)
    tracker = Tracker(lambda: time.sleep(300))
    started = time.monotonic()
    tracker.log(1, {"reward": 1.0})
    tracker.close()
    assert time.monotonic() - started < 60
    assert "did not finish" in caplog.text


@pytest.mark.parametrize(
    ("values", "key", "mode"),
    [
        ({}, None, "off"),
        ({}, KEY, "online"),
        ({"tracking": "offline"}, KEY, "offline"),
        ({"tracking": "off"}, KEY, "off"),
    ],
)
def test_the_mode_follows_from_key_and_setting(values: dict[str, Any], key: SecretStr | None, mode: str) -> None:
    assert mode_of(BackendSettings(**values), key) == mode


def test_an_offline_run_is_written_to_its_folder_and_has_neither_the_key_nor_a_password_of_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, password = "0123456789abcdef0123456789abcdef01234567", "hunter2-of-the-game"
    monkeypatch.setattr(sys, "argv", ["train_mmo.py", "--database-url", f"postgres://game:{password}@db/game"])
    monkeypatch.setattr(tracking, "_MAX_FINISH_SECONDS", 300.0)  # a busy machine takes longer to write the last bytes
    settings = BackendSettings(tracking="offline")
    with tracking.tracking(settings, SecretStr(key), "run-1", tmp_path, {"seed": 0}) as tracker:
        tracker.log(1, {"reward": 0.5})
    [record] = tmp_path.rglob("*.wandb")
    deadline = time.monotonic() + 60
    while b"reward" not in record.read_bytes() and time.monotonic() < deadline:
        time.sleep(0.05)  # wandb's own process writes it, on a busy machine after its end was told
    written = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    run = written[record]
    assert b"reward" in run, "there is something to look through"
    assert key not in " ".join(os.environ.values())
    for file, content in written.items():
        assert key.encode() not in content, file
        assert password.encode() not in content, file


def test_tensorboard_files_get_every_metric_of_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer is the user's own, beside torch: what it is called with is what is promised here."""
    written: list[tuple[str, float, int]] = []

    class SummaryWriter:
        def __init__(self, folder: str) -> None:
            self.folder = folder

        def add_scalar(self, name: str, value: float, step: int) -> None:
            written.append((name, value, step))

        def flush(self) -> None: ...

        def close(self) -> None:
            written.append(("closed", 0.0, 0))

    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    with tracking.tracking(BackendSettings(tracking="tensorboard"), None, "run", tmp_path, {}) as tracker:
        tracker.log(3, {"reward": 0.5, "kl": 0.01})
    assert written == [("reward", 0.5, 3), ("kl", 0.01, 3), ("closed", 0.0, 0)]
