"""Prints the report of ``check_windows`` for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from data_bridge.survey_types import WindowSummary
from data_bridge.worlds.world import WorldWords
from trainer.cli.output import say
from trainer.cli.tables import Column, show_heading, show_table
from trainer.patterns.significance import MOST_SHOWN, ErrorPattern
from trainer.progress import counted
from trainer.run.check_report import CheckReport, named


def show_report(report: CheckReport, out: TextIO) -> None:
    """Windows, totals by reason, readiness, cost: in that order, with the answer last."""
    totals = report.totals
    show_heading(f"Windows in {report.database}", out)
    if report.windows:
        show_table(
            _window_columns(report.windows, report.world.words),
            out,
            good=[bool(window.usable) for window in report.windows],
        )
    if totals.reasons:
        say("", to=out)
        show_heading("Left out", out)
        examples = [totals.examples[reason] for reason in totals.reasons]
        show_table(
            [
                Column("reason", [reason.value for reason in totals.reasons]),
                Column("rows", [f"{count:,}" for count in totals.reasons.values()], is_number=True),
                Column("example", [example.trajectory_id for example in examples]),
                Column("window", [example.window_id for example in examples], rank=2),
                Column("detail", [example.detail for example in examples], rank=1),
            ],
            out,
        )
    _show_patterns(report.patterns, out)
    say("", to=out)
    say(
        f"{totals.usable:,} of {counted(totals.trajectories, 'trajectory')} usable, in {totals.usable_windows:,} of "
        f"{counted(totals.windows, 'window')} and {counted(report.groups, 'group')}; "
        f"about {counted(totals.judge_tokens, 'token')} to judge "
        f"and {totals.train_tokens:,} to train.",
        to=out,
    )
    if report.dropped:
        say(f"Dropout of {report.dropout_rate:.0%} would leave out {report.dropped:,} of them before judging.", to=out)
    say(f"Judge: {report.cost}.", to=out)
    if report.unmeasured:
        reason = "no_pnl" if report.world.reads_markets else "not_measured"
        say(
            f"The offline judge cannot measure {counted(report.unmeasured, 'trajectory')} ({reason}); an LLM can judge "
            "them: set JUDGE_MODEL.",
            to=out,
        )
    for sentence in (*report.reach, *([report.doubts] if report.doubts else [])):
        say(sentence, to=out)
    if report.ready:
        show_heading("Ready for a training run.", out, style="bold green")
        return
    show_heading("Not enough for a training run.", out, style="bold yellow")
    for sentence in report.missing:
        say(f"  - {sentence}", to=out)


def _show_patterns(patterns: Sequence[ErrorPattern], out: TextIO) -> None:
    """What goes wrong in several trajectories in the same way."""
    shown = [one for one in patterns if one.significant or len(one.trajectories) > 1][:MOST_SHOWN]
    if not shown:
        return
    say("", to=out)
    show_heading("What goes wrong again and again", out)
    show_table(
        [
            Column("pattern", [one.template for one in shown]),
            Column("rows", [f"{len(one.trajectories):,}" for one in shown], is_number=True),
            Column("by week", [_weeks(one) for one in shown], rank=2),
            Column("most", [f"{one.worst_agent} {one.by_agent[one.worst_agent]}" for one in shown], rank=1),
            Column("more than chance", [", ".join(one.significant) or "no" for one in shown]),
        ],
        out,
        good=[bool(one.significant) for one in shown],
    )


def _weeks(one: ErrorPattern) -> str:
    return ", ".join(f"{week} {number}" for week, number in list(one.by_week.items())[-3:])


def _window_columns(windows: tuple[WindowSummary, ...], words: WorldWords) -> list[Column]:
    def numbers(heading: str, values: list[int], rank: int = 0) -> Column:
        return Column(heading, [f"{value:,}" for value in values], is_number=True, rank=rank)

    return [
        Column("window", [_name(window) for window in windows]),
        numbers("agents", [window.agents for window in windows], rank=3),
        numbers("rows", [window.trajectories for window in windows]),
        numbers("usable", [len(window.usable) for window in windows]),
        numbers("actions", [window.actions for window in windows], rank=4),
        numbers("calls", [window.llm_calls for window in windows], rank=7),
        numbers("to judge", [window.judge_tokens for window in windows], rank=5),
        numbers("to train", [window.train_tokens for window in windows], rank=6),
        Column(words.facts, [_coverage(window) for window in windows], rank=1),
        Column(words.measure, [_pnl(window) for window in windows], rank=2),
        Column("left out", [_reasons(window) for window in windows]),
    ]


def _name(window: WindowSummary) -> str:
    return window.window_id if window.hours == 1 else f"{window.window_id} +{window.hours}h"


def _coverage(window: WindowSummary) -> str:
    known = window.outcomes
    parts = []
    if known.stocks:
        parts.append(f"{known.stocks_known}/{known.stocks} stocks")
    if known.predictions:
        parts.append(f"{known.predictions_known}/{known.predictions} markets")
    if known.facts:
        parts.append(counted(known.facts, "fact"))
    return ", ".join(parts) or "none"


def _pnl(window: WindowSummary) -> str:
    if window.pnl_range is None:
        return ""
    lowest, highest = window.pnl_range
    digits = 0 if max(abs(lowest), abs(highest)) >= 10 else 2
    return f"{lowest:+,.{digits}f} to {highest:+,.{digits}f}"


def _reasons(window: WindowSummary) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in list(named(window.reasons).items())[:3])
