"""Notices that a model has come to say the same in every hour, and where to go back to. Pure.

A policy that gives one answer whatever it sees still has a score, and from then on its groups have no spread to learn
from. So the answers of its own replies are counted over the last steps. The measure is of the policy that *played*
those hours; if one answer takes nearly all, the steps since the last policy that still gave several are undone, and
training goes on from there with smaller steps.

A log in which one action always takes nearly all (waiting, in most games) is no collapse: only a model that gave
several answers before can lose them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from data_bridge.authorship import Lineage
from trainer.ledger.batches import TrainedStep
from trainer.train.credit import own_answers
from trainer.train.thresholds import Threshold, first_crossed
from trainer.types import JudgedGroup

SMALLER = 0.5
"""What a step back does to the learning rate."""

MOST_UNDONE = 4
"""So often a run goes back; then it is stopped: at a sixteenth of the learning rate the fault is another."""

_REPLIES = 96
"""How many of the newest replies are counted: those of two or three steps."""
_ENOUGH = 32
"""Fewer say nothing: a few hours may well have the same answer."""


@dataclass(slots=True)
class AnswerTally:
    """The answers of the trained model's own replies, over its last steps."""

    lineage: Lineage
    """By which a reply is the trained model's: the base model under any name is its step 0."""
    _recent: deque[str] = field(default_factory=lambda: deque(maxlen=_REPLIES))

    def add(self, groups: Sequence[JudgedGroup]) -> dict[str, float]:
        """Count ``groups``, and return what is known of the model's answers now, as metrics."""
        own = [own_answers(judged, self.lineage) for judged in groups]
        self._recent.extend(answer for answers in own for answer in answers)
        several = [answers for answers in own if len(answers) > 1]
        metrics: dict[str, float] = {}
        if len(self._recent) >= _ENOUGH:
            metrics["answer_share"] = _commonest(self._recent)
        if several:
            metrics["agreement"] = fmean(map(_commonest, several))
        played_by = _played_by(groups, self.lineage)
        if played_by is not None:
            metrics["played_by_step"] = played_by
        return metrics

    def clear(self) -> None:
        """The policy is another from here on."""
        self._recent.clear()


@dataclass(frozen=True, slots=True)
class StepBack:
    """To which step, and why."""

    step: int
    reason: str


def step_back(thresholds: Sequence[Threshold], steps: Sequence[TrainedStep]) -> StepBack | None:
    """Where to go back to after the last of ``steps`` (the model's, in order); None: go on."""
    if not steps or (crossed := first_crossed(thresholds, steps[-1].metrics)) is None:
        return None
    ancestors = _ancestors(steps)
    collapsed = steps[-1].played_by
    if collapsed is None or collapsed not in ancestors:  # played by a policy that was left behind already
        return None
    healthy = [
        one.played_by
        for one in steps
        if one.played_by in ancestors
        and crossed.metric in one.metrics
        and first_crossed(thresholds, one.metrics) is None
    ]
    if not healthy or healthy[-1] is None or healthy[-1] >= collapsed:
        return None
    value = float(steps[-1].metrics[crossed.metric])
    return StepBack(healthy[-1], f"{crossed.metric} is {value:.2f} ({crossed}), and was not yet at step {healthy[-1]}")


def forks_in(steps: Sequence[TrainedStep], run_id: str | None) -> int:
    """How often the run has gone back so far; where it started from does not count."""
    own = [one for one in steps if one.run_id == run_id]
    return sum(one.parent != one.step - 1 for one in own[1:])


def _ancestors(steps: Sequence[TrainedStep]) -> set[int | None]:
    """The steps that the last one was built on."""
    parents = {one.step: one.parent for one in steps}
    found: set[int | None] = set()
    at = steps[-1].parent
    while at not in found:
        found.add(at)
        at = parents.get(at, max(at - 1, 0))
    return found


def _played_by(groups: Sequence[JudgedGroup], lineage: Lineage) -> int | None:
    """The step that most rows name; a row has one vote, however many calls it has."""
    rows = (one for judged in groups for one in judged.group.trajectories)
    authors = ([lineage.author(call, one) for call in one.llm_calls] for one in rows)
    named = ([author.step for author in own if author.model == lineage.trainee] for own in authors)
    steps = Counter(own[-1] for own in named if own and own[-1] is not None)
    return max(steps, key=lambda step: (steps[step], step)) if steps else None


def _commonest(answers: Collection[str]) -> float:
    return Counter(answers).most_common(1)[0][1] / len(answers)
