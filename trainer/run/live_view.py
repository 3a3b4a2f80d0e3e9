"""Displays a run: a live table on a terminal, one line per event elsewhere. Both on stderr."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

from data_bridge.redaction import one_line
from trainer.progress import Heartbeat, Progress, Silent, View

if TYPE_CHECKING:
    from rich.table import Table

_SHOW_EVERY = 5.0
"""Seconds between progress lines without a terminal."""


def open_view(*, quiet: bool = False, stream: TextIO | None = None) -> View:
    """The suitable view: nothing for machines, rich on a terminal, else plain lines."""
    stream = stream or sys.stderr
    if quiet:
        return Silent()
    return Live(stream) if stream.isatty() else Lines(stream)


class Lines:
    """One line per event, a progress line at intervals, and a sign of life in between."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown = time.monotonic()
        self._last = ""
        self._heartbeat = Heartbeat(self._write, "starting")

    def say(self, text: str) -> None:
        self._write(text)
        self._heartbeat.doing(text)
        self._heartbeat.start()

    def _write(self, text: str) -> None:
        with suppress(OSError):  # the terminal is closed, or the disk of a log is full: the run continues
            self._stream.write(one_line(text) + "\n")
            self._stream.flush()

    def show(self, progress: Progress) -> None:
        now = time.monotonic()
        line = sentence(progress)
        if now - self._shown >= _SHOW_EVERY and line != self._last:
            self._shown, self._last = now, line
            self.say(line)

    def close(self) -> None:
        self._heartbeat.stop()


class Live:
    """A small table that stays at the bottom of the terminal; events scroll by above it."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live as RichLive

        self._console = Console(file=stream, highlight=False)
        self._live = RichLive(console=self._console, refresh_per_second=4, transient=True)
        self._started = False

    def say(self, text: str) -> None:
        with suppress(OSError):  # the terminal is closed
            self._console.print(one_line(text), markup=False)

    def show(self, progress: Progress) -> None:
        with suppress(OSError):
            if not self._started:
                self._started = True
                self._live.start()
            self._live.update(_table(progress))

    def close(self) -> None:
        if self._started:
            with suppress(OSError):
                self._live.stop()


def sentence(progress: Progress) -> str:
    """The state of a run in one line."""
    parts = [
        f"windows {progress.windows_read}/{progress.windows}",
        f"judged {progress.groups_judged}/{progress.groups}",
        f"cost ${progress.cost_usd:.2f}",
        f"step {progress.step}",
    ]
    for name in ("reward", "kl"):
        if name in progress.latest:
            parts.append(f"{name} {progress.latest[name]:.3f}")
    if progress.train_seconds:
        parts.append(f"{progress.tokens_per_second:.0f} tokens/s")
    return "  ".join(parts)


def _table(progress: Progress) -> Table:
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for label, done, total in (
        ("windows read", progress.windows_read, progress.windows),
        ("groups judged", progress.groups_judged, progress.groups),
    ):
        table.add_row(label, ProgressBar(total=max(total, 1), completed=done, width=30), f"{done}/{total}")
    latest = progress.latest
    figures = [f"step {progress.step}", f"cost ${progress.cost_usd:.2f}"]
    figures += [f"{name} {latest[name]:.3f}" for name in ("reward", "kl", "entropy") if name in latest]
    if progress.train_seconds:
        figures.append(f"{progress.tokens_per_second:.0f} tokens/s")
    table.add_row("training", "", "  ".join(figures))
    return table
