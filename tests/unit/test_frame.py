"""What every command does around its work."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time

import pytest

from data_bridge.errors import Interrupted
from trainer.cli import frame
from trainer.config.settings import Command


def test_an_interrupt_that_a_library_forgets_is_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "_CANCEL_AGAIN_AFTER", 0.1)

    async def forgets_the_first(settings: Command) -> int:
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            await asyncio.sleep(600)
        return 0

    started = time.monotonic()
    code = frame.run_command(forgets_the_first, Command, [], prog="test", description="")
    assert code == 130
    assert time.monotonic() - started < 120


def test_a_work_that_was_stopped_is_one_sentence_and_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    async def stopped(settings: Command) -> int:
        raise Interrupted("Stopped after the step in hand.")

    code = frame.run_command(stopped, Command, [], prog="test", description="")
    gc.collect()  # asyncio tells of an exception that nobody took when its task is forgotten
    assert (code, capsys.readouterr().err) == (130, "error: Stopped after the step in hand.\n")
