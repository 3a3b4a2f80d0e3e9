"""train_mmo with a backend that trains nothing: for tests of the console.

``python -m tests.fakes.console_training --run-id X`` reads the same variables as the real command; the file
``FAKE_PACE`` says how many seconds a step takes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trainer.run.train as training
from tests.fakes.training_backend import FakeBackend
from trainer.cli import train_mmo
from trainer.config.training import CpuTrainee


@asynccontextmanager
async def _fake(trainee: CpuTrainee, *_: Any) -> AsyncIterator[FakeBackend]:
    pace = float(Path(os.environ["FAKE_PACE"]).read_text())
    backend = FakeBackend(trainee.home, model=trainee.model.model, seconds=pace)
    yield backend


def main() -> int:
    training.open_backend = _fake  # type: ignore[attr-defined, assignment]
    flags = ("--backend", "cpu", "--judge", "outcome", "--no-promote", "--simulate", "off", "--stop-on", "off")
    return train_mmo.main([*flags, *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
