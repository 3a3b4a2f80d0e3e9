"""One pass over the windows that keeps only numbers: what there is, what is usable, and why the rest is not.

``check_windows``, the dry run, the dropout plan, the cost estimate and the scheduler all start from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from data_bridge.discovery import WindowRef
from data_bridge.long_list import LongList
from data_bridge.models import DECISIONS, NO_DOUBTS, AgentTrajectory, FactDoubts
from data_bridge.quality import Exclusion, Measurable, Reason, Rules
from data_bridge.reader import WindowReader
from data_bridge.survey_types import WindowSummary
from data_bridge.window_parts import summaries


@dataclass(frozen=True, slots=True)
class Totals:
    windows: int = 0
    usable_windows: int = 0
    trajectories: int = 0
    usable: int = 0
    judge_tokens: int = 0
    train_tokens: int = 0
    reasons: Mapping[Reason, int] = field(default_factory=dict)
    """The number of excluded rows by reason, the most frequent first."""
    examples: Mapping[Reason, Exclusion] = field(default_factory=dict)
    """The first row excluded for each reason."""
    doubts: FactDoubts = NO_DOUBTS


@dataclass(frozen=True, slots=True)
class Survey:
    """All windows of the lookback in order, however many: they are not all in memory.

    ``refs`` points to those with usable rows, for reading them again.
    """

    windows: Sequence[WindowSummary]
    refs: tuple[WindowRef, ...]
    totals: Totals


async def survey(
    reader: WindowReader,
    rules: Rules,
    purposes: Collection[str] = DECISIONS,
    *,
    is_measured: Measurable | None = None,
    with_gains: bool = False,
    is_wanted: Callable[[str], bool] | None = None,
    on_window: Callable[[int, int], None] | None = None,
    on_read: Callable[[AgentTrajectory], None] | None = None,
) -> Survey:
    """Read and check every window of the lookback, eligible or not: every window is reported.

    With ``is_wanted`` only windows with such an id.

    ``purposes`` selects the calls that are trained. With ``is_measured``, rows that the judge could not score are left
    out, before they are put into a group; ``with_gains`` adds what each gained. ``on_window`` is called after each
    window with the number of windows done and the total, ``on_read`` with each trajectory that could be read.
    """
    found = [ref for ref in await reader.discover(everything=True) if is_wanted is None or is_wanted(ref.window_id)]
    found_summaries = LongList(WindowSummary)
    how: dict[str, Any] = {"is_measured": is_measured, "with_gains": with_gains, "on_read": on_read}
    async with (
        aclosing(reader.stream_parts(found)) as parts,
        aclosing(summaries(parts, rules, purposes, **how)) as windows,
    ):
        async for summary, _ in windows:
            found_summaries.append(summary)
            del summary  # before the next one is read
            if on_window is not None:
                on_window(len(found_summaries), len(found))
    refs = tuple(ref for ref, summary in zip(found, found_summaries, strict=True) if summary.usable)
    return Survey(found_summaries, refs, total(found_summaries))


def total(windows: Iterable[WindowSummary]) -> Totals:
    """In one pass, as ``windows`` may have to be read from a file."""
    reasons: Counter[Reason] = Counter()
    examples: dict[Reason, Exclusion] = {}
    number = usable_windows = trajectories = usable = judge_tokens = train_tokens = 0
    doubts = NO_DOUBTS
    for window in windows:
        number += 1
        usable_windows += bool(window.usable)
        trajectories += window.trajectories
        usable += len(window.usable)
        judge_tokens += window.judge_tokens
        train_tokens += window.train_tokens
        doubts = doubts.plus(window.outcomes.doubts)
        for exclusion in window.excluded:
            reasons[exclusion.reason] += 1
            examples.setdefault(exclusion.reason, exclusion)
    shares = dict(reasons.most_common())
    return Totals(number, usable_windows, trajectories, usable, judge_tokens, train_tokens, shares, examples, doubts)
