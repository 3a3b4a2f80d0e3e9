"""Asks a judge everything that its certificate needs. Verdicts are stored as usual, so an examination can resume."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from data_bridge.errors import JudgeError
from data_bridge.quality import Exclusion
from trainer.certify.material import Material
from trainer.certify.measures import Asked, Scores
from trainer.certify.probes import ATTACKS, attacked, outcome_flipped, padded
from trainer.types import Group, Judge, JudgedGroup, JudgeFailure, JudgeUsage

T = TypeVar("T")


class Examined(Judge, Protocol):
    """A judge that counts its calls and their cost."""

    @property
    def usage(self) -> JudgeUsage: ...


@dataclass(frozen=True, slots=True)
class Examiners:
    """The same judge, opened in three ways."""

    one_order: Examined
    two_orders: Examined
    """That order and its reverse; the answers of ``one_order`` are reused."""
    again: Examined
    """The order of ``one_order``, asked again without stored answers."""

    @property
    def calls(self) -> int:
        return sum(judge.usage.calls for judge in (self.one_order, self.two_orders, self.again))

    @property
    def cost_usd(self) -> float:
        return sum(judge.usage.cost_usd for judge in (self.one_order, self.two_orders, self.again))


async def examine(examiners: Examiners, material: Material) -> Asked:
    """All answers on ``material``. JudgeError if the judge fails on any group.

    A member that the judge leaves out at first is in none of the questions, so that all are about the same ones.
    """
    judged = await _all_answers(_judged(examiners.one_order, group) for group in material.groups)
    groups, first = [one.group for one in judged], [_scores_of(one) for one in judged]
    longer = [padded(group) for group in groups]
    both, again, flipped, with_padding = await _all_answers(
        [
            _all(examiners.two_orders, groups),
            _all(examiners.again, groups),
            _all(examiners.two_orders, [outcome_flipped(group) for group in groups]),
            _all(examiners.two_orders, [group for group, _ in longer]),
        ]
    )
    members = [member for group in groups for member in group.trajectories]
    return Asked(
        first_order=first,
        other_order=[_other(mean, one) for mean, one in zip(both, first, strict=True)],
        again=again,
        flipped=flipped,
        padded=[(scores, chosen) for scores, (_, chosen) in zip(with_padding, longer, strict=True)],
        attacks=await _attacks(examiners, groups, first),
        skill=material.skill,
        agent_of={member.trajectory_id: member.agent_id for member in members},
        pnl_of={member.trajectory_id: member.window_pnl for member in members if member.window_pnl is not None},
    )


def _other(mean: Scores, first: Scores) -> dict[str, float]:
    """The scores of the second order, from those of the first and the mean of the two."""
    return {member: 2 * mean[member] - first[member] for member in mean}


def calls_needed(groups: int) -> int:
    """The number of calls in one examination."""
    return 7 * groups + len(ATTACKS)


async def _attacks(
    examiners: Examiners, groups: Sequence[Group], clean: Sequence[Scores]
) -> list[tuple[str, float, float]]:
    """The worst agent of a group writes the attack, because it has the most to gain."""

    async def one(number: int) -> tuple[str, float, float]:
        place = number % len(groups)
        worst = min(clean[place], key=lambda member: (clean[place][member], member))
        [after] = await _all(examiners.one_order, [attacked(groups[place], worst, ATTACKS[number].text)])
        return ATTACKS[number].name, clean[place][worst], after[worst]

    return await _all_answers(one(number) for number in range(len(ATTACKS)))


async def _all(judge: Judge, groups: Sequence[Group]) -> list[Scores]:
    return await _all_answers(_scores(judge, group) for group in groups)


async def _all_answers(asked: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """All answers; or the first failure, raised after the others arrived: they are paid for, and stored for reuse."""
    answers = [asyncio.create_task(one) for one in asked]
    await asyncio.gather(*answers, return_exceptions=True)
    return [answer.result() for answer in answers]


async def _scores(judge: Judge, group: Group) -> Scores:
    judged = await _judged(judge, group)
    for left_out in judged.left_out:
        raise _no_verdict(group, left_out)
    return _scores_of(judged)


async def _judged(judge: Judge, group: Group) -> JudgedGroup:
    judged = await judge.judge(group)
    if isinstance(judged, JudgeFailure):
        raise _no_verdict(group, judged)
    return judged


def _scores_of(judged: JudgedGroup) -> Scores:
    return {verdict.trajectory_id: verdict.score for verdict in judged.verdicts}


def _no_verdict(group: Group, why: JudgeFailure | Exclusion) -> JudgeError:
    return JudgeError(
        f"The judge could not be examined: no verdict on group {group.group_id} ({why.reason}: {why.detail})."
    )
