"""One unit read, checked and judged: the same code in this process and in a worker on another host."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import msgspec

from data_bridge.models import AgentTrajectory, Window
from data_bridge.quality import Reason, Rules, check
from data_bridge.reader import WindowReader
from data_bridge.worlds.world import World
from trainer.faults import first_fault
from trainer.ledger.units import GroupResult, Member, Unit, UnitResult
from trainer.plan.grouping import Grouped, Lasting, assemble
from trainer.types import MIN_GROUP, Group, JudgedGroup, JudgeFailure

_CHANGED = "a row of its group has gone or changed since it was judged"


async def read_unit(unit: Unit, reader: WindowReader) -> Window:
    """The rows of the unit's groups, and what became of the market."""
    wanted = [name for group in unit.planned.groups for name in group.trajectory_ids]
    return await reader.read_rows(unit.ref, wanted, unit.planned.hours)


def groups_of(unit: Unit, window: Window, rules: Rules, lasting: Lasting) -> Grouped:
    """The unit's groups, with the rows as they were read.

    After a crash, a window may have fewer agents left than a new window would need.
    """
    return assemble(check(window, replace(rules, min_agents=MIN_GROUP)), unit.planned, lasting)


async def judge_unit(
    unit: Unit,
    reader: WindowReader,
    judging: Callable[[Group], Awaitable[JudgedGroup | JudgeFailure]],
    lasting: Lasting,
    prepare: Callable[[Window], Window] = lambda window: window,
) -> UnitResult:
    """Read, check and judge all groups of ``unit``. Raises only what makes further work pointless."""
    grouped = groups_of(unit, prepare(await read_unit(unit, reader)), reader.rules, lasting)

    async def judged_group(group: Group) -> GroupResult:
        return result_of(await judging(group))

    try:
        async with asyncio.TaskGroup() as tasks:
            judged = [
                tasks.create_task(judged_group(group), name=f"judge {group.group_id}") for group in grouped.groups
            ]
    except BaseExceptionGroup as faults:
        raise first_fault(faults) from faults
    return UnitResult(tuple(task.result() for task in judged), grouped.excluded)


def result_of(judged: JudgedGroup | JudgeFailure) -> GroupResult:
    """What is told of a judged group: all but its rows."""
    members = tuple(
        Member(one.trajectory_id, one.agent_id, one.agent_name, _made(one, judged.group), one.content_hash)
        for one in judged.group.trajectories
    )
    name, paid = judged.group.group_id, judged.cost_usd
    if isinstance(judged, JudgeFailure):
        return GroupResult(
            name, members, cost_usd=paid, left_out=judged.left_out, reason=judged.reason, detail=judged.detail
        )
    return GroupResult(
        name,
        members,
        judged.verdicts,
        judged.identity,
        judged.verdict_key,
        cost_usd=paid,
        cached=judged.cached,
        left_out=judged.left_out,
    )


def _made(one: AgentTrajectory, group: Group) -> float | None:
    if group.world.reads_markets:
        return one.window_pnl
    success = group.world.success(one, group.outcomes)
    return None if success is None else success.value


def with_rows(results: Sequence[GroupResult], window: Window, world: World) -> list[JudgedGroup | JudgeFailure]:
    """Judged groups with their rows, as ``judge_unit`` had them.

    A verdict is about the rows that were judged: a group of which one has changed since has none.
    """
    rows = {(one.trajectory_id, one.content_hash): one for one in window.trajectories}
    found: list[JudgedGroup | JudgeFailure] = []
    for result in results:
        names = [(member.trajectory_id, member.content_hash) for member in result.members]
        members: tuple[AgentTrajectory, ...] = tuple(rows[name] for name in names if name in rows)
        group = Group(result.group_id, window.window_id, members, window.outcomes, world, window.hours)
        if result.reason is None and len(members) == len(names) and result.identity is not None:
            verdict = (result.verdicts, result.identity, result.verdict_key, result.cost_usd, result.cached)
            found.append(JudgedGroup(group, *verdict, left_out=result.left_out))
        else:
            reason, detail = (result.reason or Reason.NO_COMPARABLE_PEER), (result.detail or _CHANGED)
            found.append(JudgeFailure(group, reason, detail, result.cost_usd, result.left_out))
    return found


def as_unused(window: Window) -> Window:
    """``window`` as it was before training, to judge again one that was trained on."""
    unused = tuple(msgspec.structs.replace(one, used_in_training=False) for one in window.trajectories)
    return msgspec.structs.replace(window, trajectories=unused)
