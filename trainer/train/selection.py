"""What happens to a group once it is judged: it is counted, and kept if it has a training signal."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import variance

from data_bridge.errors import ConfigurationError
from data_bridge.quality import Exclusion, Reason, exclusion_of
from trainer.config.sections import SelectionSettings
from trainer.ledger.runs import Ledger
from trainer.patterns.faults import weaknesses
from trainer.progress import FailurePolicy, FailureTally, Progress
from trainer.types import MIN_GROUP, JudgedGroup, JudgeFailure


@dataclass
class VerdictStage:
    """Receives verdicts in order and remembers which windows yielded a group."""

    settings: SelectionSettings
    failures: FailurePolicy
    run_id: str
    ledger: Ledger
    progress: Progress
    left_out: Counter[Reason] = field(default_factory=Counter)
    """Why trajectories of planned groups are not trained, where that depends on the judge."""

    def __post_init__(self) -> None:
        self._last_fault = ""
        self._keep = parse_rule(self.settings.select)
        self._with_signal: set[str] = set()

    async def accept(self, verdict: JudgedGroup | JudgeFailure) -> JudgedGroup | None:
        """The group to train, or None if it is left out. JudgeError if too many have failed."""
        self.progress.cost_usd += verdict.cost_usd
        await self.ledger.exclude(self.run_id, verdict.left_out)
        self.left_out.update(exclusion.reason for exclusion in verdict.left_out)
        if isinstance(verdict, JudgeFailure) and verdict.reason is Reason.EQUAL_DECISIONS:
            self.progress.groups_without_signal += self.progress.judged(verdict.group.group_id)
            await self._exclude(verdict, verdict.reason, verdict.detail)
            return None
        if isinstance(verdict, JudgeFailure):
            await self._exclude(verdict, verdict.reason, verdict.detail)
            self._count_failure(verdict)
            self.check_failures()
            return None
        await self.ledger.observe(self.run_id, weaknesses(verdict))
        is_new = self.progress.judged(verdict.group.group_id)
        self.progress.groups_cached += verdict.cached and is_new
        missing = why_no_signal(verdict.scores, verdict.uncertainties, self.settings.min_spread)
        if missing is not None:
            self.progress.groups_without_signal += is_new
            await self._exclude(verdict, *missing)
            return None
        kept, excluded = select(verdict, self._keep)
        await self.ledger.exclude(self.run_id, excluded)
        self._with_signal.add(kept.group.window_id)
        return kept

    async def window_done(self, window_id: str) -> None:
        await self.ledger.window_judged(self.run_id, window_id, has_signal=window_id in self._with_signal)
        self._with_signal.discard(window_id)

    def check_failures(self) -> None:
        """JudgeError if more groups failed than ``--max-judge-failures`` allows."""
        failed = self.progress.groups_failed
        heard = self.progress.groups_judged + failed
        self.failures.check(FailureTally(heard, failed, self._last_fault), expected=self.progress.groups)

    def _count_failure(self, verdict: JudgeFailure) -> None:
        """Count the group, unless what failed was not the judge."""
        tally = FailureTally().plus(verdict)
        if tally.failed:
            self._last_fault = tally.last_fault
            self.progress.failed(verdict.group.group_id)

    async def _exclude(self, verdict: JudgedGroup | JudgeFailure, reason: Reason, detail: str) -> None:
        excluded = [exclusion_of(one, reason, detail) for one in verdict.group.trajectories]
        self.left_out[reason] += len(excluded)
        await self.ledger.exclude(self.run_id, excluded)


_RULE = re.compile(r"max-variance[ :=]+(\d+)")


def spread(scores: Sequence[float]) -> float:
    """The best score of a group minus the worst."""
    return max(scores) - min(scores)


def noise(uncertainties: Sequence[float]) -> float:
    """The variance of a score, by how much the judge differs with itself: exact for the mean of two orders."""
    return sum(one * one for one in uncertainties) / len(uncertainties)


def trust(scores: Sequence[float], uncertainties: Sequence[float]) -> float:
    """What a group's verdicts are worth: signal over signal and noise.

    The variance of the scores is both together, so the signal is what is left of it without the noise.
    """
    within = noise(uncertainties)
    if within == 0 or len(scores) < MIN_GROUP:
        return 1.0
    between = variance(scores)
    return max(0.0, 1 - within / between) if between > 0 else 0.0


def pooled_trust(groups: Sequence[JudgedGroup]) -> float:
    """What the verdicts of a step are worth together: steadier than one group's, and of all groups, lucky or not."""
    within = [noise(judged.uncertainties) for judged in groups]
    if not any(within):
        return 1.0
    between = [variance(judged.scores) if len(judged.scores) >= MIN_GROUP else 0.0 for judged in groups]
    return max(0.0, 1 - sum(within) / sum(between)) if any(between) else 0.0


