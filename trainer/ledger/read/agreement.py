"""Whether the judge says the same of a group in another order. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from trainer.ledger.read.types import OrderAgreement

Scores = Mapping[str, float]
"""Score by trajectory id, of one group in one order."""


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
