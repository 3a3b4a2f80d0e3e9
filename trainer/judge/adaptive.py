"""Which orders a group is shown in: the first for all, another only where it could change the advantages.

A random tenth of the groups is always shown in two orders, one the reverse of the other. How far their scores move,
pooled over all of them, says how uncertain a score is that was given in one order only, and how much of a group's
differences another order can be expected to turn round. Where that is little, it is not asked for; every such decision
is kept with its reason and the figures that it rests on.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import combinations
from statistics import NormalDist, fmean

from trainer.judge.cost import SAMPLE_SHARE
from trainer.ledger.order_decisions import DecisionStore, OrderDecision, OrderReason, Scored
from trainer.ledger.verdicts import Judgement
from trainer.types import JudgeIdentity

MAX_TURNED = 0.045
"""The share of a group's differences that may remain to be turned round: above it, another order is asked for."""

MIN_DEGREES = 20
"""Degrees of freedom of the pooled variance, below which nothing rests on it: four groups of six."""

ENOUGH_DEGREES = 60
"""From here on it is good enough that no group waits for what is being measured just now."""

MEASURING = (OrderReason.SAMPLE, OrderReason.UNMEASURED)
"""Reasons that do not depend on the group's scores: these groups measure the judge."""

_NORMAL = NormalDist()


def is_sample(group_id: str) -> bool:
    """Whether this group is one of the random tenth: by its name alone, so on every host and in every run the same."""
    drawn = hashlib.blake2b(group_id.encode(), digest_size=8, person=b"order sample").digest()
    return int.from_bytes(drawn, "big") < SAMPLE_SHARE * 2**64


def turned_share(means: Sequence[float], order_sd: float, orders: int) -> float:
    """The share of the differences between ``means`` that one more order is expected to turn round.

    ``means`` are over ``orders`` orders, each of which moves a score by ``order_sd``. One more moves the difference of
    two means by a normal amount with the deviation that is computed first. What is turned round is the expected size of
    a difference on the other side of zero: so a tie that falls either way counts little beside a clear difference.
    """
    moves_by = order_sd * math.sqrt(2 / (orders * (orders + 1)))
    if moves_by <= 0:
        return 0.0
    turned = whole = 0.0
    for one, other in combinations(means, 2):
        gap = abs(one - other)
        beyond = moves_by * _NORMAL.pdf(gap / moves_by) - gap * _NORMAL.cdf(-gap / moves_by)
        turned += beyond
        whole += gap + 2 * beyond
    return turned / whole if whole else 0.0


def in_place(scored: Scored) -> list[float]:
    """The scores by content, so that they can be compared with those of another order."""
    return [one.score for one in sorted(scored, key=lambda one: (one.content, one.trajectory_id))]


class OrderNoise:
    """How far one score of this judge moves between orders, beyond what moves the whole group.

    Only the differences within a group are trained, so a shift of all its scores is left out. What is being asked for
    in order to measure it is announced, so that others wait for it instead of measuring as well.

    ``frozen``: what is measured from now on does not count. Workers of one job all begin with the same numbers and keep
    them, so that what is asked for does not depend on who judges what, and when.
    """

    def __init__(self, squares: float = 0.0, degrees: int = 0, *, frozen: bool = False) -> None:
        self._squares = squares
        self._degrees = degrees
        self._is_frozen = frozen
        self._announced = 0
        self._settled = 0
        self._seen: set[str] = set()
        self._changed = asyncio.Condition()

    @property
    def sd(self) -> float | None:
        """None as long as too little is known."""
        return math.sqrt(self._squares / self._degrees) if self._degrees >= MIN_DEGREES else None

    @property
    def measured(self) -> tuple[float, int]:
        """The sum of squares and its degrees of freedom, for a copy."""
        return self._squares, self._degrees

    @property
    def is_enough(self) -> bool:
        return self._is_frozen or self._degrees >= ENOUGH_DEGREES

    @property
    def is_under_way(self) -> bool:
        """Whether it will be known when what was announced has come."""
        return not self._is_frozen and self._degrees + self._announced - self._settled >= MIN_DEGREES

    def add(self, verdict_key: str, first: Sequence[float], second: Sequence[float]) -> None:
        """The scores of one group in two orders; a group counts once."""
        if self._is_frozen or verdict_key in self._seen or len(first) < 2:
            return
        self._seen.add(verdict_key)
        moves = [one - other for one, other in zip(first, second, strict=True)]
        common = fmean(moves)
        self._squares += sum((move - common) ** 2 for move in moves) / 2
        self._degrees += len(moves) - 1

    def announce(self, degrees: int) -> None:
        """A group is being asked about that will measure the judge; ``settle`` must follow, whatever becomes of it."""
        self._announced += degrees

    async def settle(self, degrees: int) -> None:
        """What was announced has been added, or will not come."""
        self._settled += degrees
        async with self._changed:
            self._changed.notify_all()

    async def wait(self) -> None:
        """Until as much as was announced by now has been settled, or enough is known anyway."""
        announced = self._announced
        async with self._changed:
            await self._changed.wait_for(lambda: self.is_enough or self._settled >= announced)


