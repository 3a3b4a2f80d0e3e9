"""What a run would do: survey the log, check whether there is enough data, plan groups and dropout.

Nothing is paid and nothing is written here; ``--dry-run`` prints an outlook and stops, training continues from it.
What grows with the log (rows, groups, exclusions) is in temporary files: one window at a time is in memory.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from itertools import chain, groupby
from operator import attrgetter
from typing import Protocol

from data_bridge.database import Database
from data_bridge.discovery import WindowRef
from data_bridge.errors import NotEnoughData
from data_bridge.long_list import LongList, Picked
from data_bridge.quality import Exclusion, Measurable, Reason, Rules
from data_bridge.reader import WindowReader
from data_bridge.survey import Survey, survey
from data_bridge.window_ids import start_of
from data_bridge.worlds.market import MARKET
from data_bridge.worlds.world import World
from trainer.config.sections import HeldOutSettings, PlanSettings
from trainer.config.settings import written_duration
from trainer.ledger.evaluations import first_consulted, unreached_among
from trainer.ledger.runs import Ledger
from trainer.plan.dropout import Members
from trainer.plan.grouping import Comparable, group_id, partition
from trainer.plan.remaining import without_done
from trainer.progress import counted
from trainer.statistics.hold_out import NOTHING_HELD_OUT, HoldOut, hold_out
from trainer.types import PlannedGroup, PlannedWindow, RunPlan


@dataclass(frozen=True)
class Outlook:
    """The plan of a run and what it is based on."""

    surveyed: Survey
    plan: RunPlan
    """The newly planned part; for a resumed run, the windows that arrived since."""
    windows: Picked[PlannedWindow]
    """Everything to train, in the order of training."""
    refs: tuple[WindowRef, ...]
    judge_tokens: int
    """Tokens that the judge is going to read."""
    dropped_tokens: int
    """Tokens that the judge need not read because dropout left them out."""
    excluded: Mapping[str, int]
    """The number of rows left out, by reason."""
    decided_before: Mapping[str, int]
    """The number of further rows that an earlier run of the model left out permanently, by reason."""
    decisions: int = 0
    """Decisions in what the judge is going to read."""

    @cached_property
    def held_out(self) -> int:
        """Windows that this plan keeps for the next ruling of the gate."""
        return len({one.window_id for one in self.plan.excluded if one.reason is Reason.HELD_OUT})

    @cached_property
    def groups(self) -> int:
        return sum(len(window.groups) for window in self.windows)

    @cached_property
    def trajectories(self) -> int:
        return sum(len(group.trajectory_ids) for window in self.windows for group in window.groups)


@dataclass(frozen=True, slots=True)
class SurveyedLog:
    """What a run can be planned from."""

    reader: WindowReader
    surveyed: Survey
    consulted: frozenset[str]
    """Windows that an evaluation has used: they are trained like any other, and never kept for another one."""


async def survey_log(
    database: Database,
    rules: Rules,
    purposes: Collection[str],
    is_measured: Measurable | None,
    *,
    model: str,
    has_ledger: bool = True,
    with_gains: bool = False,
) -> SurveyedLog:
    """The windows of the lookback, and older ones that were evaluated on and that no run of ``model`` has reached."""
    consulted = await first_consulted(database.pool, model) if has_ledger else {}
    released = await unreached_among(database, model, consulted) if consulted else set()
    first = rules.now - rules.lookback
    oldest = min([first, *(start_of(window_id) for window_id in released)])
    reader = WindowReader(database, replace(rules, lookback=rules.now - oldest))

    def is_wanted(window_id: str) -> bool:
        return window_id in released or start_of(window_id) >= first

    surveyed = await survey(
        reader, reader.rules, purposes, is_measured=is_measured, is_wanted=is_wanted, with_gains=with_gains
    )
    return SurveyedLog(reader, surveyed, frozenset(consulted))


async def look_ahead(
    surveyed: Survey,
    reader: WindowReader,
    ledger: Ledger | None,
    settings: PlanSettings,
    *,
    model: str,
    seed: int,
    run_id: str | None = None,
    dropout_rate: float | None = None,
    min_windows: int = 0,
    held_out: HeldOutSettings | None = None,
    consulted: Collection[str] = (),
) -> Outlook:
    """Plan what was ``surveyed``. NotEnoughData if that gives fewer than ``min_windows``.

    With ``held_out``, the newest windows are kept for the next ruling, but none of those ``consulted`` before.

    With ``run_id``, the plan has the windows that this run has not finished, and those that arrived since; windows
    that were consulted meanwhile, perhaps by this very run, wait for the next one.
    ``dropout_rate`` is that of the resumed run; otherwise it follows from the totals. Without a ledger (a database that
    was never migrated) no row counts as trained.
    """
    known: set[str] = set()
    open_windows: Sequence[PlannedWindow] = ()
    if ledger is not None and run_id is not None:
        known = await ledger.known_windows(run_id)
        open_windows = await ledger.open_windows(run_id)
    waits = {*known, *(consulted if run_id is not None else ())}
    fresh = filter(lambda window: window.window_id not in waits, surveyed.windows)
    left = await without_done(fresh, ledger, model, reader.rules.min_agents)
    rate = settings if dropout_rate is None else settings.model_copy(update={"dropout": dropout_rate})
    before = {*known, *left.trained_windows}
    kept_back = NOTHING_HELD_OUT if held_out is None else hold_out(left.hours, consulted, held_out, trained=before)
    how = (rate, seed, kept_back, reader.rules.world, left.excluded)
    plan = await asyncio.to_thread(make_plan, left.windows, *how)  # the heartbeat of the model's lock goes on
    windows = await asyncio.to_thread(in_training_order, chain(open_windows, plan.windows), seed)
    judged, saved = await asyncio.to_thread(_sizes, surveyed, windows, plan.excluded)
    outlook = Outlook(
        surveyed,
        plan,
        windows,
        tuple(await _refs(reader, surveyed, windows)),
        judged.tokens,
        saved.tokens,
        dict(Counter(one.reason.value for one in plan.excluded).most_common()),
        dict(left.decided_before.most_common()),
        judged.decisions,
    )
    if len(windows) < min_windows:
        raise _not_enough(outlook, min_windows, reader.rules.lookback)
    return outlook


def _not_enough(outlook: Outlook, min_windows: int, lookback: timedelta) -> NotEnoughData:
    left_out = Counter(outlook.excluded) + Counter(outlook.decided_before)
    seen = left_out.total()
    why = ", ".join(f"{reason} {count}" for reason, count in left_out.most_common(4))
    return NotEnoughData(
        f"{counted(len(outlook.windows), 'usable window')} of at least {min_windows} in the last "
        + written_duration(lookback)
        + (f" (left out: {counted(seen, 'trajectory')}: {why})" if seen else " (no other trajectories either)")
        + "; `scripts/check_windows.py` shows each window."
    )


@dataclass(slots=True)
class _Sizes:
    tokens: int = 0
    decisions: int = 0


def _sizes(surveyed: Survey, windows: Iterable[PlannedWindow], excluded: Iterable[Exclusion]) -> tuple[_Sizes, _Sizes]:
    """What the judge reads, and what it need not read because of dropout; nothing of a window not ``surveyed``."""
    place = {name: number for number, name in enumerate(map(attrgetter("window_id"), surveyed.windows))}

    def sizes(named: Iterable[tuple[str, Set[str]]]) -> _Sizes:
        found = _Sizes()
        for window_id, names in named:
            for one in surveyed.windows[place[window_id]].usable if window_id in place else ():
                if one.trajectory_id in names:
                    found.tokens += one.judge_tokens
                    found.decisions += one.decisions
        return found

    kept = ((one.window_id, {name for own in one.groups for name in own.trajectory_ids}) for one in windows)
    dropped = groupby((one for one in excluded if one.reason is Reason.DROPOUT), lambda one: one.window_id)
    return sizes(kept), sizes((window_id, {one.trajectory_id for one in own}) for window_id, own in dropped)


async def _refs(reader: WindowReader, surveyed: Survey, windows: Sequence[PlannedWindow]) -> list[WindowRef]:
    """References to the rows of every planned window, including those that are no longer eligible by themselves."""
    found = {ref.window_id: ref for ref in surveyed.refs}
    if any(window.window_id not in found for window in windows):
        found |= {ref.window_id: ref for ref in await reader.discover(everything=True)}
    return [found.get(window.window_id, WindowRef(window.window_id)) for window in windows]


class SurveyedWindow(Protocol):
    """What the plan needs to know about a window: its id, its length and its usable trajectories."""

    @property
    def window_id(self) -> str: ...
    @property
    def hours(self) -> int: ...
    @property
    def usable(self) -> Sequence[Comparable]: ...


@dataclass(frozen=True, slots=True)
class _Member:
    trajectory_id: str
    agent_id: str


@dataclass(frozen=True, slots=True)
class _Formed:
    """The groups of a window before dropout."""

    window_id: str
    hours: int
    groups: tuple[tuple[str, tuple[_Member, ...]], ...]


def make_plan(
    windows: Iterable[SurveyedWindow],
    settings: PlanSettings,
    seed: int,
    held_out: HoldOut = NOTHING_HELD_OUT,
    world: World = MARKET,
    also_excluded: Iterable[Exclusion] = (),
) -> RunPlan:
    """Group every window that is not held out, then apply the dropout that follows from the totals."""
    formed, excluded, members = LongList(_Formed), LongList(Exclusion), Members(seed)
    for window in windows:
        if window.window_id in held_out.reasons:
            why = held_out.reasons[window.window_id]
            excluded.extend(Exclusion(one.trajectory_id, one.agent_id, window.window_id, *why) for one in window.usable)
            continue
        parts = partition(window.usable, settings, seed, world)
        groups = tuple(
            (group_id(window.window_id, number), tuple(_Member(one.trajectory_id, one.agent_id) for one in own))
            for number, own in enumerate(parts.groups, start=1)
        )
        formed.append(_Formed(window.window_id, window.hours, groups))
        for name, own in groups:
            members.add_group(name, ((one.trajectory_id, one.agent_id) for one in own))
        excluded.extend(
            Exclusion(left.trajectory_id, left.agent_id, window.window_id, reason) for left, reason in parts.left_out
        )
        del window, parts, groups  # before the next one is read
    thinning, planned = members.thinned(settings), LongList(PlannedWindow)
    is_dropped = iter(thinning.is_dropped)
    for one_formed in formed:
        kept, dropped = _thinned(one_formed, is_dropped)
        excluded.extend(dropped)
        if kept.groups:
            planned.append(kept)
    excluded.extend(also_excluded)
    return RunPlan(planned, excluded, thinning.rate, len(members))


def _thinned(window: _Formed, is_dropped: Iterator[int]) -> tuple[PlannedWindow, list[Exclusion]]:
    """The window without the members for which ``is_dropped`` is not 0, of which it takes one for each."""
    groups: list[PlannedGroup] = []
    dropped: list[Exclusion] = []
    for name, members in window.groups:
        kept: list[str] = []
        for one in members:
            if next(is_dropped):
                dropped.append(Exclusion(one.trajectory_id, one.agent_id, window.window_id, Reason.DROPOUT))
            else:
                kept.append(one.trajectory_id)
        groups.append(PlannedGroup(name, tuple(kept)))
    return PlannedWindow(window.window_id, window.hours, tuple(groups)), dropped


def in_training_order(windows: Iterable[PlannedWindow], seed: int) -> Picked[PlannedWindow]:
    """``windows`` in an order by chance, the same on every host and after a crash.

    Neighbouring hours are related: in a step of neighbours one answer is mostly right, and that is what it would teach.
    """

    def place(window: PlannedWindow) -> bytes:
        return hashlib.blake2b(f"{seed}:{window.window_id}".encode(), digest_size=8).digest()

    return LongList(PlannedWindow, windows).sorted(place)
