"""Scored replies in, figures with intervals out: the arithmetic of an evaluation, pure and seeded.

Every number is averaged in this order: the samples of a policy at a decision point, the points of a window, the
windows. Differences are taken at the decision point, where the policies faced the same question, so that an easy hour
or a lenient group favours no policy.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from statistics import fmean, variance
from typing import Protocol

from data_bridge.models import DECISIONS
from trainer.evaluate.decision_points import DecisionPoint
from trainer.evidence import (
    Comparison,
    Evaluation,
    ExampleDecision,
    ExampleReply,
    Interval,
    Narrowing,
    PolicyFigures,
    ReadingTest,
    Role,
    WindowFigures,
)
from trainer.progress import FailurePolicy
from trainer.statistics import intervals
from trainer.statistics.gain import gain_interval
from trainer.statistics.intervals import ANY, DIFFERENCE_OF_SHARES, SHARE, Bounds
from trainer.types import Completion, Judge, Release

_MAX_SHOWN = 2_000


@dataclass(frozen=True, slots=True)
class ScoredReply:
    """One policy's reply at a decision point, with its judge score and replay result."""

    text: str
    score: float
    explanation: str
    pnl: float | None = None
    is_valid: bool | None = None
    """None if it is unknown whether the reply is an action."""
    is_error: bool = False
    is_blocked: bool | None = None
    """None if it is unknown whether the safety guard would have stopped it."""
    token_ids: tuple[int, ...] = ()
    """As sampled; empty if the model's endpoint does not return them."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A decision point at which all replies have a score. A policy that could not take part here has none."""

    point: DecisionPoint
    replies: Mapping[Role, tuple[ScoredReply, ...]]


Measure = Callable[[ScoredReply], float | None]


def figures_of(
    role: Role, name: str, compared: Sequence[Compared], *, kl_from_base: float | None = None
) -> PolicyFigures:
    def over(measure: Measure, bounds: Bounds = ANY) -> Interval | None:
        return _interval(compared, lambda at: _mean_of(at, role, measure), bounds)

    return PolicyFigures(
        role=role,
        name=name,
        score=_known(over(lambda reply: reply.score, SHARE)),
        pnl=over(lambda reply: reply.pnl),
        valid_rate=over(lambda reply: None if reply.is_valid is None else float(reply.is_valid), SHARE),
        error_rate=_known(over(lambda reply: float(reply.is_error), SHARE)),
        blocked_rate=over(lambda reply: None if reply.is_blocked is None else float(reply.is_blocked), SHARE),
        reply_length=_known(over(lambda reply: float(len(reply.text)), (0.0, math.inf))),
        score_if_valid=over(lambda reply: reply.score if reply.is_valid else None, SHARE),
        pnl_if_valid=over(lambda reply: reply.pnl if reply.is_valid else None),
        kl_from_base=kl_from_base,
    )


def compare(against: Role, name: str, compared: Sequence[Compared], *, min_gain: float) -> Comparison:
    """Candidate minus ``against``."""

    def difference(measure: Measure, bounds: Bounds = ANY) -> Interval | None:
        return _interval(compared, lambda at: _difference(at, against, measure), bounds)

    def gain_at(at: Compared) -> float | None:
        return _difference(at, against, lambda reply: reply.score)

    gains = list(_per_window(compared, gain_at).values())
    return Comparison(
        against=against,
        name=name,
        score_difference=gain_interval(gains),
        win_rate=_known(_interval(compared, lambda at: _win_rate(at, against), SHARE)),
        pnl_difference=difference(lambda reply: reply.pnl),
        error_difference=_known(difference(lambda reply: float(reply.is_error), DIFFERENCE_OF_SHARES)),
        length_ratio=_length(compared, Role.CANDIDATE) / max(1.0, _length(compared, against)),
        windows_needed=intervals.windows_needed(gains, min_gain),
        point_noise=_point_noise(compared, gain_at),
    )


