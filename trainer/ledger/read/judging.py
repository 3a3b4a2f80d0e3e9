"""What the judge did in one run: who it was, whether it agrees with itself, what it cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import msgspec

from trainer.ledger.read.types import CostFacts, FurtherOrders, LuckFacts, OrderAgreement
from trainer.types import JudgeIdentity

# A run trains on verdicts that an earlier run paid for, and pays for some that it does not train on; the verdicts of
# its evaluation are about windows that it did not plan. Parts of groups are asked about to find out who is refused.
_WITH_OUTCOME = " AND v.pass = 'hindsight'"
_VERDICTS = f"""
WITH keys AS (
    SELECT t.verdict_key FROM hindsight.batch_trajectories t JOIN hindsight.batches b USING (batch_id)
    WHERE b.run_id = $1
    UNION SELECT v.verdict_key FROM hindsight.verdicts v JOIN hindsight.windows w USING (run_id, window_id)
    WHERE v.run_id = $1 AND v.group_id NOT LIKE '%/part'{_WITH_OUTCOME})
"""
_IDENTITIES = f"""{_VERDICTS}
SELECT judge, rubric, rubric_version, prompt_version, is_llm, count(DISTINCT verdict_key) AS groups
FROM hindsight.verdicts JOIN keys USING (verdict_key) GROUP BY 1, 2, 3, 4, 5 ORDER BY groups DESC
"""
_ORDERS = f"""{_VERDICTS}
SELECT verdict_key, order_number, one ->> 'trajectory_id' AS trajectory_id, (one ->> 'score')::float8 AS score
FROM hindsight.verdicts JOIN keys USING (verdict_key), jsonb_array_elements(scores) AS one
ORDER BY verdict_key, order_number
"""
_FURTHER_ORDERS = f"""{_VERDICTS}
SELECT is_asked, reason, sum(CASE WHEN is_asked THEN 1 ELSE most_orders - order_number END)::int AS orders
FROM hindsight.order_decisions JOIN keys USING (verdict_key) GROUP BY 1, 2 ORDER BY orders DESC, reason
"""
_LUCK = f"""{_VERDICTS}
SELECT count(*) AS scores, avg(abs(hindsight - blind)) AS luck, avg(abs(score - blind)) AS corrected
FROM hindsight.verdicts JOIN keys USING (verdict_key),
     jsonb_to_recordset(scores) AS one (score float8, blind float8, hindsight float8)
WHERE blind IS NOT NULL AND hindsight IS NOT NULL
"""
_CACHED = "sum(cached_tokens)::bigint"
_COSTS = f"""
SELECT judge, count(*) AS calls, count(*) FILTER (WHERE result <> 'ok') AS failed_calls,
       sum(prompt_tokens)::bigint AS prompt_tokens, sum(completion_tokens)::bigint AS completion_tokens,
       {_CACHED} AS cached_tokens, sum(cost_usd)::float8 AS usd
FROM hindsight.judge_calls WHERE run_id = $1 GROUP BY judge ORDER BY usd DESC, judge
"""
_COST_CURVE = """
SELECT row_number() OVER calls AS calls, sum(cost_usd) OVER calls AS usd
FROM hindsight.judge_calls WHERE run_id = $1 WINDOW calls AS (ORDER BY call_id)
"""
_CURVE_POINTS = 60

Scores = Mapping[str, float]
"""Score by trajectory id, for one group in one order."""


@dataclass(frozen=True, slots=True)
class Judging:
    """As read from the ledger, in the report's own types."""

    identity: JudgeIdentity | None
    """The judge of most of the trainable groups."""
    groups: int
    agreement: OrderAgreement | None
    further_orders: FurtherOrders
    luck: LuckFacts | None
    costs: tuple[CostFacts, ...]
    cost_curve: tuple[tuple[int, float], ...]


async def judging_of(connection: Any, run_id: str) -> Judging:
    # A report changes nothing: the ledger may be as an earlier version left it, without passes and order decisions.
    is_new = await connection.fetchval("SELECT to_regclass('hindsight.order_decisions') IS NOT NULL")

    async def rows_of(query: str) -> Any:
        return await connection.fetch(query if is_new else _as_before(query), run_id)

    identities = await rows_of(_IDENTITIES)
    orders = await rows_of(_ORDERS)
    further = await rows_of(_FURTHER_ORDERS) if is_new else []
    luck = (await rows_of(_LUCK))[0] if is_new else {"scores": 0}
    costs = await rows_of(_COSTS)
    curve = await rows_of(_COST_CURVE)
    return Judging(
        identity=msgspec.convert(dict(identities[0]), JudgeIdentity) if identities else None,
        groups=sum(row["groups"] for row in identities),
        agreement=order_agreement(_by_group(orders)),
        further_orders=FurtherOrders(
            asked={row["reason"]: row["orders"] for row in further if row["is_asked"]},
            unasked={row["reason"]: row["orders"] for row in further if not row["is_asked"]},
        ),
        luck=LuckFacts(**luck) if luck["scores"] else None,
        costs=tuple(CostFacts(**row) for row in costs),
        cost_curve=_thinned([(row["calls"], row["usd"]) for row in curve]),
    )


def _as_before(query: str) -> str:
    return query.replace(_WITH_OUTCOME, "").replace(_CACHED, "0")


def order_agreement(groups: Sequence[Sequence[Scores]]) -> OrderAgreement | None:
    """Agreement over ``groups``, each a list of orders. None if nothing was judged in two orders."""
    pairs: list[tuple[float, float]] = []
    flips = comparisons = 0
    for orders in groups:
        for first, second in combinations(orders, 2):
            shared = sorted(first.keys() & second.keys())
            pairs += [(first[one], second[one]) for one in shared]
            for one, other in combinations(shared, 2):
                comparisons += 1
                flips += (first[one] - first[other]) * (second[one] - second[other]) < 0
    if not pairs:
        return None
    difference = sum(abs(first - second) for first, second in pairs) / len(pairs)
    return OrderAgreement(tuple(pairs), difference, flips / comparisons if comparisons else 0.0)


def _by_group(orders: Iterable[Any]) -> list[list[dict[str, float]]]:
    """Scores by trajectory, of every order of every group."""
    found: dict[str, dict[int, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in orders:
        found[row["verdict_key"]][row["order_number"]][row["trajectory_id"]] = row["score"]
    return [list(group.values()) for group in found.values()]


def _thinned(curve: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """A limited number of points of the curve, always including the last."""
    stride = max(1, -(-len(curve) // _CURVE_POINTS))
    return tuple(curve[place] for place in range(len(curve) - 1, -1, -stride))[::-1]
