"""One ruling on a candidate, by what the ledger remembers: earlier looks, what they spent, windows that counted.

A window counts for the comparison (candidate, incumbent, judge) that consulted it first, and as it was measured first.
So nothing is gained by evaluating again with another seed, by asking another judge, or by trying several candidates on
the same windows and nominating the best. What is older than the candidate's own training never counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from data_bridge.database import Database
from data_bridge.window_ids import start_of
from trainer.config.training import GateSettings
from trainer.evidence import Evaluation, GateDecision, Look, Ruling
from trainer.ledger.evaluations import (
    Consulted,
    evaluations_of,
    first_consulted,
    keep_ruling,
    last_trained,
    one_ruling_at_a_time,
    spent_in_a_year,
)
from trainer.promote.gate import decide, evidence_of
from trainer.statistics.gain import spend

_STANDS = "no window is new, so the ruling"
_SPENT = "its windows served another evaluation, or are older than what was trained; new ones are needed to decide"


async def rule_on(database: Database, evaluation: Evaluation, limits: GateSettings) -> GateDecision:
    """The gate's ruling on the candidate, stored. If no window is new since the last ruling, that one stands."""
    async with one_ruling_at_a_time(database, evaluation.model) as connection:
        past = await _past_of(connection, evaluation)
        new = past.countable(evaluation)
        if past.ruled and new <= {window_id for one in past.ruled for window_id in past.countable(one.evaluation)}:
            decision = _standing(past.ruled[-1])
        elif not new:
            decision = GateDecision(Ruling.UNDECIDED, (_SPENT,))
        else:
            look = Look(1 + past.looks, spend(await spent_in_a_year(connection, evaluation.model)))
            evidence = evidence_of(evaluation, [one.evaluation for one in past.same], without=past.spent)
            decision = decide(evidence, limits, look)
        await keep_ruling(connection, evaluation, decision)
    return decision


async def standing_ruling(database: Database, evaluation: Evaluation, limits: GateSettings) -> GateDecision | None:
    """The ruling that was made on the candidate, asked again with ``limits``: they can only make it stricter."""
    past = await _past_of(database.pool, evaluation)
    rulings = [one.decision for one in past.ruled or past.same if one.decision is not None]
    if not rulings or rulings[-1].ruling is not Ruling.PROMOTE:
        return rulings[-1] if rulings else None
    if not past.ruled:
        return GateDecision(Ruling.UNDECIDED, (_SPENT,))
    # A ruling that stands has no look of its own: its evidence ends with the evaluation that was looked at.
    until, look = next(
        (at, one.decision.look)
        for at, one in reversed(list(enumerate(past.same)))
        if one.decision is not None and one.decision.look is not None
    )
    seen = [one.evaluation for one in past.same[: until + 1]]
    return decide(evidence_of(seen[-1], seen, without=past.spent), limits, look)


@dataclass(frozen=True, slots=True)
class _Past:
    """What the ledger remembers of a comparison."""

    same: Sequence[Consulted]
    """Its evaluations (same candidate, incumbent and judge), the oldest first."""
    spent: frozenset[str]
    """Windows that do not count for it: they served another one first, or are older than what was trained."""
    looks: int
    """Looks at the candidate, in this comparison or in others."""

    def countable(self, evaluation: Evaluation) -> set[str]:
        return evaluation.differences.keys() - self.spent

    @property
    def ruled(self) -> list[Consulted]:
        """Those with a ruling that stands. A promotion without a look is one of version 0.1.0, and does not."""
        looked = any(one.decision is not None and one.decision.look is not None for one in self.same)
        return [
            one
            for one in self.same
            if one.decision is not None
            and self.countable(one.evaluation)
            and (looked or one.decision.ruling is not Ruling.PROMOTE)
        ]


async def _past_of(source: Any, evaluation: Evaluation) -> _Past:
    model, candidate = evaluation.model, evaluation.candidate
    history = await evaluations_of(source, model, candidate)
    same = [
        one
        for one in history
        if one.evaluation.compared_with == evaluation.compared_with and one.evaluation.judge == evaluation.judge
    ]
    own = {one.evaluation.evaluation_id for one in same}
    first = await first_consulted(source, model)
    # An evaluation reads later windows only; those of version 0.1.0 lay between trained ones.
    trained = await last_trained(source, {model}, up_to=candidate.step)
    seen = {window_id for one in (*same, Consulted(evaluation)) for window_id in one.evaluation.differences}
    return _Past(
        same=same,
        spent=frozenset(
            window_id
            for window_id in seen
            if (window_id in first and first[window_id].evaluation_id not in own)
            or (trained is not None and start_of(window_id) < trained)
        ),
        looks=sum(one.decision is not None and one.decision.look is not None for one in history),
    )


def _standing(last: Consulted) -> GateDecision:
    """The ruling ``last`` again: it spends nothing and is no further look."""
    assert last.decision is not None
    assert last.ruled_at is not None
    reasons = last.decision.reasons
    if not reasons[0].startswith(_STANDS):
        reasons = (f"{_STANDS} of {last.ruled_at:%Y-%m-%d %H:%M} UTC stands", *reasons)
    return replace(last.decision, reasons=reasons, look=None)
