"""What the judge did in one run: who it was, whether it agrees with itself, what it cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import msgspec

from trainer.ledger.read.types import CostFacts, OrderAgreement
from trainer.types import JudgeIdentity

# A run trains on verdicts that an earlier run paid for, and pays for some that it does not train on; the verdicts of
# its evaluation are about windows that it did not plan. Parts of groups are asked about to find out who is refused.
_VERDICTS = """
WITH keys AS (
    SELECT t.verdict_key FROM hindsight.batch_trajectories t JOIN hindsight.batches b USING (batch_id)
    WHERE b.run_id = $1
    UNION SELECT v.verdict_key FROM hindsight.verdicts v JOIN hindsight.windows w USING (run_id, window_id)
    WHERE v.run_id = $1 AND v.group_id NOT LIKE '%/part')
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
_COSTS = """
SELECT judge, count(*) AS calls, count(*) FILTER (WHERE result <> 'ok') AS failed_calls,
       sum(prompt_tokens)::bigint AS prompt_tokens, sum(completion_tokens)::bigint AS completion_tokens,
       sum(cost_usd)::float8 AS usd
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
    costs: tuple[CostFacts, ...]
    cost_curve: tuple[tuple[int, float], ...]


async def judging_of(connection: Any, run_id: str) -> Judging:
    identities = await connection.fetch(_IDENTITIES, run_id)
    orders = await connection.fetch(_ORDERS, run_id)
    costs = await connection.fetch(_COSTS, run_id)
    curve = await connection.fetch(_COST_CURVE, run_id)
    return Judging(
        identity=msgspec.convert(dict(identities[0]), JudgeIdentity) if identities else None,
        groups=sum(row["groups"] for row in identities),
        agreement=order_agreement(_by_group(orders)),
        costs=tuple(CostFacts(**row) for row in costs),
        cost_curve=_thinned([(row["calls"], row["usd"]) for row in curve]),
    )


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
