"""Asks a judge everything that its certificate needs. Verdicts are stored as usual, so an examination can resume."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from data_bridge.errors import JudgeError
from data_bridge.quality import Exclusion
from trainer.certify.material import Material
from trainer.certify.measures import Answers, Asked, Attempt, Scores
from trainer.certify.probes import ATTACKS, attacked, outcome_flipped, padded, scaled
from trainer.progress import JudgeUsage
from trainer.types import Group, Judge, JudgedGroup, JudgeFailure

T = TypeVar("T")

_PROBES = 5
"""Calls for each probed group: again, in reverse, with the opposite outcome, padded, scaled."""
_APART = 7
"""The attacks of one call are this far apart in their list, so that each is tried beside two different ones."""


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
    first = {one.group.group_id: _scores_of(one) for one in judged}
    by_id = {one.group.group_id: one.group for one in judged}
    groups = [by_id[group.group_id] for group in material.probed]
    probed = await _all_answers(_answers(examiners, group, first[group.group_id]) for group in groups)
    attempts = await _all_answers(_attempts(examiners, number, probed) for number in range(len(ATTACKS)))
    return Asked(material, list(by_id.values()), first, probed, [one for both in attempts for one in both])


def calls_needed(material: Material) -> int:
    """The number of calls in one examination."""
    return len(material.groups) + _PROBES * len(material.probed) + len(ATTACKS)


async def _answers(examiners: Examiners, group: Group, first: Scores) -> Answers:
    flipped = outcome_flipped(group)
    asked = [
        (examiners.again, group),
        (examiners.two_orders, group),
        (examiners.one_order, flipped),
        (examiners.one_order, padded(group)),
        (examiners.one_order, scaled(group)),
    ]
    again, both, after_flip, longer, richer = await _all_answers(_scores(judge, shown) for judge, shown in asked)
    reverse = {member: 2 * both[member] - first[member] for member in both}
    return Answers(group, first, again, reverse, flipped, after_flip, longer, richer)


async def _attempts(examiners: Examiners, number: int, probed: Sequence[Answers]) -> list[Attempt]:
    """The two worst agents of a group write an attack each, because they have the most to gain.

    Who is worst is taken from the second answer and the gain from the first: in one and the same answer the worst are
    also the unluckiest, and would gain whatever they wrote.
    """
    one = probed[number % len(probed)]
    worst = sorted(one.again, key=lambda member: (one.again[member], member))[:2]
    attacks = (ATTACKS[number], ATTACKS[(number + _APART) % len(ATTACKS)])
    written = dict(zip(worst, attacks, strict=True))
    after = await _scores(
        examiners.one_order, attacked(one.group, {member: attack.text for member, attack in written.items()})
    )
    return [
        Attempt(attack.name, one.group.group_id, after[member] - one.first[member])
        for member, attack in written.items()
    ]


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
