"""Whether a group is shown to the judge in another order: decided once, and kept with its reason.

The decision rests on what is known of the judge at that moment. It is stored before anything is asked, and the first
one counts: a later run and another host, which know more or less, ask for the same orders and get the same verdict.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import msgspec

from data_bridge.database import Database
from trainer.ledger.verdicts import JudgedTrajectory
from trainer.types import JudgeIdentity

MEASURED_GROUPS = 500
"""Groups, the newest, from which the variance between orders is estimated: a judge behind a name may change."""


class OrderReason(StrEnum):
    """Why a further order is asked for, or is not."""

    SAMPLE = "sample"
    """Asked: the group is one of the random tenth that measures how far scores move between orders."""
    UNMEASURED = "unmeasured"
    """Asked: too little is known yet of how far this judge's scores move."""
    UNCERTAIN = "uncertain"
    """Asked: it could change the advantages."""
    CLEAR = "clear"
    """Not asked: it would hardly change them."""


@dataclass(frozen=True, slots=True)
class OrderDecision:
    """``is_asked`` False: this order is not asked for, nor any later one up to ``most_orders``."""

    verdict_key: str
    order_number: int
    is_asked: bool
    reason: OrderReason
    most_orders: int
    order_sd: float | None = None
    """What was known of how far one score moves between orders."""
    turned_share: float | None = None
    """The share of the differences within the group that the order was expected to turn round."""

    @property
    def unasked(self) -> int:
        return 0 if self.is_asked else self.most_orders - self.order_number


Scored = tuple[JudgedTrajectory, ...]

_COLUMNS = "verdict_key, order_number, is_asked, reason, most_orders, order_sd, turned_share"
_KEEP = f"""
WITH kept AS (
    INSERT INTO hindsight.order_decisions ({_COLUMNS}, run_id) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
    ON CONFLICT (verdict_key, order_number) DO NOTHING RETURNING {_COLUMNS})
SELECT {_COLUMNS} FROM kept
 UNION ALL SELECT {_COLUMNS} FROM hindsight.order_decisions WHERE verdict_key = $1 AND order_number = $2
"""
# Only the groups that were chosen without a look at their scores: those asked about again because they are close would
# bias the estimate.
_MEASURED = """
WITH newest AS (
    SELECT d.verdict_key FROM hindsight.order_decisions d JOIN hindsight.verdicts v USING (verdict_key, order_number)
     WHERE d.order_number = 1 AND d.reason IN ('sample', 'unmeasured')
       AND v.judge = $1 AND v.rubric = $2 AND v.rubric_version = $3 AND v.prompt_version = $4
     ORDER BY d.decided_at DESC LIMIT $5)
SELECT verdict_key, order_number, scores::text FROM hindsight.verdicts JOIN newest USING (verdict_key)
 WHERE order_number IN (0, 1) ORDER BY verdict_key, order_number
"""


class DecisionStore(Protocol):
    async def load(self, verdict_key: str) -> dict[int, OrderDecision]:
        """By the number of the order."""
        ...

    async def keep(self, decision: OrderDecision) -> OrderDecision:
        """The decision that counts: the first one that was kept."""
        ...

    async def measured(self, identity: JudgeIdentity) -> dict[str, list[Scored]]:
        """By key, the scores in the first two orders of the groups that measure this judge."""
        ...


class MemoryDecisions:
    """Forgets everything with the process."""

    def __init__(self) -> None:
        self.decisions: dict[tuple[str, int], OrderDecision] = {}

    async def load(self, verdict_key: str) -> dict[int, OrderDecision]:
        return {number: one for (key, number), one in self.decisions.items() if key == verdict_key}

    async def keep(self, decision: OrderDecision) -> OrderDecision:
        return self.decisions.setdefault((decision.verdict_key, decision.order_number), decision)

    async def measured(self, identity: JudgeIdentity) -> dict[str, list[Scored]]:
        return {}


class PostgresDecisions:
    """``hindsight.order_decisions``."""

    def __init__(self, database: Database, run_id: str) -> None:
        self._pool = database.pool
        self._run_id = run_id

    async def load(self, verdict_key: str) -> dict[int, OrderDecision]:
        asked = f"SELECT {_COLUMNS} FROM hindsight.order_decisions WHERE verdict_key = $1"
        rows = await self._pool.fetch(asked, verdict_key)
        return {row["order_number"]: msgspec.convert(dict(row), OrderDecision) for row in rows}

    async def keep(self, decision: OrderDecision) -> OrderDecision:
        values = msgspec.to_builtins(decision)
        rows = await self._pool.fetch(_KEEP, *(values[name] for name in _COLUMNS.split(", ")), self._run_id)
        if not rows:  # another host kept one while we tried: it is visible to the next statement
            return (await self.load(decision.verdict_key))[decision.order_number]
        return msgspec.convert(dict(rows[0]), OrderDecision)

    async def measured(self, identity: JudgeIdentity) -> dict[str, list[Scored]]:
        judge = (identity.judge, identity.rubric, identity.rubric_version, identity.prompt_version)
        found: dict[str, list[Scored]] = {}
        for row in await self._pool.fetch(_MEASURED, *judge, MEASURED_GROUPS):
            found.setdefault(row["verdict_key"], []).append(msgspec.json.decode(row["scores"], type=Scored))
        return {key: orders for key, orders in found.items() if len(orders) == 2}
