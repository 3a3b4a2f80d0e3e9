"""Advice on recorded replies of a real model: questions drawn again, with luck of their own, one for each hour.

``benchmarks/advice.py --record`` made the replies. Nothing here touches a window: what is right in an hour is drawn.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_bridge.database import Database
from data_bridge.models import ChatMessage
from data_bridge.window_ids import start_of, window_of
from trainer.advice.proposal import proposal_of
from trainer.advice.recalibrate import recalibrate
from trainer.config.console import ConsoleCommand
from trainer.config.settings import settings_from
from trainer.ledger.advice import AdviceState, Finding, NewAdvice, add_labels, settle_advice, store_advice
from trainer.statistics.calibration import calibrate, calibration_error
from trainer.statistics.confidence import Calibration, Label
from trainer.types import Completion

REPLIES = Path(__file__).parent / "data" / "advice_replies.json"
SAMPLES = 8
DRAWS = 10
TARGET = 0.75
CALIBRATED_ON = 600
ASKED = 10_000
_FIRST = start_of("2026-06-01T00:00")

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


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
def _columns() -> tuple[Floats, Flags, Flags]:
    known = proposed()
    valid, reads = ([getattr(one, name) for one in known] for name in ("is_valid", "reads"))
    return np.array([one.score for one in known]), np.array(valid), np.array(reads)


@cache
def window(hour: int) -> str:
    return window_of(_FIRST + timedelta(hours=hour))


def draw(
    rng: np.random.Generator, luck: float, number: int, among: NDArray[np.int64] | None = None
) -> tuple[Floats, Flags]:
    """Scores and what was right: with probability ``luck`` a coin decides it, as in the simulated market."""
    scores, valid, reads = _columns()
    chosen = rng.integers(len(scores if among is None else among), size=number)
    chosen = chosen if among is None else among[chosen]
    is_luck, coin = rng.random(number) < luck, rng.random(number) < 0.5
    return scores[chosen], np.where(is_luck, coin & valid[chosen], reads[chosen])


def hours(rng: np.random.Generator, luck: float, number: int, first: int = 0) -> list[Label]:
    """One question an hour, from hour ``first`` on."""
    scores, right = draw(rng, luck, number)
    pairs = zip(scores.tolist(), right.tolist(), strict=True)
    return [Label(window(first + hour), score, is_right) for hour, (score, is_right) in enumerate(pairs)]


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
    return outcome(found, *draw(rng, luck, ASKED))


def trial_on_other_questions(seed: int, luck: float, target: float = TARGET) -> Trial:
    """The same, but no question that is asked was calibrated on."""
    rng = np.random.default_rng(seed)
    question = np.arange(len(proposed())) // DRAWS
    calibrated = rng.permutation(question[-1] + 1) < (question[-1] + 1) // 2
    known, others = (np.flatnonzero(calibrated[question] == side) for side in (True, False))
    pairs = zip(*(column.tolist() for column in draw(rng, luck, CALIBRATED_ON, known)), strict=True)
    found = calibrate([Label(window(hour), *pair) for hour, pair in enumerate(pairs)], target)
    assert found is not None
    return outcome(found, *draw(rng, luck, ASKED, others))


def outcome(found: Calibration, scores: Floats, right: Flags) -> Trial:
    """What the questions with these scores get, and what comes of it."""
    shown = right[scores >= found.threshold] if found.threshold is not None else right[:0]
    error = calibration_error(np.interp(scores, found.scores, found.shares).tolist(), right.tolist())
    return Trial(len(shown) / len(right), float(shown.mean()) if len(shown) else None, error)


async def record_advice(database: Database, *, words: str = "BUY ACME 10%") -> None:
    """A calibrated release and forty hours of its advice: most shown and taken, some drawn to get none."""
    release = "hindsight@step2"
    labels = hours(np.random.default_rng(1), 0.2, CALIBRATED_ON)
    await add_labels(database, "hindsight", release, {one.window_id: one for one in labels})
    settings = settings_from(ConsoleCommand)
    stored = await recalibrate(database, "hindsight", release, settings.advice)
    assert stored is not None
    for hour in range(40):
        state: AdviceState = "abstained" if hour % 10 == 9 else "control" if hour % 4 == 0 else "shown"
        row = await store_advice(
            database,
            NewAdvice(
                *(
                    f"{hour:032x}",
                    f"digest-{hour}",
                    "hindsight",
                    release,
                    f"agent {words}",
                    window(CALIBRATED_ON + hour),
                ),
                *("a test", True, [ChatMessage("user", words)], state),
                reason={"abstained": "low_confidence", "control": "control"}.get(state, ""),
                proposal=words,
                answer=words,
                explanation=words,
                score=0.9,
                confidence=0.82,
                calibration_id=stored.calibration_id,
                samples=8,
                latency_ms=500.0,
            ),
        )
        is_right = state == "shown" or hour % 8 == 0
        finding = Finding(row.advice_id, hour % 5 != 0, is_right, taken=state == "shown" and hour % 3 != 0)
        await settle_advice(database, [finding], "facts")