def why_no_signal(
    scores: Sequence[float], uncertainties: Sequence[float], min_spread: float
) -> tuple[Reason, str] | None:
    """Why a group teaches nothing: its scores hardly differ, or no more than the judge does with itself."""
    apart, within = spread(scores), 2 * math.sqrt(noise(uncertainties))
    if apart == 0 or apart < min_spread:
        return Reason.NO_SPREAD, f"best and worst differ by {apart:.3f}"
    if apart < within:
        return Reason.WITHIN_NOISE, f"best and worst differ by {apart:.3f}, the judge's own orders by {within:.3f}"
    return None


def advantages(scores: Sequence[float], *, scale: bool = False) -> list[float]:
    """GRPO's advantages as ART computes them: score minus the group's mean; ``scale`` divides by the deviation."""
    mean = sum(scores) / len(scores)
    apart = [score - mean for score in scores]
    # Written as ART writes it, to the last bit: the reward history promises the advantage that was trained.
    divisor = math.sqrt(sum(one**2 for one in apart) / len(scores)) + 1e-6 if scale else 1.0
    return [one / divisor for one in apart]


def parse_rule(text: str | None) -> int | None:
    """The number of trajectories per group that ``--select max-variance N`` keeps; None keeps all.

    ConfigurationError for any other rule.
    """
    if text is None:
        return None
    match = _RULE.fullmatch(text.strip())
    if match is None or int(match[1]) < MIN_GROUP:
        raise ConfigurationError(f"--select: write `max-variance N` with N at least {MIN_GROUP} (got {text!r}).")
    return int(match[1])


def most_telling(scores: list[float], number: int) -> list[int]:
    """Indices of the ``number`` scores with the largest variance, in their order.

    The best subset always consists of the k lowest scores and the rest from the top, so only those are tried.
    """
    if number >= len(scores):
        return list(range(len(scores)))
    ranked = sorted(range(len(scores)), key=lambda index: (scores[index], index))
    best: list[int] = []
    best_variance = -1.0
    for lowest in range(number + 1):
        chosen = ranked[:lowest] + ranked[len(ranked) - (number - lowest) :]
        values = [scores[index] for index in chosen]
        mean = sum(values) / number
        variance = sum((value - mean) ** 2 for value in values) / number
        if variance > best_variance + 1e-12:
            best, best_variance = chosen, variance
    return sorted(best)


def select(judged: JudgedGroup, number: int | None) -> tuple[JudgedGroup, tuple[Exclusion, ...]]:
    """``judged`` reduced to the ``number`` members with the largest variance, and the others as exclusions."""
    if number is None or number >= len(judged.verdicts):
        return judged, ()
    kept = [judged.verdicts[index] for index in most_telling(judged.scores, number)]
    names = {verdict.trajectory_id for verdict in kept}
    members = judged.group.trajectories
    excluded = tuple(exclusion_of(one, Reason.NOT_SELECTED) for one in members if one.trajectory_id not in names)
    group = replace(judged.group, trajectories=tuple(one for one in members if one.trajectory_id in names))
    return replace(judged, group=group, verdicts=tuple(kept)), excluded
