"""How much more the groups of a step count that show an error pattern: the raw weights, which credit normalises.

A rare error is in few groups of a step, so few tokens speak against it. While a pattern is more than chance, in what
was trained within ``--replay-lag`` steps and in the step itself, the groups that show it count up to
``--pattern-weight`` times. Three bounds keep that fair:

- **The step stays as long as it was.** ``credit.emphasised`` divides by what all weights come to, so what one group
  gains the others give. A pattern that every group shows changes nothing.
- **What is wrong in most groups leaves room for what is wrong in a few**: one pattern adds at most half a step.
- **Nobody attracts weight at will.** An agent writes its own rows, and can fail as often as it likes. Its faults count
  for what the other agents' share of the same fault would give it, twice at most: a pattern that is one agent's alone
  weighs nothing, and of two agents that agree to fail among eight each counts by a quarter or so.

A weight applies to the whole group and does not say who is right in it: that is the verdicts' alone. So it must not
depend on them. What a judge names weak is named where a decision lost: with such weights, a decision that is right as
often as wrong would be unlearnt by chance. Only what failed by the game's word counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainer.patterns.faults import FaultSource, Observed, observed
from trainer.patterns.significance import ErrorPattern, patterns_of
from trainer.types import JudgedGroup

ROOM = 0.5
"""The share of a step that one pattern adds at most."""
TOLERATED = 2.0
"""How many times as often as the others an agent may show a pattern and still count in full: rare faults are uneven."""


@dataclass(frozen=True, slots=True)
class PatternWeights:
    """The raw weight of each group of a step, in order, and how many patterns gave them."""

    of_groups: tuple[float, ...]
    patterns: int = 0

    def of_members(self, groups: Sequence[JudgedGroup]) -> dict[str, float]:
        """By trajectory, its group's weight where that is more than 1."""
        return {
            one.trajectory_id: weight
            for judged, weight in zip(groups, self.of_groups, strict=True)
            if weight > 1
            for one in judged.group.trajectories
        }


def pattern_weights(groups: Sequence[JudgedGroup], trained: Iterable[Observed], most: float) -> PatternWeights:
    """Weights from 1 to ``most``, by what went wrong in these groups and in what was ``trained`` before them."""
    own = [observed(one) for judged in groups for one in judged.group.trajectories]
    rows = [*trained, *own]
    tried = Counter({one.trajectory_id: one.agent_id for one in rows}.values())
    members = [[one.trajectory_id for one in judged.group.trajectories] for judged in groups]
    agents = {one.trajectory_id: one.agent_id for one in own}
    extra, used = [0.0] * len(groups), 0
    for pattern in patterns_of(rows):
        if not pattern.significant or pattern.source is FaultSource.JUDGE:
            continue
        shown, counted = set(pattern.trajectories), _counted(pattern, tried)
        strengths = [max((counted[agents[name]] for name in own if name in shown), default=0.0) for own in members]
        total = sum(strengths)
        if total > 0:
            used += 1
            each = min(most - 1, ROOM * len(groups) / total)
            extra = [before + each * strength for before, strength in zip(extra, strengths, strict=True)]
    return PatternWeights(tuple(min(most, 1 + one) for one in extra), used)


def _counted(pattern: ErrorPattern, tried: Counter[str]) -> dict[str, float]:
    """For each agent that shows ``pattern``, what one of its faults counts: less than 1 if it has too many."""
    shown, all_tried, found = sum(pattern.by_agent.values()), tried.total(), dict[str, float]()
    for agent, times in pattern.by_agent.items():
        others = all_tried - tried[agent]
        usual = (shown - times) / others if others else 0.0
        found[agent] = min(1.0, TOLERATED * usual * tried[agent] / times)
    return found
