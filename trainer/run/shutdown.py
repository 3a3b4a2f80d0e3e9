"""Signals: the first request to stop ends a command in an orderly way, a second one ends its process immediately.

A request is SIGTERM (systemd, Kubernetes, ``kill``), SIGINT (Ctrl-C) or SIGHUP (the terminal was closed). Signals
less than ``SAME_REQUEST`` seconds apart are one request: ``timeout`` signals the process and then its whole group, and
a closed terminal is reported by the kernel and by the shell. SIGINT or SIGHUP that was ignored when the command
started stays ignored, because whoever started it asked for that: a script that uses ``&``, or ``nohup``. SIGTERM works
in any case.

Ending immediately is safe: durable state is in the ledger, and the next start settles the rest.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from data_bridge.errors import Interrupted

INTERRUPTED = 130

SAME_REQUEST = 1.0
"""Seconds: longer than a group's signals take to arrive, shorter than a person who means it takes to press again."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STREAMS = (1, 2)

T = TypeVar("T")


class _Requests:
    """The process's requests to stop: the innermost handler gets each, once."""

    def __init__(self) -> None:
        self.handlers: list[Callable[[], object]] = []
        self._last = -SAME_REQUEST
        self._before: dict[signal.Signals, Any] = {}
        self._terminals: list[int] = []

    def listen(self) -> None:
        self._last = -SAME_REQUEST
        self._terminals = [stream for stream in _STREAMS if os.isatty(stream)]
        for number in _SIGNALS:
            if number == signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._heard) or signal.SIG_DFL

    def leave(self) -> None:
        for number, earlier in self._before.items():
            signal.signal(number, earlier)
        self._before.clear()

    def _heard(self, number: int, _: FrameType | None) -> None:
        """Runs in the main thread whatever it does, so that a blocked event loop can still be ended."""
        if number == signal.SIGHUP:
            self._write_no_more_to_closed_terminals()
        now = time.monotonic()
        if now - self._last >= SAME_REQUEST:
            self._last = now
            self.handlers[-1]()

    def _write_no_more_to_closed_terminals(self) -> None:
        """Otherwise the next line printed would be an error, in the middle of the step to be finished."""
        for stream in self._terminals:
            if not os.isatty(stream):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream)
                os.close(nowhere)


_requests = _Requests()


@contextmanager
def on_request_to_stop(handler: Callable[[], object]) -> Iterator[None]:
    """Each request calls ``handler`` for the duration of the block, instead of that of an outer block.

    The handler runs between any two instructions of the main thread. Outside the main thread nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if not _requests.handlers:
        _requests.listen()
    _requests.handlers.append(handler)
    try:
        yield
    finally:
        if len(_requests.handlers) == 1:
            _requests.leave()
        _requests.handlers.remove(handler)


@contextmanager
def on_first_request(act: Callable[[], object]) -> Iterator[None]:
    """The first request calls ``act`` in the running event loop; the second ends the process immediately."""
    loop = asyncio.get_running_loop()
    requested = False

    def request() -> None:
        nonlocal requested
        if requested:
            os._exit(INTERRUPTED)
        requested = True
        loop.call_soon_threadsafe(act)

    with on_request_to_stop(request):
        yield


@contextmanager
def stop_on_signal(announce: Callable[[str], None]) -> Iterator[asyncio.Event]:
    """The event that the first request sets, for the duration of the block."""
    stop = asyncio.Event()

    def asked() -> None:
        stop.set()
        announce("Stopping after the current step; press Ctrl-C or send SIGTERM again to stop immediately.")

    with on_first_request(asked):
        yield stop


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
