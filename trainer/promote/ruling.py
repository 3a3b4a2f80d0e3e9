"""One ruling on a candidate, by what the ledger remembers: earlier looks, what they spent, windows that counted."""

from __future__ import annotations

from dataclasses import replace

from data_bridge.database import Database
from trainer.config.training import GateSettings
from trainer.evidence import Evaluation, GateDecision, Look, Ruling
from trainer.ledger.evaluations import (
    keep_ruling,
    one_ruling_at_a_time,
    ruling_of,
    rulings_on,
    spent_in_a_year,
    windows_ruled_on,
)
from trainer.promote.gate import decide, evidence_of
from trainer.statistics.gain import spend


async def rule_on(database: Database, evaluation: Evaluation, limits: GateSettings) -> GateDecision:
    """The gate's ruling on the candidate, stored. If no window is new since the last ruling, that one stands.

    Windows that served the ruling on another candidate do not count; with no others there is no ruling to store.
    """
    used = await windows_ruled_on(database, evaluation.model, but=evaluation.candidate)
    if evaluation.differences.keys() <= used:
        wait = "all its windows have served an earlier ruling; new ones are needed to decide"
        return GateDecision(Ruling.UNDECIDED, (wait,))
    async with one_ruling_at_a_time(database, evaluation.model) as connection:
        earlier = await rulings_on(connection, evaluation)
        if earlier and evaluation.differences.keys() <= {
            name for one in earlier for name in one.evaluation.differences
        }:
            stands = f"no window is new, so the ruling of {earlier[-1].ruled_at:%Y-%m-%d %H:%M} UTC stands"
            last = earlier[-1].decision
            return replace(last, reasons=(stands, *last.reasons))
        look = Look(
            1 + sum(one.decision.look is not None for one in earlier),
            spend(await spent_in_a_year(connection, evaluation.model)),
        )
        evidence = evidence_of(evaluation, [one.evaluation for one in earlier], without=used)
        decision = decide(evidence, limits, look)
        await keep_ruling(connection, evaluation, decision)
    return decision


async def standing_ruling(database: Database, evaluation: Evaluation, limits: GateSettings) -> GateDecision | None:
    """The ruling that was made on the candidate, asked again with ``limits``: they can only make it stricter."""
    earlier = [*await rulings_on(database.pool, evaluation), *await ruling_of(database, evaluation)]
    last = max(earlier, key=lambda ruled: ruled.ruled_at, default=None)
    if last is None or last.decision.ruling is not Ruling.PROMOTE:
        return None if last is None else last.decision
    before = [one.evaluation for one in earlier if one is not last]
    return decide(evidence_of(last.evaluation, before), limits, last.decision.look or Look())
