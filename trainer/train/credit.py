"""What each member of a judged group is credited with: its validity and its decision apart.

A score says both at once: an action that could not be taken is worth nothing, and of the others the better decision is
worth more. Trained as one number, the wish to be valid is learnt through whichever answer is more often valid, and a
model that is valid at last says the same in every hour. So the two are credited apart:

- **Validity**: the valid members together gain what the invalid ones lose. The gain is divided equally among the
  different answers, not among the members: of seven SELL and one BUY, BUY receives half. An invalid reply counts for
  the mean and is not trained (``beside_the_game``): most of its words are those of a valid one, and what is taken from
  it is taken from its verb first.
- **Decision**: a valid member's score against the mean of the valid ones. A group whose valid members all agree says
  nothing about decisions.

The credits of a group sum to zero, as GRPO's advantages do; in a step whose hours have but one right answer, of members
that are all valid, they are exactly those.

**The hours of a step are weighted** so that each answer that is right somewhere gains as much decision credit as any
other. Ten hours in which BUY was right and two in which SELL was would teach BUY first, which needs no reading and is
learnt faster than anything that does; after two such days a model says BUY in every hour. Measured on the embedded
model: with weights it reads after six steps what it never learns without (docs/learning.md).

**Groups that show an error pattern** can count more (``pattern_weights``). Their weights are divided by what they come
to over the step, so that the credits of a step are together as large as without.

With ``--baseline``, what is usual for a member's agent or role is taken off its score first: a role that always does
better says nothing about its decisions, and only adds to the variance of the gradient. With ``--potential``, what the
state was worth in which a decision was taken is taken off its return (``potential``).

An agent writes its own row, so an answer is one of the few kinds of thing that an action can be, by
``data_bridge.stakes``, and not its name: a new name makes no new answer. An action that the game does not know gains
nothing by calling itself valid, and loses nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from data_bridge.authorship import Lineage
from data_bridge.models import AgentTrajectory
from trainer.rewards import Baseline, CreditRule, Graded, MemberReward, Potential
from trainer.train.potential import shaping
from trainer.train.selection import advantages, trust
from trainer.types import JudgedGroup

VALIDITY = 0.2
"""What the step from an invalid reply to a valid one is worth, where scores go from 0 to 1: as much as an hour's
decision beside explorers. Measured on the embedded model: at 0.03 nothing teaches the rest of the line, and validity is
lost while the model learns to read; at 0.2 it is valid after four steps. A preference for one answer that comes of it
is taken out after each step (``backends.balance``)."""

MOST_WEIGHT = 3.0
"""The largest weight of an hour: one right SELL among twelve hours is not worth eleven."""

_ROUNDING = 1e-9


RULE = CreditRule(VALIDITY, MOST_WEIGHT, by_uncertainty=True)


def credits_of(groups: Sequence[JudgedGroup]) -> list[list[float]]:
    """The credits of the members of each group of one step, in order."""
    return [[one.credit for one in rewards] for rewards in history_of(groups)]


_NONE, _UNSHAPED = Baseline(), Potential()
_NO_BASELINES: Mapping[str, Baseline] = {}
_NO_POTENTIALS: Mapping[str, Potential] = {}
_NO_EMPHASIS: Mapping[str, float] = {}


def history_of(
    groups: Sequence[JudgedGroup],
    rule: CreditRule = RULE,
    baselines: Mapping[str, Baseline] = _NO_BASELINES,
    potentials: Mapping[str, Potential] = _NO_POTENTIALS,
    emphasis: Mapping[str, float] = _NO_EMPHASIS,
) -> list[list[MemberReward]]:
    """How the members of each group of one step come to their advantages."""
    return rewards_of([(one.group.group_id, graded(one, baselines, potentials, emphasis)) for one in groups], rule)


def graded(
    judged: JudgedGroup,
    baselines: Mapping[str, Baseline] = _NO_BASELINES,
    potentials: Mapping[str, Potential] = _NO_POTENTIALS,
    emphasis: Mapping[str, float] = _NO_EMPHASIS,
) -> list[Graded]:
    """All that credit depends on, of each member of the group."""
    world, outcomes = judged.group.world, judged.group.outcomes
    usual = [baselines.get(one.trajectory_id, _NONE) for one in judged.group.trajectories]
    states = [potentials.get(one.trajectory_id, _UNSHAPED) for one in judged.group.trajectories]
    return [
        Graded(
            one.trajectory_id,
            verdict.score,
            verdict.uncertainty,
            world.answer_of(one, outcomes),
            world.valid_share(one, outcomes),
            baseline.whose,
            baseline.mean,
            potential=state.value,
            ahead=state.ahead,
            emphasis=emphasis.get(one.trajectory_id, 1.0),
        )
        for one, verdict, baseline, state in zip(judged.group.trajectories, judged.verdicts, usual, states, strict=True)
    ]


def rewards_of(groups: Sequence[tuple[str, Sequence[Graded]]], rule: CreditRule) -> list[list[MemberReward]]:
    """The credits of one step from what was read of its groups. Pure: the reward history is checked with it."""
    parts = [_parts(members, rule) for _, members in groups]
    counted = weights([(part.right, part.gain) for part in parts], rule.most_weight)
    shaped = [
        [one + weight * other for one, other in zip(part.validity, part.decision, strict=True)]
        for part, weight in zip(parts, counted, strict=True)
    ]
    worths = [_worth(members, rule) for _, members in groups]
    sizes = [worth * math.fsum(map(abs, own)) for worth, own in zip(worths, shaped, strict=True)]
    emphases = [max((one.emphasis for one in members), default=1.0) for _, members in groups]
    found: list[list[MemberReward]] = []
    of_groups = zip(
        groups, parts, counted, shaped, worths, emphasised(emphases, sizes, rule.most_emphasis), strict=True
    )
    for place, ((group_id, members), part, weight, own, worth, pattern) in enumerate(of_groups):
        credit = [pattern * (worth * one) for one in own]
        gains = advantages(credit, scale=rule.scale)
        rows = zip(members, part.validity, part.decision, own, credit, gains, strict=True)
        found.append(
            [MemberReward(place, group_id, one, a, b, weight, c, pattern, *made) for one, a, b, c, *made in rows]
        )
    return found


def emphasised(emphases: Sequence[float], sizes: Sequence[float], most: float) -> list[float]:
    """The weights of a step's groups, at most ``most``, divided so that ``sizes`` come to the same with them."""
    raw = [min(most, max(1.0, one)) for one in emphases]
    weighted = math.fsum(weight * size for weight, size in zip(raw, sizes, strict=True))
    if len(set(raw)) <= 1 or weighted == 0:
        return [1.0] * len(raw)
    length = math.fsum(sizes) / weighted
    return [weight * length for weight in raw]


