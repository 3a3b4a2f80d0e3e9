"""How hard the windows of a log are, before they are judged again: the arms of the curriculum there.

An agent succeeded in a window if the LLM judge scored it at least as high as the incumbent in the newest evaluation (or
the script, or one half where there was none). For a window that was not judged yet, and for the offline judge, whose
scores are ranks, it succeeded if its decisions gained by the game's own prices. What a row says of itself counts for
nothing. A window in which nobody differs from anybody teaches nothing, and is drawn as seldom as any arm may be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from data_bridge.survey_types import WindowSummary
from trainer.statistics.curriculum import Arm, Result

EASY, MIDDLE, HARD = Arm("easy", 1 / 6), Arm("middle", 1 / 2), Arm("hard", 5 / 6)
UNKNOWN = Arm("unknown", 1 / 2)
"""Windows of which nothing can be told beforehand."""
FLAT = Arm("flat", 1 / 2, weight=0.0)
ARMS = (EASY, FLAT, MIDDLE, UNKNOWN, HARD)

_EQUAL = 1e-4
"""Gains closer than this, one basis point of the balance, are equal."""
_HALF = 0.5


@dataclass(frozen=True, slots=True)
class Measured:
    """How a window went."""

    result: Result
    spread: float
    """How far its best and its worst agent are apart."""
    least_spread: float
    """Below it a group has no signal."""

    @property
    def arm(self) -> Arm:
        if self.result.tried == 0:
            return UNKNOWN
        if self.spread < self.least_spread:
            return FLAT
        failed = 1 - self.result.succeeded / self.result.tried
        return min((EASY, MIDDLE, HARD), key=lambda arm: abs(arm.difficulty - failed))


_NOTHING = Measured(Result(0, 0), 0.0, 0.0)


def of_scores(scores: Sequence[float], baseline: float | None, min_spread: float) -> Measured:
    """By the judge's scores, against those of the incumbent or the script."""
    to_beat = _HALF if baseline is None else baseline
    spread = max(scores) - min(scores)
    return Measured(Result(sum(one >= to_beat for one in scores), len(scores)), spread, max(min_spread, _EQUAL))


def of_gains(window: WindowSummary) -> Measured:
    """By what the decisions gained; nothing is known if of fewer than two agents it is."""
    gains = [one.gain for one in window.usable if one.gain is not None]
    if len(gains) < 2:
        return _NOTHING
    return Measured(Result(sum(gain > _EQUAL for gain in gains), len(gains)), max(gains) - min(gains), _EQUAL)


def measure(
    windows: Iterable[WindowSummary],
    scores: Mapping[str, Sequence[float]],
    baseline: float | None,
    min_spread: float,
) -> dict[str, Measured]:
    """How each window went: by its scores where there are any, else by the gains."""
    return {
        one.window_id: of_scores(found, baseline, min_spread) if (found := scores.get(one.window_id)) else of_gains(one)
        for one in windows
    }
