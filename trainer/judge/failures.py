"""When failed groups stop a run: a share that may be lost, asked for once enough groups have been heard."""

from __future__ import annotations

from dataclasses import dataclass

from data_bridge.errors import JudgeError
from data_bridge.quality import Reason
from trainer.types import JudgedGroup, JudgeFailure

_JUDGES_FAULT = frozenset({Reason.JUDGE_BAD_REPLY, Reason.JUDGE_UNAVAILABLE})
"""A budget that ran out or a group that is too long is no failure of the judge."""


@dataclass(frozen=True, slots=True)
class FailureTally:
    """How many groups were heard, and how many of them the judge failed on."""

    heard: int = 0
    failed: int = 0
    last_fault: str = ""

    def plus(self, result: JudgedGroup | JudgeFailure) -> FailureTally:
        if isinstance(result, JudgedGroup):
            return FailureTally(self.heard + 1, self.failed, self.last_fault)
        if result.reason in _JUDGES_FAULT:
            return FailureTally(self.heard + 1, self.failed + 1, result.detail)
        return self


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """At most ``largest_share`` of the groups may fail; not asked before ``enough`` of them, or the end."""

    largest_share: float
    enough: int = 10

    def check(self, tally: FailureTally, *, at_end: bool = False) -> None:
        """JudgeError if the run has lost too much to go on."""
        if tally.heard == 0 or (tally.heard < self.enough and not at_end):
            return
        if tally.failed > self.largest_share * tally.heard:
            raise JudgeError(
                f"The judge failed on {tally.failed} of {tally.heard} groups, more than --max-judge-failures "
                f"{self.largest_share:g} allows; run again when it is well, what was judged is kept "
                f"(last: {tally.last_fault})."
            )
