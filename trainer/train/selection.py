"""``--select max-variance N``: after judging, keep the N most telling trajectories of each group. Pure."""

from __future__ import annotations

import re
from dataclasses import replace

from data_bridge.errors import ConfigurationError
from data_bridge.quality import Exclusion, Reason
from trainer.plan.grouping import MIN_GROUP, with_members
from trainer.types import JudgedGroup, Verdict

_RULE = re.compile(r"max-variance[ :=]+(\d+)")


def parse_rule(text: str | None) -> int | None:
    """How many trajectories of a group are kept; None keeps all. ConfigurationError for another rule."""
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
    kept = [judged.verdicts[index] for index in most_telling([one.score for one in judged.verdicts], number)]
    names = {verdict.trajectory_id for verdict in kept}
    excluded = tuple(
        Exclusion(member.trajectory_id, member.agent_id, member.window_id, Reason.NOT_SELECTED)
        for member in judged.group.trajectories
        if member.trajectory_id not in names
    )
    return replace(judged, group=with_members(judged.group, names), verdicts=tuple(kept)), excluded


def spread(verdicts: tuple[Verdict, ...]) -> float:
    """How far the best and the worst score of a group lie apart."""
    scores = [verdict.score for verdict in verdicts]
    return max(scores) - min(scores)
