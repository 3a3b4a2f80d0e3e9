"""What every command does around its work."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time

import pytest

from trainer.cli import frame
from trainer.config import CommonSettings


def test_an_interrupt_that_a_library_forgets_is_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "_CANCEL_AGAIN_AFTER", 0.1)

    async def forgets_the_first(settings: CommonSettings) -> int:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(60)
        return 0

    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    started = time.monotonic()
    code = frame.run_command(forgets_the_first, CommonSettings, [], prog="test", description="")
    assert code == 130
    assert time.monotonic() - started < 30
