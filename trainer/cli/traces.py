"""Trajectories with their outcomes as JSON lines: out of a database, and into one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager

from trainer.cli.frame import EXIT_CODES, database_of, run_command
from trainer.cli.output import alive, say, say_json
from trainer.config.data_commands import TraceSettings
from trainer.progress import counted

EXAMPLES = """examples:
  traces.py export week.jsonl.gz                    the last week of DATABASE_URL, with outcomes
  traces.py import week.jsonl.gz --untrained        into another database (or the embedded one), to train again
  traces.py export groups.parquet --groups          judged groups, to train in another engine

"""


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(
        work,
        TraceSettings,
        argv,
        prog="traces.py",
        description="Export windows with their outcomes as one JSON line per trajectory, or import such lines. "
        "Exporting, importing and exporting again gives the same file, byte for byte.",
        epilog=EXAMPLES + EXIT_CODES,
    )


async def work(settings: TraceSettings) -> int:
    from data_bridge.traces import STANDARD, export_traces, import_traces
    from trainer.ledger.clock import clock

    is_export = settings.traces.action == "export"
    if settings.traces.groups:
        return await _export_groups(settings, is_export=is_export)
    async with database_of(settings, migrate=not is_export, existing=is_export) as database:
        with _progress(settings.traces.action, quiet=settings.output.json_output) as progress:
            if is_export:
                end = await clock(database, settings.windows.until)
                first = end - settings.windows.lookback
                passed = await export_traces(database, settings.traces.file, first=first, end=end, progress=progress)
            else:
                passed = await import_traces(
                    database, settings.traces.file, untrained=settings.traces.untrained, progress=progress
                )
    told_to = sys.stderr if is_export and settings.traces.file == STANDARD else sys.stdout
    if settings.output.json_output:
        counts = {"trajectories": passed.trajectories, "windows": passed.windows, "outcomes": passed.outcomes}
        added = {} if is_export else {"new": passed.new}
        say_json({"action": settings.traces.action, "file": str(settings.traces.file), **counts, **added}, to=told_to)
    else:
        windows, outcomes = counted(passed.windows, "window"), counted(passed.outcomes, "outcome")
        what = f"{counted(passed.trajectories, 'trajectory')} of {windows} with {outcomes}"
        to = f" to {settings.traces.file}" if is_export else f", {passed.new:,} of them new, to {database.label}"
        say(f"{settings.traces.action}ed {what}{to}", to=told_to)
    return 0


async def _export_groups(settings: TraceSettings, *, is_export: bool) -> int:
    from data_bridge.errors import ConfigurationError, NotEnoughData
    from data_bridge.quality import Rules
    from data_bridge.traces import STANDARD
    from data_bridge.window_ids import window_of
    from trainer.cli.group_files import opened_group_file
    from trainer.ledger.clock import clock
    from trainer.run.export_groups import ExportedGroups, exported_groups

    if not is_export:
        raise ConfigurationError("--groups is for export: the verdicts of another engine cannot be imported.")
    exported, file = ExportedGroups(), settings.traces.file
    async with database_of(settings, migrate=False, existing=True) as database:
        end = await clock(database, settings.windows.until)
        first, rules = end - settings.windows.lookback, Rules(now=end, lookback=settings.windows.lookback)
        with opened_group_file(file) as write, alive("exporting groups", quiet=settings.output.json_output):
            rows = exported_groups(database, rules, window_of(first), window_of(end), exported)
            async with aclosing(rows):
                async for row in rows:
                    write(row)
            if exported.calls == 0:
                raise NotEnoughData(
                    f"There is no judged group from {window_of(first)} to {window_of(end)}: run `judge_windows.py`."
                )
    told_to = sys.stderr if file == STANDARD else sys.stdout
    counts = {"groups": exported.groups, "calls": exported.calls, "windows": len(exported.windows)}
    if settings.output.json_output:
        say_json({"action": "export", "file": str(file), **counts, "left_out": dict(exported.left_out)}, to=told_to)
    else:
        left = ", ".join(f"{number} {reason}" for reason, number in sorted(exported.left_out.items()))
        groups, calls = counted(exported.groups, "judged group"), counted(exported.calls, "call")
        say(f"exported {groups} with {calls} to {file}" + (f"; left out: {left}" if left else ""), to=told_to)
    return 0


@contextmanager
def _progress(action: str, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A counter on a terminal, otherwise a line per ten thousand; always on stderr."""
    if quiet:
        yield lambda _: None
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn(f"{action}: {{task.completed:,}} trajectories"), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(action, total=None)
            yield lambda done: bar.update(task, completed=done)
    else:
        printed = 0

        def line(done: int) -> None:
            nonlocal printed
            if done // 10_000 > printed:
                printed = done // 10_000
                say(f"{action}: {counted(done, 'trajectory')}", to=sys.stderr)

        with alive(f"{action}ing trajectories", quiet=False):
            yield line
