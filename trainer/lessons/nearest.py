"""The nearest of many vectors, exactly, without reading them all.

Reading a hundred thousand vectors of 384 numbers takes most of the time of a search. So a quarter of each is kept
apart: its head, the coordinates along the directions in which the vectors differ most. What the rest can add to a
product is at most the product of its lengths. Those whose head says that they cannot be among the first are never read;
the others are compared in full. Nothing is approximate: the result is that of comparing everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from trainer.lesson import Vectors

_SHARE = 4
"""Of the dimensions that are in a head, one in this many."""
_FEW = 4_096
"""Vectors up to which all are compared: reading them takes less than the detour."""
_SAMPLE = 20_000
"""Vectors that the directions are taken from."""
_SPARE = 4
"""So many times the wanted number are compared first, which shows how near one must be to be among them."""
_ROUNDING = np.float32(1e-4)
"""More than products of 32 bits can be wrong by: no vector is left out because of it."""


class HeadSearch:
    """Heads of vectors that are only ever added to, and never change."""

    def __init__(self, dimensions: int) -> None:
        self._size = dimensions // _SHARE
        self._directions: Vectors | None = None
        self._heads: Vectors = np.zeros((0, self._size), np.float32)
        self._tails: Vectors = np.zeros(0, np.float32)
        self._done = self._fitted_at = 0

    def of(self, vectors: Vectors, asked: Sequence[Vectors]) -> list[Nearness]:
        """How near each of ``vectors`` is to each of those asked for."""
        queries = np.stack(asked, axis=1)
        if len(vectors) <= _FEW or self._size == 0:
            products = vectors @ queries
            return [Nearness(vectors, one, products[:, place]) for place, one in enumerate(asked)]
        directions = self._up_to_date(vectors)
        heads = directions.T @ queries
        products = self._heads[: len(vectors)] @ heads
        lengths = np.linalg.norm(queries - directions @ heads, axis=0)
        tails = self._tails[: len(vectors)]
        return [
            Nearness(vectors, one, products[:, place], np.float32(lengths[place]) * tails + _ROUNDING)
            for place, one in enumerate(asked)
        ]

    def _up_to_date(self, vectors: Vectors) -> Vectors:
        """The directions, with heads of all ``vectors``; taken anew when there are twice as many as before."""
        number = len(vectors)
        if self._directions is None or number >= 2 * self._fitted_at:
            sample = vectors[:: max(1, number // _SAMPLE)]
            _, found = np.linalg.eigh((sample.T @ sample).astype(np.float64))
            self._directions = np.ascontiguousarray(found[:, : -self._size - 1 : -1], np.float32)
            self._fitted_at, self._done = number, 0
        if number > len(self._tails):
            room = max(number, 2 * len(self._tails))
            heads, tails = np.zeros((room, self._size), np.float32), np.zeros(room, np.float32)
            heads[: self._done], tails[: self._done] = self._heads[: self._done], self._tails[: self._done]
            self._heads, self._tails = heads, tails
        for start in range(self._done, number, _SAMPLE):
            part = vectors[start : min(number, start + _SAMPLE)]
            heads = part @ self._directions
            self._heads[start : start + len(part)] = heads
            self._tails[start : start + len(part)] = np.linalg.norm(part - heads @ self._directions.T, axis=1)
        self._done = number
        return self._directions


@dataclass(frozen=True, slots=True)
class Nearness:
    """How near vectors are to one that is asked for: exactly, or with what each product can be wrong by."""

    vectors: Vectors
    asked: Vectors
    products: Vectors
    slack: Vectors | None = None

    def nearest(self, fits: Any, most: int, also: Sequence[int] = ()) -> tuple[dict[int, int], dict[int, float]]:
        """The places of the nearest that fit, each with its rank from 1; and the products of these and of ``also``."""
        if self.slack is None:
            ranked = first_of(np.where(fits, self.products, -np.inf), most)
            return _ranks(ranked), {place: float(self.products[place]) for place in (*ranked, *also)}
        places = self._compared(fits, most)
        exact = self.vectors[places] @ self.asked
        order = np.lexsort((places, -exact))[:most]
        ranked = [int(places[one]) for one in order]
        found = {int(places[one]): float(exact[one]) for one in order}
        if missing := [place for place in also if place not in found]:
            more = self.vectors[missing] @ self.asked
            found.update((place, float(more[one])) for one, place in enumerate(missing))
        return _ranks(ranked), found

    def _compared(self, fits: Any, most: int) -> Any:
        """The places that have to be compared in full: nothing else can be among the first ``most``."""
        assert self.slack is not None
        likely = first_of(np.where(fits, self.products, -np.inf), _SPARE * most)
        if len(likely) < most:  # that was all that fits
            return np.array(likely, np.intp)
        exact = self.vectors[likely] @ self.asked
        enough = np.partition(exact, len(exact) - most)[len(exact) - most]
        return np.flatnonzero(fits & (self.products + self.slack >= enough))


def _ranks(ranked: Sequence[int]) -> dict[int, int]:
    return {place: rank for rank, place in enumerate(ranked, 1)}


def first_of(values: Any, most: int, *, above: float = -np.inf) -> list[int]:
    """The places of the largest values ``above`` a bound, the largest first; of equal ones the first comes first."""
    chosen = np.flatnonzero(values > above)
    if len(chosen) > most:
        own = values[chosen]
        chosen = chosen[own >= np.partition(own, len(own) - most)[len(own) - most]]
    return [int(place) for place in chosen[np.lexsort((chosen, -values[chosen]))][:most]]
