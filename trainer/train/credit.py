"""What the scores of a group are worth to training: how far apart they lie, the advantages, who is kept. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from statistics import pstdev

from data_bridge.errors import ConfigurationError
from data_bridge.quality import Exclusion, Reason
from trainer.types import MIN_GROUP, JudgedGroup

_RULE = re.compile(r"max-variance[ :=]+(\d+)")


def spread(scores: Sequence[float]) -> float:
    """The best score of a group minus the worst."""
    return max(scores) - min(scores)


def advantages(scores: Sequence[float], *, scale: bool = False) -> list[float]:
    """GRPO's advantages as ART computes them: score minus the group's mean, if ``scale`` by its standard deviation."""
    mean = sum(scores) / len(scores)
    divisor = pstdev(scores) + 1e-6 if scale else 1.0
    return [(score - mean) / divisor for score in scores]


def parse_rule(text: str | None) -> int | None:
    """How many trajectories of a group ``--select max-variance N`` keeps; None keeps all.

    ConfigurationError for another rule.
    """
    if text is None:
        return None
    match = _RULE.fullmatch(text.strip())
    if match is None or int(match[1]) < MIN_GROUP:
        raise ConfigurationError(f"--select: write `max-variance N` with N of at least {MIN_GROUP} (got {text!r}).")
    return int(match[1])


def most_telling(scores: list[float], number: int) -> list[int]:
    """Indices of the ``number`` scores with the largest variance, in their order.

    The best subset always consists of the k lowest and the rest highest, so only those need to be tried.
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
    """``judged`` with its ``number`` most telling members, and the others as exclusions."""
    if number is None or number >= len(judged.verdicts):
        return judged, ()
    kept = [judged.verdicts[index] for index in most_telling(judged.scores, number)]
    names = {verdict.trajectory_id for verdict in kept}
    members = judged.group.trajectories
    excluded = tuple(
        Exclusion(member.trajectory_id, member.agent_id, member.window_id, Reason.NOT_SELECTED)
        for member in members
        if member.trajectory_id not in names
    )
    group = replace(judged.group, trajectories=tuple(one for one in members if one.trajectory_id in names))
    return replace(judged, group=group, verdicts=tuple(kept)), excluded
