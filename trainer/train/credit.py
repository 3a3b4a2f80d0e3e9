"""What each member of a judged group is credited with: its validity and its decision apart.

A score says both at once: an action that could not be taken is worth nothing, and of the others the better decision is
worth more. Trained as one number, the wish to be valid is learnt through whichever answer is more often valid, and a
model that is valid at last says the same in every hour. So the two are credited apart:

- **Validity**: the valid members together gain what the invalid ones lose. The gain is divided equally among the
  different answers, not among the members: of seven SELL and one BUY, BUY receives half.
- **Decision**: a valid member's score against the mean of the valid ones. A group whose valid members all agree says
  nothing about decisions.

The credits of a group sum to zero, as GRPO's advantages do; if all its members are valid they are exactly those.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from data_bridge.models import AgentTrajectory
from trainer.types import JudgedGroup

VALIDITY = 0.1
"""What the step from an invalid reply to a valid one is worth, where scores go from 0 to 1. Little on purpose. Measured
on the embedded model: at 0.25 and more it is valid sooner, but by giving one answer with certainty, and what is certain
is hardly unlearnt; at 0.1 it is valid after six steps as well, and has learnt to read by then."""


def answer_of(trajectory: AgentTrajectory) -> str | None:
    """What the agent decided, without amounts: the names of its actions; None if none of them could be taken."""
    return "+".join(action.kind for action in trajectory.actions if action.failure is None) or None


def credits_of(judged: JudgedGroup) -> list[float]:
    """The credits of the group's members, in order."""
    members = judged.group.trajectories
    answers = [answer_of(one) for one in members]
    validity = _validity([_valid_share(one) for one in members], answers)
    return [one + other for one, other in zip(validity, _decisions(judged.scores, answers), strict=True)]


def _valid_share(trajectory: AgentTrajectory) -> float:
    """The share of its decisions that led to an action that could be taken."""
    decided = [step for step in trajectory.steps if step.action is not None or step.llm_calls]
    valid = sum(action.failure is None for action in trajectory.actions)
    return valid / len(decided) if decided else 0.0


def _decisions(scores: Sequence[float], answers: Sequence[str | None]) -> list[float]:
    valid = [score for score, answer in zip(scores, answers, strict=True) if answer is not None]
    mean = fmean(valid) if valid else 0.0
    return [0.0 if answer is None else score - mean for score, answer in zip(scores, answers, strict=True)]


def _validity(shares: Sequence[float], answers: Sequence[str | None]) -> list[float]:
    mean = fmean(shares)
    credit = [VALIDITY * (share - mean) for share in shares]
    gaining = [answer if one > 0 else None for one, answer in zip(credit, answers, strict=True)]
    members = Counter(answer for answer in gaining if answer is not None)
    gain = sum(one for one, answer in zip(credit, gaining, strict=True) if answer is not None)
    return [
        one if answer is None else gain / len(members) / members[answer]
        for one, answer in zip(credit, gaining, strict=True)
    ]
