"""Ctrl-C and SIGTERM: the first asks to stop after the step in hand, the second ends the process at once.

Ending at once is safe: what is durable is in the ledger or can be settled by the next start.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

INTERRUPTED = 130


@contextmanager
def stop_on_signal(announce: Callable[[str], None]) -> Iterator[asyncio.Event]:
    """The event that is set by the first signal; for the length of the block."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def asked() -> None:
        if stop.is_set():
            os._exit(INTERRUPTED)
        stop.set()
        announce("Stopping after the step in hand; once more to stop at once.")

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked)
    try:
        yield stop
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
