"""Why a group gets no verdict, and who in it is to blame: what is refused is halved until single members are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field

from data_bridge.models import AgentTrajectory
from data_bridge.quality import Reason

Members = Sequence[AgentTrajectory]


class NoVerdict(Exception):
    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class Unanswered(NoVerdict):
    """The judge refuses to answer, or its replies cannot be used: a member's text may be the cause."""


class AtFault(NoVerdict):
    """``members``, by trajectory id, cannot be judged; the others can."""

    def __init__(self, reason: Reason, detail: str, members: Collection[str]) -> None:
        super().__init__(reason, detail)
        self.members = members


@dataclass(slots=True)
class Search:
    """What a search found. It is to be believed only if some part was ``answered``: else the judge is at fault."""

    is_answered: Callable[[Members], Awaitable[bool | None]]
    """Whether the judge answers about these members by themselves; None if that is not known."""
    answered: bool = False
    refused: set[str] = field(default_factory=set)
    """Trajectory ids of the members that are refused even alone."""
    unknown: bool = False

    async def within(self, members: Members) -> None:
        """Look for the cause in ``members``, who are refused together. At most ``2 * len(members) - 2`` questions."""
        if len(members) == 1:
            self.refused.add(members[0].trajectory_id)
            return
        middle = len(members) // 2
        halves = members[:middle], members[middle:]
        answers = await asyncio.gather(*(self.is_answered(half) for half in halves))
        self.answered |= True in answers
        self.unknown |= None in answers
        await asyncio.gather(
            *(self.within(half) for half, answer in zip(halves, answers, strict=True) if answer is False)
        )
