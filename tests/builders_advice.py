"""Advice on recorded replies of a real model: questions drawn again, with luck of their own, one for each hour.

``benchmarks/advice.py --record`` made the replies. Nothing here touches a window: what is right in an hour is drawn.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from statistics import fmean

import numpy as np

from data_bridge.window_ids import start_of, window_of
from trainer.advice.proposal import proposal_of
from trainer.statistics.calibration import Calibration, Label, calibrate, calibration_error
from trainer.types import Completion

REPLIES = Path(__file__).parent / "data" / "advice_replies.json"
SAMPLES = 8
DRAWS = 10
TARGET = 0.75
CALIBRATED_ON = 600
ASKED = 5000
_FIRST = start_of("2026-06-01T00:00")


@dataclass(frozen=True, slots=True)
class Proposed:
    """A proposal that the recorded replies make, and what it says of the news."""

    score: float
    is_valid: bool
    """Whether it trades the market that was asked about."""
    reads: bool
    """Whether it also follows the news."""


@cache
def proposed() -> tuple[Proposed, ...]:
    """What the advisor would propose at each question, by several draws of ``SAMPLES`` of its replies."""
    stored, rng = json.loads(REPLIES.read_text()), np.random.default_rng(0)
    found = []
    for one in stored["questions"]:
        replies = [
            Completion(stored["texts"][text], (0,) * tokens, (total / tokens,) * tokens)
            for text, total, tokens in one["replies"]
        ]
        market = one["ticker"].lstrip("$")
        right, wrong = ("BUY", "SELL") if one["direction"] > 0 else ("SELL", "BUY")
        for _ in range(DRAWS):
            proposal = proposal_of([replies[place] for place in rng.choice(len(replies), SAMPLES, replace=False)])
            assert proposal is not None
            reads = proposal.answer == f"{right} {market}"
            found.append(Proposed(proposal.score, reads or proposal.answer == f"{wrong} {market}", reads))
    return tuple(found)


@cache
def window(hour: int) -> str:
    return window_of(_FIRST + timedelta(hours=hour))


def hours(rng: np.random.Generator, luck: float, number: int, first: int = 0) -> list[Label]:
    """One question an hour. With probability ``luck`` a coin decides what is right, as in the simulated market."""
    known = proposed()
    chosen, is_luck, coin = rng.integers(len(known), size=number), rng.random(number) < luck, rng.random(number) < 0.5
    return [
        Label(
            window(first + hour),
            known[place].score,
            bool(coin[hour] and known[place].is_valid) if is_luck[hour] else known[place].reads,
        )
        for hour, place in enumerate(chosen.tolist())
    ]


@dataclass(frozen=True, slots=True)
class Trial:
    """One calibration, and what came of the questions after it."""

    answered: float
    precision: float | None
    error: float
    """Between the confidence of all proposals, shown or not, and how many were right."""


def trial(seed: int, luck: float, target: float = TARGET) -> Trial:
    """Calibrated on so many hours, then asked in so many more."""
    rng = np.random.default_rng(seed)
    found = calibrate(hours(rng, luck, CALIBRATED_ON), target)
    assert found is not None
    return outcome(found, hours(rng, luck, ASKED, CALIBRATED_ON))


def outcome(found: Calibration, asked: Sequence[Label]) -> Trial:
    shown = [one.is_right for one in asked if found.shows(one.score)]
    claimed = np.interp([one.score for one in asked], found.scores, found.shares).tolist()
    error = calibration_error(claimed, [one.is_right for one in asked])
    return Trial(len(shown) / len(asked), fmean(shown) if shown else None, error)
