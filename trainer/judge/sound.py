"""A row that makes a judge raise costs that row: the others are judged without it.

Only pure code is tried again to find the row (its view, its assessment), so that nothing is paid for twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar, cast

from data_bridge.quality import Exclusion, Reason, exclusion_of
from trainer.faults import control_row, described, may_be_a_rows
from trainer.types import MIN_GROUP, Group, JudgedGroup, JudgeFailure

F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, JudgedGroup | JudgeFailure]])
Probe = Callable[[Group, Collection[str]], object]


def without_faulty_rows(*probes: Probe) -> Callable[[F], F]:
    """A ``judge`` method that judges the others if it raises because of rows: those that fail a probe alone.

    A group that is too small without them is a failure: its other members have no peer.
    """

    def decorate(judging: F) -> F:
        @wraps(judging)
        async def judge(self: Any, group: Group) -> JudgedGroup | JudgeFailure:
            try:
                return await judging(self, group)
            except Exception as error:
                faulty = _faulty(group, self.purposes, probes) if may_be_a_rows(error) else ()
                if not faulty:
                    raise
            names = {exclusion.trajectory_id for exclusion in faulty}
            rest = tuple(one for one in group.trajectories if one.trajectory_id not in names)
            if len(rest) < MIN_GROUP:
                detail = "the other members of its group are at fault themselves"
                return JudgeFailure(
                    replace(group, trajectories=rest), Reason.NO_COMPARABLE_PEER, detail, left_out=faulty
                )
            verdict = await judging(self, replace(group, trajectories=rest))
            return replace(verdict, left_out=(*verdict.left_out, *faulty))

        return cast(F, judge)

    return decorate


def _faulty(group: Group, purposes: Collection[str], probes: Collection[Probe]) -> tuple[Exclusion, ...]:
    control = replace(group, trajectories=(control_row("", next(iter(purposes))),))
    if _fault_of(control, purposes, probes) is not None:
        return ()
    alone = ((one, _fault_of(replace(group, trajectories=(one,)), purposes, probes)) for one in group.trajectories)
    return tuple(
        exclusion_of(one, Reason.ROW_FAULT, described(fault, "judged")) for one, fault in alone if fault is not None
    )


def _fault_of(alone: Group, purposes: Collection[str], probes: Collection[Probe]) -> Exception | None:
    try:
        for probe in probes:
            probe(alone, purposes)
    except Exception as error:
        if not may_be_a_rows(error):
            raise
        return error
    return None
