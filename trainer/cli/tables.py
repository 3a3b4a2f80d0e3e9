"""Tables for people: drawn to the width of a terminal, plain aligned text when piped.

Text that agents or the game wrote is shown without control characters, so that it cannot control the terminal.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TextIO

from data_bridge.redaction import one_line
from trainer.cli.output import say

_GAP = 3  # characters between drawn columns
_LAST = 24  # minimum width of the last column, which may wrap, in characters
_MAX_CELL = 200  # characters


@dataclass(frozen=True, slots=True)
class Column:
    """A heading, its cells, and its priority: on a narrow terminal the columns with the highest ``rank`` are
    left out first."""

    heading: str
    cells: Sequence[str]
    is_number: bool = False
    rank: int = 0

    @property
    def width(self) -> int:
        return max(map(len, (self.heading, *self.cells)))


def show_table(columns: Sequence[Column], out: TextIO, *, good: Sequence[bool] | None = None) -> None:
    """Print one table. On a terminal, rows that are not ``good`` are dimmed."""
    columns = [replace(column, cells=[printable(cell, _MAX_CELL) for cell in column.cells]) for column in columns]
    if out.isatty():
        _draw(_fitting(columns, shutil.get_terminal_size().columns), out, good)
        return
    for line in (tuple(column.heading for column in columns), *zip(*(column.cells for column in columns), strict=True)):
        cells = [
            cell.rjust(column.width) if column.is_number else cell.ljust(column.width)
            for column, cell in zip(columns, line, strict=True)
        ]
        say("  ".join(cells).rstrip(), to=out)


def show_heading(text: str, out: TextIO, *, style: str = "bold") -> None:
    """Print a heading, emphasised on a terminal."""
    if out.isatty():
        from rich.console import Console
        from rich.text import Text

        Console(file=out).print(Text(one_line(text), style=style))
    else:
        say(text, to=out)


def printable(text: str, max_length: int = 120) -> str:
    """Untrusted text on one line, safe for a terminal."""
    clean = " ".join(one_line(text).split())
    return clean if len(clean) <= max_length else clean[: max_length - 1] + "…"


def _fitting(columns: Sequence[Column], width: int) -> list[Column]:
    """As many columns as fit; the last one may wrap."""
    kept = list(columns)
    while len(kept) > 2:
        needed = sum(column.width + _GAP for column in kept[:-1]) + min(kept[-1].width, _LAST) + 2
        droppable = [column for column in kept if column.rank > 0]
        if needed <= width or not droppable:
            break
        kept.remove(max(droppable, key=lambda column: column.rank))
    return kept


def _draw(columns: Sequence[Column], out: TextIO, good: Sequence[bool] | None) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in columns:
        is_last = column is columns[-1]
        table.add_column(
            column.heading,
            justify="right" if column.is_number else "left",
            no_wrap=not is_last,
            min_width=None if is_last else column.width,
        )
    for number, row in enumerate(zip(*(column.cells for column in columns), strict=True)):
        style = "" if good is None or good[number] else "dim"
        table.add_row(*(Text(cell) for cell in row), style=style)
    Console(file=out).print(table)
