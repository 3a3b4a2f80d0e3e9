"""What a run would do: survey the log, check whether there is enough data, plan groups and dropout.

Nothing is paid and nothing is written here; ``--dry-run`` prints an outlook and stops, training continues from it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Protocol

from data_bridge.database import Database
from data_bridge.discovery import WindowRef
from data_bridge.errors import NotEnoughData
from data_bridge.models import AgentTrajectory
from data_bridge.quality import CheckedWindow, Exclusion, Measurable, Reason, Rules
from data_bridge.reader import WindowReader
from data_bridge.survey import Survey, survey
from data_bridge.survey_types import UsableTrajectory, WindowSummary
from data_bridge.window_ids import start_of
from data_bridge.worlds.market import MARKET
from data_bridge.worlds.world import World
from trainer.config.sections import HeldOutSettings, PlanSettings
from trainer.config.settings import written_duration
from trainer.ledger.evaluations import first_consulted, unreached_among
from trainer.ledger.runs import Ledger
from trainer.plan.grouping import Comparable, Droppable, Grouped, group_id, partition, plan_dropout
from trainer.progress import counted
from trainer.statistics.hold_out import NOTHING_HELD_OUT, HoldOut, hold_out
from trainer.types import MIN_GROUP, Group, PlannedGroup, PlannedWindow, RunPlan


@dataclass(frozen=True, slots=True)
class Outlook:
    """The plan of a run and what it is based on."""

    surveyed: Survey
    plan: RunPlan
    """The newly planned part; for a resumed run, the windows that arrived since."""
    windows: tuple[PlannedWindow, ...]
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

    @property
    def held_out(self) -> int:
        """Windows that this plan keeps for the next ruling of the gate."""
        return len({one.window_id for one in self.plan.excluded if one.reason is Reason.HELD_OUT})

    @property
    def groups(self) -> int:
        return sum(len(window.groups) for window in self.windows)

    @property
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
    open_windows: tuple[PlannedWindow, ...] = ()
    if ledger is not None and run_id is not None:
        known = await ledger.known_windows(run_id)
        open_windows = await ledger.open_windows(run_id)
    waits = {*known, *(consulted if run_id is not None else ())}
    fresh = [window for window in surveyed.windows if window.window_id not in waits]
    trained: dict[str, tuple[str, str]] = {}
    decided: dict[str, Reason] = {}
    lasting: Lasting = {}
    if ledger is not None:
        names = [window.window_id for window in fresh]
        trained = await ledger.trained_ids(model, names)
        decided = await ledger.decided_against(model, names)
        lasting = await ledger.lasting(model, names)
    rate = settings if dropout_rate is None else settings.model_copy(update={"dropout": dropout_rate})
    again = _trained_again(fresh, trained)
    done_with = {*trained, *decided, *(one.trajectory_id for one in again)}
    left = [one for window in fresh for one in window.usable if one.trajectory_id not in done_with]
    faults = [lasting[_name(one)] for one in left if _name(one) in lasting]
    done_with |= {one.trajectory_id for one in faults}
    remaining = [_remaining(window, done_with) for window in fresh]
    enough = [window for window in remaining if len(window.usable) >= reader.rules.min_agents]
    before = {*known, *(window_id for window_id, _ in trained.values())}
    kept_back = NOTHING_HELD_OUT if held_out is None else hold_out(enough, consulted, held_out, trained=before)
    plan = make_plan(enough, rate, seed, kept_back, reader.rules.world)
    plan = replace(plan, excluded=(*plan.excluded, *again, *faults, *_left_out_by_check(fresh, decided)))
    windows = in_training_order((*open_windows, *plan.windows), seed)
    rows = {one.trajectory_id: one for window in surveyed.windows for one in window.usable}
    tokens = {name: one.judge_tokens for name, one in rows.items()}
    kept = [name for window in windows for group in window.groups for name in group.trajectory_ids]
    dropped = [one.trajectory_id for one in plan.excluded if one.reason is Reason.DROPOUT]
    outlook = Outlook(
        surveyed,
        plan,
        windows,
        tuple(await _refs(reader, surveyed, windows)),
        sum(tokens.get(name, 0) for name in kept),
        sum(tokens.get(name, 0) for name in dropped),
        dict(Counter(one.reason.value for one in plan.excluded).most_common()),
        dict(Counter(reason.value for name, reason in decided.items() if name not in trained).most_common()),
        sum(rows[name].decisions for name in kept if name in rows),
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


def _remaining(window: WindowSummary, done_with: Set[str]) -> WindowSummary:
    """The window without the rows that our own ledger has as trained or permanently left out."""
    return replace(window, usable=tuple(one for one in window.usable if one.trajectory_id not in done_with))


def _trained_again(windows: Sequence[WindowSummary], trained: Mapping[str, tuple[str, str]]) -> list[Exclusion]:
    """Rows of agents that were trained in this window by another row: a window trains an agent once, not once a run."""
    taken = set(trained.values())
    return [
        Exclusion(one.trajectory_id, one.agent_id, window.window_id, Reason.DUPLICATE_AGENT, "the agent was trained")
        for window in windows
        for one in window.usable
        if one.trajectory_id not in trained and (window.window_id, one.agent_id) in taken
    ]


async def _refs(reader: WindowReader, surveyed: Survey, windows: Sequence[PlannedWindow]) -> list[WindowRef]:
    """References to the rows of every planned window, including those that are no longer eligible by themselves."""
    found = {ref.window_id: ref for ref in surveyed.refs}
    if any(window.window_id not in found for window in windows):
        found |= {ref.window_id: ref for ref in await reader.discover(everything=True)}
    return [found.get(window.window_id, WindowRef(window.window_id)) for window in windows]


def _left_out_by_check(windows: Sequence[WindowSummary], decided: Collection[str]) -> list[Exclusion]:
    """Exclusions without the rows that an earlier run used or left out: this run does not exclude them."""
    return [
        one
        for window in windows
        for one in window.excluded
        if one.reason is not Reason.ALREADY_USED and one.trajectory_id not in decided
    ]


class SurveyedWindow(Protocol):
    """What the plan needs to know about a window: its id, its length and its usable trajectories."""

    @property
    def window_id(self) -> str: ...
    @property
    def hours(self) -> int: ...
    @property
    def usable(self) -> Sequence[Comparable]: ...


def make_plan(
    windows: Iterable[SurveyedWindow],
    settings: PlanSettings,
    seed: int,
    held_out: HoldOut = NOTHING_HELD_OUT,
    world: World = MARKET,
) -> RunPlan:
    """Group every window that is not held out, then apply the dropout that follows from the totals."""
    formed: list[tuple[SurveyedWindow, list[tuple[str, tuple[Comparable, ...]]]]] = []
    excluded: list[Exclusion] = []
    members: list[Droppable] = []
    for window in windows:
        if window.window_id in held_out.reasons:
            why = held_out.reasons[window.window_id]
            excluded += [Exclusion(one.trajectory_id, one.agent_id, window.window_id, *why) for one in window.usable]
            continue
        parts = partition(window.usable, settings, seed, world)
        groups = [(group_id(window.window_id, number), own) for number, own in enumerate(parts.groups, start=1)]
        formed.append((window, groups))
        members += [Droppable(one.trajectory_id, one.agent_id, name) for name, own in groups for one in own]
        excluded += [
            Exclusion(one.trajectory_id, one.agent_id, window.window_id, reason) for one, reason in parts.left_out
        ]
    thinning = plan_dropout(members, settings, seed)
    planned: list[PlannedWindow] = []
    for window, groups in formed:
        kept: list[PlannedGroup] = []
        for name, own in groups:
            kept.append(
                PlannedGroup(name, tuple(o.trajectory_id for o in own if o.trajectory_id not in thinning.left_out))
            )
            excluded += [
                Exclusion(one.trajectory_id, one.agent_id, window.window_id, Reason.DROPOUT)
                for one in own
                if one.trajectory_id in thinning.left_out
            ]
        if kept:
            planned.append(PlannedWindow(window.window_id, window.hours, tuple(kept)))
    return RunPlan(tuple(planned), tuple(excluded), thinning.rate, thinning.total)


Lasting = Mapping[tuple[str, str], Exclusion]
"""Rows that were found at fault before, by trajectory id and content hash."""


def _name(row: UsableTrajectory | AgentTrajectory) -> tuple[str, str]:
    return row.trajectory_id, row.content_hash


def assemble(checked: CheckedWindow, planned: PlannedWindow, lasting: Lasting) -> Grouped:
    """The planned groups with the trajectories as they were read.

    A member that is no longer usable has its own reason in ``checked`` or ``lasting``; a group that falls below its
    minimum because of that is dropped.
    """
    wanted = {name for group in planned.groups for name in group.trajectory_ids}
    readable = {
        trajectory.trajectory_id: trajectory for trajectory in checked.usable if _name(trajectory) not in lasting
    }
    groups: list[Group] = []
    excluded = [lasting[_name(one)] for one in checked.usable if _name(one) in lasting and one.trajectory_id in wanted]
    for plan in planned.groups:
        members = tuple(readable[name] for name in plan.trajectory_ids if name in readable)
        if len(members) >= MIN_GROUP:
            truth = (checked.window.outcomes, checked.world, checked.window.hours)
            groups.append(Group(plan.group_id, planned.window_id, members, *truth))
        else:
            excluded += [
                Exclusion(one.trajectory_id, one.agent_id, planned.window_id, Reason.NO_COMPARABLE_PEER)
                for one in members
            ]
    return Grouped(tuple(groups), tuple(excluded))


def in_training_order(windows: Iterable[PlannedWindow], seed: int) -> tuple[PlannedWindow, ...]:
    """``windows`` in an order by chance, the same on every host and after a crash.

    Neighbouring hours are related: in a step of neighbours one answer is mostly right, and that is what it would teach.
    """

    def place(window: PlannedWindow) -> bytes:
        return hashlib.blake2b(f"{seed}:{window.window_id}".encode(), digest_size=8).digest()

    return tuple(sorted(windows, key=place))
