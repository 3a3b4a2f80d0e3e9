"""Runs the training of a period in its own process: its output is read, it is stopped cleanly, it never outlives us.

It has its own session, so that a Ctrl-C in the terminal reaches it once and not twice: the second would end it
immediately, in the middle of a step. Each request to stop that we receive while it runs is passed on to it, and we
wait.

The scheduler passes its settings to the training in variables, because a command line is visible to everyone.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from pydantic import SecretStr

from trainer.config.settings import Command, settings_of, variable_of, written_duration
from trainer.run.shutdown import on_request_to_stop

_CHUNK = 64 * 1024
_MAX_LAST_WORDS = 4_000
_STILL_TALKING = 5.0
"""Seconds to keep reading from a process that outlives the training and holds its stderr."""
_STDERR = 2
_OUR_OWN = frozenset({"json_output"})
"""How the scheduler itself prints."""


def variables_for(reader: type[Command], settings: Command) -> dict[str, str]:
    """The settings that were set by any source and that ``reader`` also has, under the variables it reads."""
    variables = {name: variable_of(name, field) for _, name, field in settings_of(reader) if name not in _OUR_OWN}
    passed: dict[str, str] = {}
    for section, name, _ in settings_of(type(settings)):
        values, variable = getattr(settings, section), variables.get(name)
        if variable is not None and name in values.model_fields_set:
            passed[variable] = _spelt(getattr(values, name))
    return passed


def _spelt(value: object) -> str:
    """``value`` as written in a variable."""
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, timedelta):
        return written_duration(value)
    return str(value)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a training ended."""

    pid: int
    exit_code: int
    last_words: str
    """The last line on stderr: the sentence that explains the exit code."""

    @property
    def was_interrupted(self) -> bool:
        return self.exit_code in (128 + signal.SIGINT, -signal.SIGINT)


async def train(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    stop: asyncio.Event,
    lost: asyncio.Event,
    quiet: bool = False,
) -> Ended:
    """Run ``command`` to its end. ``stop`` is set if we are signalled to end; ``lost`` stops the training.

    With ``quiet`` its output does not go to our stdout.
    """
    async with _listening() as words:
        process = await asyncio.create_subprocess_exec(
            *command,
            env=dict(environment),
            stdout=_STDERR if quiet else None,
            stderr=words.ear,
            start_new_session=True,
            preexec_fn=_prepare,
        )
        exit_code = await _ended(process, stop, lost)
    return Ended(process.pid, exit_code, words.line)


async def _ended(process: asyncio.subprocess.Process, stop: asyncio.Event, lost: asyncio.Event) -> int:
    """Wait for the exit code; signals that arrive before are passed on to the training."""

    def interrupt() -> None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)

    def pass_on() -> None:
        stop.set()
        interrupt()

    ending = asyncio.create_task(process.wait(), name="end of the training")
    losing = asyncio.create_task(_when(lost, interrupt), name="loss of the claim")
    with on_request_to_stop(partial(asyncio.get_running_loop().call_soon_threadsafe, pass_on)):
        while not ending.done():
            try:
                await asyncio.wait({ending})
            except asyncio.CancelledError:
                # Cancelled before we handled the signals. The frame repeats it; the training gets it once.
                if not stop.is_set():
                    pass_on()
    losing.cancel()
    return ending.result()


async def _when(event: asyncio.Event, call: Callable[[], None]) -> None:
    await event.wait()
    call()


@contextlib.asynccontextmanager
async def _listening() -> AsyncIterator[_LastWords]:
    """Our own pipe: asyncio's would wait for a server that the training started and left running."""
    reading, writing = os.pipe()
    stream = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(reading, "rb")
    )
    words = _LastWords(writing)
    hearing = asyncio.create_task(words.hear(stream), name="last words of the training")
    try:
        yield words
    finally:
        os.close(writing)
        await asyncio.wait({hearing}, timeout=_STILL_TALKING)
        hearing.cancel()
        transport.close()


class _LastWords:
    """Copies what is written into ``ear`` to our stderr, and keeps the end of it."""

    def __init__(self, ear: int) -> None:
        self.ear = ear
        self._tail = ""

    async def hear(self, stream: asyncio.StreamReader) -> None:
        """In chunks, not lines: a progress bar writes a single line of any length."""
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        while chunk := await stream.read(_CHUNK):
            text = decoder.decode(chunk)
            self._tail = (self._tail + text)[-_MAX_LAST_WORDS:]
            with contextlib.suppress(OSError):  # our stderr is closed; the training must not block on it
                sys.stderr.write(text)
                sys.stderr.flush()

    @property
    def line(self) -> str:
        lines = [line.strip() for line in self._tail.splitlines()]  # a carriage return also ends a line
        return next((line for line in reversed(lines) if line), "")


def _prepare() -> None:
    """In the training's process: it hears SIGINT, which we send, even if a script that used ``&`` had us ignore it.

    On Linux the kernel stops the training when its scheduler dies, so that a host that takes over is alone.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
