"""``check_windows``: what can be trained in the database, what cannot, and why. Reads only; pays nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from data_bridge.errors import ConfigurationError
from trainer.cli.frame import database_of, run_command
from trainer.cli.output import alive, say, say_json
from trainer.config.data_commands import CheckSettings
from trainer.config.derived import window_rules

_READY, _NOT_ENOUGH = 0, 3
_SEED = 0  # for grouping: the number of ungrouped rows does not depend on it

DESCRIPTION = """What can be trained in the database, what cannot, and why.

Shows every window of the lookback with its usable rows and why others are left out, whether that is enough
for a training run, and what judging it would cost. Reads only."""

EPILOG = """exit codes:
  0 ready to train; 3 not enough data; 2 configuration"""


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(_work, CheckSettings, argv, prog="check_windows.py", description=DESCRIPTION, epilog=EPILOG)


async def _work(settings: CheckSettings) -> int:
    return await (
        _check_all(settings) if settings.shown.window is None else _check_one(settings, settings.shown.window)
    )


async def _check_all(settings: CheckSettings) -> int:
    from trainer.cli.check_tables import show_report
    from trainer.run.check_report import check_log

    async with database_of(settings, read_only=settings.secrets.database_url is not None, existing=True) as database:
        with _progress(quiet=settings.output.json_output) as on_window:
            parts = (settings.windows, settings.groups, settings.judge)
            report = await check_log(database, *parts, step_credit=settings.judge.step_credit, on_window=on_window)
    if settings.output.json_output:
        say_json(report.as_json())
    else:
        show_report(report, sys.stdout)
    return _READY if report.ready else _NOT_ENOUGH


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on a terminal while windows are read, otherwise a sign of life."""
    if not sys.stderr.isatty():
        with alive("reading windows", quiet=quiet):
            yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("reading windows", total=None)
        yield lambda done, number: progress.update(task, completed=done, total=number)


async def _check_one(settings: CheckSettings, window: str) -> int:
    from data_bridge.quality import check, leave_out_unmeasured
    from data_bridge.reader import WindowReader
    from data_bridge.window_ids import normalise
    from trainer.cli.check_window_view import make_view, show_view
    from trainer.judge.open import measured_by
    from trainer.ledger.clock import clock
    from trainer.plan.grouping import form_groups

    if normalise(window) is None:
        raise ConfigurationError(f"--window: write the id as 2026-11-02T10:00, in UTC (got {window!r}).")
    async with database_of(settings, read_only=settings.secrets.database_url is not None, existing=True) as database:
        rules = window_rules(settings.windows, now=await clock(database, settings.windows.until))
        read = await WindowReader(database, rules).read(window)
        label = database.label
    if read is None:
        say(f"Window {normalise(window)} has no rows in {label}.", to=sys.stderr)
        return _NOT_ENOUGH
    checked, is_measured = check(read, rules), measured_by(settings.judge)
    if is_measured is not None:
        checked = leave_out_unmeasured(checked, rules, is_measured)
    view = make_view(checked, form_groups(checked, settings.groups, _SEED).excluded, rules)
    if settings.output.json_output:
        say_json(view.as_json())
    else:
        show_view(view, sys.stdout)
    return _READY if any(line.usable for line in view.lines) else _NOT_ENOUGH
