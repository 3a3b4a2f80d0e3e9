"""One ruling on a candidate, by what the ledger remembers: earlier looks, what they spent, windows that counted.

A window counts for the comparison (candidate, incumbent, judge) that consulted it first, and as it was measured first.
So nothing is gained by evaluating again with another seed, by asking another judge, or by trying several candidates on
the same windows and nominating the best.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from data_bridge.database import Database
from trainer.config.training import GateSettings
from trainer.evidence import Evaluation, GateDecision, Look, Ruling
from trainer.ledger.evaluations import (
    Consulted,
    FirstUse,
    evaluations_of,
    first_consulted,
    keep_ruling,
    one_ruling_at_a_time,
    spent_in_a_year,
)
from trainer.promote.gate import decide, evidence_of
from trainer.statistics.gain import spend

_STANDS = "no window is new, so the ruling"
_SERVED = "all its windows have served another evaluation; new ones are needed to decide"


async def rule_on(database: Database, evaluation: Evaluation, limits: GateSettings) -> GateDecision:
    """The gate's ruling on the candidate, stored. If no window is new since the last ruling, that one stands."""
    async with one_ruling_at_a_time(database, evaluation.model) as connection:
        history = await evaluations_of(connection, evaluation.model, evaluation.candidate)
        same = _of_the_same_comparison(history, evaluation)
        elsewhere = _served_elsewhere(await first_consulted(connection, evaluation.model), same)
        new, ruled = evaluation.differences.keys() - elsewhere, [one for one in same if one.decision is not None]
        if not new:
            decision = GateDecision(Ruling.UNDECIDED, (_SERVED,))
        elif new <= {window_id for one in ruled for window_id in one.evaluation.differences}:
            decision = _standing(ruled[-1])
        else:
            looks = sum(one.decision is not None and one.decision.look is not None for one in history)
            look = Look(1 + looks, spend(await spent_in_a_year(connection, evaluation.model)))
            evidence = evidence_of(evaluation, [one.evaluation for one in same], without=elsewhere)
            decision = decide(evidence, limits, look)
        await keep_ruling(connection, evaluation, decision)
    return decision


async def standing_ruling(database: Database, evaluation: Evaluation, limits: GateSettings) -> GateDecision | None:
    """The ruling that was made on the candidate, asked again with ``limits``: they can only make it stricter."""
    same = _of_the_same_comparison(
        await evaluations_of(database.pool, evaluation.model, evaluation.candidate), evaluation
    )
    rulings = [one.decision for one in same if one.decision is not None]
    if not rulings or rulings[-1].ruling is not Ruling.PROMOTE:
        return rulings[-1] if rulings else None
    # A ruling that stands has no look of its own: its evidence ends with the evaluation that was looked at.
    look = next((one.look for one in reversed(rulings) if one.look is not None), Look())
    until = max((at for at, one in enumerate(same) if one.decision and one.decision.look), default=len(same) - 1)
    seen = [one.evaluation for one in same[: until + 1]]
    elsewhere = _served_elsewhere(await first_consulted(database.pool, evaluation.model), same)
    return decide(evidence_of(seen[-1], seen, without=elsewhere), limits, look)


def _of_the_same_comparison(history: Sequence[Consulted], evaluation: Evaluation) -> list[Consulted]:
    return [
        one
        for one in history
        if one.evaluation.compared_with == evaluation.compared_with and one.evaluation.judge == evaluation.judge
    ]


def _served_elsewhere(first: Mapping[str, FirstUse], same: Sequence[Consulted]) -> set[str]:
    own = {one.evaluation.evaluation_id for one in same}
    return {window_id for window_id, use in first.items() if use.evaluation_id not in own}


def _standing(last: Consulted) -> GateDecision:
    """The ruling ``last`` again: it spends nothing and is no further look."""
    assert last.decision is not None
    assert last.ruled_at is not None
    reasons = last.decision.reasons
    if not reasons[0].startswith(_STANDS):
        reasons = (f"{_STANDS} of {last.ruled_at:%Y-%m-%d %H:%M} UTC stands", *reasons)
    return replace(last.decision, reasons=reasons, look=None)