def windows_of(compared: Sequence[Compared], roles: Iterable[Role]) -> tuple[WindowFigures, ...]:
    roles = tuple(roles)

    def of(measure: Measure) -> dict[Role, dict[str, float]]:
        return {role: _per_window(compared, partial(_mean_of, role=role, measure=measure)) for role in roles}

    scores, pnl = of(lambda reply: reply.score), of(lambda reply: reply.pnl)
    return tuple(
        WindowFigures(
            window_id,
            scores={role: scores[role][window_id] for role in roles if window_id in scores[role]},
            pnl={role: pnl[role][window_id] for role in roles if window_id in pnl[role]},
        )
        for window_id in sorted({at.point.window_id for at in compared})
    )


def score_pnl_correlation(compared: Sequence[Compared]) -> float | None:
    """Does the judge agree with the market? Not a target: a judge of decisions should not follow luck."""
    pairs = [
        (reply.score, reply.pnl)
        for at in compared
        for replies in at.replies.values()
        for reply in replies
        if reply.pnl is not None
    ]
    return intervals.spearman([score for score, _ in pairs], [pnl for _, pnl in pairs])


def best_and_worst(
    compared: Sequence[Compared], names: Mapping[Role, str]
) -> tuple[ExampleDecision | None, ExampleDecision | None]:
    """The decisions at which the candidate gained and lost most against the incumbent."""
    if not compared:
        return None, None
    ordered = sorted(compared, key=lambda at: (_gain(at), at.point.key))
    return _example(ordered[-1], names), _example(ordered[0], names)


def _example(at: Compared, names: Mapping[Role, str]) -> ExampleDecision:
    replies = (
        ExampleReply(role, names[role], reply.text[:_MAX_SHOWN], reply.score, reply.pnl, reply.explanation)
        for role, own in at.replies.items()
        for reply in own
    )
    seen = at.point.messages[-1].content
    return ExampleDecision(
        window_id=at.point.window_id,
        trajectory_id=at.point.trajectory.trajectory_id,
        agent_id=at.point.trajectory.agent_id,
        step_number=at.point.step.step_number,
        observation=(seen if isinstance(seen, str) else "")[:_MAX_SHOWN],
        replies=tuple(replies),
        difference=_gain(at),
    )


def _gain(at: Compared) -> float:
    return _difference(at, Role.INCUMBENT, lambda reply: reply.score) or 0.0


def _mean_of(at: Compared, role: Role, measure: Measure) -> float | None:
    return _mean(measure(reply) for reply in at.replies.get(role, ()))


def _difference(at: Compared, against: Role, measure: Measure) -> float | None:
    candidate, other = _mean_of(at, Role.CANDIDATE, measure), _mean_of(at, against, measure)
    return None if candidate is None or other is None else candidate - other


def _win_rate(at: Compared, against: Role) -> float | None:
    wins = [
        1.0 if mine.score > theirs.score else 0.5 if mine.score == theirs.score else 0.0
        for mine in at.replies[Role.CANDIDATE]
        for theirs in at.replies.get(against, ())
    ]
    return _mean(wins)


def _length(compared: Sequence[Compared], role: Role) -> float:
    return _mean(float(len(reply.text)) for at in compared for reply in at.replies.get(role, ())) or 0.0


def _per_window(compared: Sequence[Compared], at_point: Callable[[Compared], float | None]) -> dict[str, float]:
    """One number per window, in the order of the hours."""
    measured = sorted((at.point.window_id, value) for at in compared if (value := at_point(at)) is not None)
    return intervals.by_window([window for window, _ in measured], [value for _, value in measured])


def _point_noise(compared: Sequence[Compared], at_point: Callable[[Compared], float | None]) -> float | None:
    """The part of the variance between windows that more points in each would average out; None with one point each."""
    by_window: dict[str, list[float]] = {}
    for at in compared:
        value = at_point(at)
        if value is not None:
            by_window.setdefault(at.point.window_id, []).append(value)
    several = [own for own in by_window.values() if len(own) > 1]
    between = variance([fmean(own) for own in by_window.values()]) if len(by_window) > 1 else 0.0
    if not several or between <= 0:
        return None
    return min(1.0, fmean(variance(own) / len(own) for own in several) / between)