def _worth(members: Sequence[Graded], rule: CreditRule) -> float:
    uncertain = [one.uncertainty if rule.by_uncertainty else 0.0 for one in members]
    return trust([one.score for one in members], uncertain)


def own_answers(judged: JudgedGroup, lineage: Lineage) -> list[str]:
    """The valid answers that the trained model itself gave, under any of its names."""
    own = (
        one
        for one in judged.group.trajectories
        if any(lineage.author(call, one).model == lineage.trainee for call in one.llm_calls)
    )
    return [answer for one in own if (answer := judged.group.world.answer_of(one, judged.group.outcomes))]


def weights(gains: Sequence[tuple[str | None, float]], most: float = MOST_WEIGHT) -> list[float]:
    """What each group's decisions count, by its right answer and what that gains; see above."""
    totals = _summed(gains)
    fair = fmean(totals.values()) if totals else 0.0
    return [1.0 if right is None else min(most, fair / totals[right]) for right, _ in gains]


def beside_the_game(judged: JudgedGroup) -> tuple[AgentTrajectory, ...]:
    """The members none of whose actions could be taken, in a group in which others' could."""
    members = judged.group.trajectories
    taken = [judged.group.world.answer_of(one, judged.group.outcomes) is not None for one in members]
    return tuple(one for one, was in zip(members, taken, strict=True) if not was) if any(taken) else ()


@dataclass(frozen=True, slots=True)
class _Parts:
    """A group's two credits, member by member."""

    validity: Sequence[float]
    decision: Sequence[float]
    right: str | None = None
    """The answer that gains most; None if none does."""
    gain: float = 0.0
    """The decision credit of that answer."""


def _parts(members: Sequence[Graded], rule: CreditRule) -> _Parts:
    answers, scores = [one.answer for one in members], [_compared(one, rule) for one in members]
    if not any(answers):
        return _Parts([0.0] * len(members), advantages(scores))
    validity = _validity([one.valid_share for one in members], answers, rule.validity)
    decision = _decisions(scores, answers)
    gains = _summed(zip(answers, decision, strict=True))
    right, gain = max(gains.items(), key=lambda one: one[1])
    return _Parts(validity, decision, right, gain) if gain > _ROUNDING else _Parts(validity, decision)


def _compared(member: Graded, rule: CreditRule) -> float:
    """The score that is compared with the others': without what is usual for it, and shaped."""
    score = member.score - member.baseline
    return score + shaping(member.potential, member.ahead, rule.discount) if member.ahead else score


def _summed(amounts: Iterable[tuple[str | None, float]]) -> dict[str, float]:
    """The sum of the amounts of each answer."""
    found: dict[str, float] = {}
    for answer, amount in amounts:
        if answer is not None:
            found[answer] = found.get(answer, 0.0) + amount
    return found


def _decisions(scores: Sequence[float], answers: Sequence[str | None]) -> list[float]:
    valid = [score for score, answer in zip(scores, answers, strict=True) if answer is not None]
    mean = fmean(valid) if valid else 0.0
    return [0.0 if answer is None else score - mean for score, answer in zip(scores, answers, strict=True)]


def _validity(shares: Sequence[float | None], answers: Sequence[str | None], worth: float) -> list[float]:
    known = [share for share in shares if share is not None]
    mean = fmean(known) if known else 0.0
    credit = [0.0 if share is None else worth * (share - mean) for share in shares]
    gaining = [answer if one > 0 else None for one, answer in zip(credit, answers, strict=True)]
    members = Counter(answer for answer in gaining if answer is not None)
    gain = sum(one for one, answer in zip(credit, gaining, strict=True) if answer is not None)
    return [
        one if answer is None else gain / len(members) / members[answer]
        for one, answer in zip(credit, gaining, strict=True)
    ]
