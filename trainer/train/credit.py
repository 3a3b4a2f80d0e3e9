"""What each member of a judged group is credited with: its validity and its decision apart.

A score says both at once: an action that could not be taken is worth nothing, and of the others the better decision is
worth more. Trained as one number, the wish to be valid is learnt through whichever answer is more often valid, and a
model that is valid at last says the same in every hour. So the two are credited apart:

- **Validity**: the valid members together gain what the invalid ones lose. The gain is divided equally among the
  different answers, not among the members: of seven SELL and one BUY, BUY receives half.
- **Decision**: a valid member's score against the mean of the valid ones. A group whose valid members all agree says
  nothing about decisions.

The credits of a group sum to zero, as GRPO's advantages do; if all its members are valid, or none, they are exactly
those.

An agent writes its own row, so an answer is one of the few kinds of thing that an action can be, by
``data_bridge.stakes``, and not its name: a new name makes no new answer. An action that the game does not know gains
nothing by calling itself valid, and loses nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from data_bridge.models import AgentTrajectory, MarketOutcomes
from data_bridge.stakes import Deed, readings_of
from trainer.train.selection import advantages
from trainer.types import JudgedGroup

VALIDITY = 0.1
"""What the step from an invalid reply to a valid one is worth, where scores go from 0 to 1. Little on purpose. Measured
on the embedded model: at 0.25 and more it is valid sooner, but by giving one answer with certainty, and what is certain
is hardly unlearnt; at 0.1 it is valid after six steps as well, and has learnt to read by then."""


def answer_of(trajectory: AgentTrajectory, outcomes: MarketOutcomes) -> str | None:
    """What kinds of thing the agent did, for or against the market; None if none of its actions could be taken."""
    taken = [one for one in readings_of(trajectory.actions, outcomes) if one.deed is not Deed.FAILED]
    kinds = {one.deed.value if one.stake is None else f"stake {one.stake.direction:+d}" for one in taken}
    return "+".join(sorted(kinds)) or None


def credits_of(judged: JudgedGroup) -> list[float]:
    """The credits of the group's members, in order."""
    members, outcomes = judged.group.trajectories, judged.group.outcomes
    answers = [answer_of(one, outcomes) for one in members]
    if not any(answers):
        return advantages(judged.scores)
    validity = _validity([_valid_share(one, outcomes) for one in members], answers)
    return [one + other for one, other in zip(validity, _decisions(judged.scores, answers), strict=True)]


def _valid_share(trajectory: AgentTrajectory, outcomes: MarketOutcomes) -> float | None:
    """The share of its decisions that led to an action that could be taken; None if one is no action of the game."""
    decided = [step for step in trajectory.steps if step.action is not None or step.llm_calls]
    deeds = [one.deed for one in readings_of(trajectory.actions, outcomes)]
    if Deed.UNKNOWN in deeds:
        return None
    return sum(deed is not Deed.FAILED for deed in deeds) / len(decided) if decided else 0.0


def _decisions(scores: Sequence[float], answers: Sequence[str | None]) -> list[float]:
    valid = [score for score, answer in zip(scores, answers, strict=True) if answer is not None]
    mean = fmean(valid) if valid else 0.0
    return [0.0 if answer is None else score - mean for score, answer in zip(scores, answers, strict=True)]


def _validity(shares: Sequence[float | None], answers: Sequence[str | None]) -> list[float]:
    known = [share for share in shares if share is not None]
    mean = fmean(known) if known else 0.0
    credit = [0.0 if share is None else VALIDITY * (share - mean) for share in shares]
    gaining = [answer if one > 0 else None for one, answer in zip(credit, answers, strict=True)]
    members = Counter(answer for answer in gaining if answer is not None)
    gain = sum(one for one, answer in zip(credit, gaining, strict=True) if answer is not None)
    return [
        one if answer is None else gain / len(members) / members[answer]
        for one, answer in zip(credit, gaining, strict=True)
    ]