@dataclass(slots=True)
class OrderRule:
    """``most`` orders at most; if not ``adaptive``, every group is asked about in all of them."""

    most: int
    adaptive: bool
    decisions: DecisionStore
    noise: OrderNoise = field(default_factory=OrderNoise)

    async def remember(self, identity: JudgeIdentity) -> None:
        """Begin with what earlier runs have measured of this judge."""
        for key, (first, second) in (await self.decisions.measured(identity)).items():
            self.noise.add(key, in_place(first), in_place(second))

    @asynccontextmanager
    async def course(self, verdict_key: str, group_id: str, members: int) -> AsyncIterator[Course]:
        course = Course(self, verdict_key, group_id, members)
        if self.adaptive and self.most > 1:
            course.decisions = await self.decisions.load(verdict_key)
        try:
            yield course
        finally:
            await asyncio.shield(course.settle())


@dataclass(slots=True)
class Course:
    """The orders of one group, step by step."""

    rule: OrderRule
    verdict_key: str
    group_id: str
    members: int
    decisions: dict[int, OrderDecision] = field(default_factory=dict)
    _announced: int = 0
    """Degrees of freedom that this group has announced."""

    async def wanted(self, known: Mapping[int, Judgement]) -> list[int]:
        """The orders to ask for next; none if those in ``known`` are enough. One that is stored is always used."""
        missing = [number for number in range(self.rule.most) if number not in known]
        if not self.rule.adaptive or self.rule.most == 1:
            return missing
        await self._measure(known)
        if not missing:
            return []
        if is_sample(self.group_id) and 1 not in self.decisions:
            await self._keep(1, OrderReason.SAMPLE)
        if 0 in missing:
            at_once = 1 in missing and 1 in self.decisions and self.decisions[1].reason is OrderReason.SAMPLE
            wanted = [0, 1] if at_once else [0]
        else:
            decision = self.decisions.get(missing[0]) or await self._decide(missing[0], known)
            wanted = missing[:1] if decision.is_asked else []
        if 1 in wanted and self.decisions[1].reason in MEASURING:
            self._announce()
        return wanted

    @property
    def unasked(self) -> OrderDecision | None:
        """The decision by which orders were not asked for."""
        return next((one for one in self.decisions.values() if not one.is_asked), None)

    def order_sd(self, orders: int) -> float | None:
        """How far one score moves, for a verdict that rests on this many orders: as it was when that was decided."""
        decided = self.decisions.get(orders)
        return self.rule.noise.sd if decided is None else decided.order_sd

    async def settle(self) -> None:
        """What this group has announced has come, or will not."""
        announced, self._announced = self._announced, 0
        if announced:
            await self.rule.noise.settle(announced)

    async def _decide(self, number: int, known: Mapping[int, Judgement]) -> OrderDecision:
        noise = self.rule.noise
        if noise.is_under_way:
            await noise.wait()
        while noise.sd is None and noise.is_under_way:
            await noise.wait()
        if (sd := noise.sd) is None:
            if number == 1:
                self._announce()
            return await self._keep(number, OrderReason.UNMEASURED)
        scores = [in_place(judgement.scores) for judgement in known.values()]
        share = turned_share([fmean(own) for own in zip(*scores, strict=True)], sd, len(scores))
        reason = OrderReason.UNCERTAIN if share > MAX_TURNED else OrderReason.CLEAR
        return await self._keep(number, reason, sd, share)

    def _announce(self) -> None:
        if not self._announced:
            self._announced = self.members - 1
            self.rule.noise.announce(self._announced)

    async def _keep(
        self, number: int, reason: OrderReason, sd: float | None = None, share: float | None = None
    ) -> OrderDecision:
        is_asked = reason is not OrderReason.CLEAR
        decision = OrderDecision(self.verdict_key, number, is_asked, reason, self.rule.most, sd, share)
        self.decisions[number] = kept = await self.rule.decisions.keep(decision)
        return kept

    async def _measure(self, known: Mapping[int, Judgement]) -> None:
        """Add what the first two orders say of the judge, if this group was not chosen by its scores."""
        decided = self.decisions.get(1)
        if decided is not None and decided.reason in MEASURING and 0 in known and 1 in known:
            self.rule.noise.add(self.verdict_key, in_place(known[0].scores), in_place(known[1].scores))
            await self.settle()
