"""Ctrl-C and SIGTERM: the first requests a stop after the current step, the second ends the process immediately.

Ending immediately is safe: durable state is in the ledger, and the next start settles the rest.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from data_bridge.errors import Interrupted

INTERRUPTED = 130

T = TypeVar("T")


@contextmanager
def stop_on_signal(announce: Callable[[str], None]) -> Iterator[asyncio.Event]:
    """The event that the first signal sets, for the duration of the block."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def asked() -> None:
        if stop.is_set():
            os._exit(INTERRUPTED)
        stop.set()
        announce("Stopping after the current step; press Ctrl-C or send SIGTERM again to stop immediately.")

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked)
    try:
        yield stop
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def unless_stopped(work: Coroutine[Any, Any, T], stop: asyncio.Event, sentence: str) -> T:
    """The result of ``work``; if a stop is requested first, ``work`` is cancelled and Interrupted raised."""
    working = asyncio.ensure_future(work)
    stopped = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise Interrupted(sentence)
    finally:
        for task in (working, stopped):
            task.cancel()
        await asyncio.gather(working, stopped, return_exceptions=True)