def _interval(
    compared: Sequence[Compared], at_point: Callable[[Compared], float | None], bounds: Bounds
) -> Interval | None:
    values = list(_per_window(compared, at_point).values())
    return intervals.mean_interval(values, bounds=bounds) if values else None


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean of the known values; None if there are none."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _known(interval: Interval | None) -> Interval:
    if interval is None:
        raise ValueError("there is no decision point to compare policies at")
    return interval


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """How many decision points and replies are compared, and what is enough."""

    points_per_window: int = 2
    samples: int = 4
    purposes: tuple[str, ...] = DECISIONS
    temperature: float | None = None
    """None means the most frequent one in the log."""
    drawn: tuple[str, ...] = ()
    """Names under which exploration answers: nobody sampled these replies."""
    max_group: int = 8
    min_gain: float = 0.0
    failures: FailurePolicy = field(default_factory=FailurePolicy)
    seed: int = 0
    questions: int = 160
    """Of the reading test on unseen words; 0: none."""
    agents: frozenset[str] | None = None
    """Whose decisions are asked again; None: everybody's."""


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The decision points at which all policies can be compared, and why the others cannot."""

    compared: tuple[Compared, ...]
    asked: int
    left_out: Mapping[str, int]
    judge_cost_usd: float


def summarise(
    outcome: TrialResult,
    policies: Mapping[Role, Contestant],
    plan: TrialPlan,
    judge: Judge,
    *,
    candidate: Release,
    incumbent: Release | None,
    run_id: str | None = None,
    training_judge: str | None = None,
    kl_from_base: float | None = None,
    reading: ReadingTest | None = None,
    narrowing: Narrowing | None = None,
) -> Evaluation:
    """The outcome as figures with intervals."""
    absent = _absent(outcome.compared, policies)
    names = {role: policy.name for role, policy in policies.items() if absent.get(role) != _NOWHERE}
    best, worst = best_and_worst(outcome.compared, names)
    return Evaluation(
        evaluation_id=uuid.uuid4().hex,
        run_id=run_id,
        model=candidate.model,
        candidate=candidate,
        incumbent=incumbent,
        judge=judge.identity,
        training_judge=training_judge,
        decision_points=len(outcome.compared),
        samples=plan.samples,
        left_out=dict(outcome.left_out),
        windows=windows_of(outcome.compared, names),
        figures=tuple(
            figures_of(
                role,
                name,
                outcome.compared,
                kl_from_base=kl_from_base if role is Role.CANDIDATE else None,
            )
            for role, name in names.items()
        ),
        comparisons=tuple(
            compare(role, name, outcome.compared, min_gain=plan.min_gain)
            for role, name in names.items()
            if role is not Role.CANDIDATE
        ),
        score_pnl_correlation=score_pnl_correlation(outcome.compared),
        best=best,
        worst=worst,
        judge_cost_usd=outcome.judge_cost_usd,
        seed=plan.seed,
        created_at=datetime.now(UTC),
        reading=reading,
        narrowing=narrowing,
        absent=absent,
        measure=next((at.point.world.words.measure for at in outcome.compared), "P&L"),
    )


_NOWHERE = "no other agent logged a valid reply in any of the windows"


def _absent(compared: Sequence[Compared], policies: Mapping[Role, Contestant]) -> dict[Role, str]:
    """Who took no part, or not at every point. Only a random reply of the log can be missing."""
    missing = {role: sum(role not in at.replies for at in compared) for role in policies}
    return {
        role: _NOWHERE
        if number == len(compared)
        else f"at {number} of {len(compared)} decision points no other agent logged a valid reply in the window"
        for role, number in missing.items()
        if number
    }


class Contestant(Protocol):
    """Anything that replies at a decision point: a checkpoint, a script, or the log itself."""

    @property
    def name(self) -> str: ...

    async def replies(self, point: DecisionPoint, *, samples: int, temperature: float, seed: int) -> list[Completion]:
        """``samples`` replies, or one if sampling adds nothing; none if it has nothing to say at this point."""
        ...
