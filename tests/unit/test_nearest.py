"""The search that does not read every vector finds exactly what comparing all of them finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trainer.lessons import nearest
from trainer.lessons.nearest import HeadSearch, first_of


def unit(vectors: Any) -> Any:
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)


def texts(number: int, seed: int, *, spread: float) -> Any:
    """Vectors around twenty topics, as embeddings are; ``spread`` is how far from them."""
    chance = np.random.default_rng(seed)
    topics = chance.standard_normal((20, 64)) @ chance.standard_normal((64, 128))
    return unit(unit(topics)[chance.integers(0, 20, number)] + spread * unit(chance.standard_normal((number, 128))))


def everything(vectors: Any, asked: Any, fits: Any, most: int) -> list[int]:
    """By comparing all of them, of equal ones the first."""
    exact = np.where(fits, vectors @ asked, -np.inf)
    order = np.lexsort((np.arange(len(exact)), -exact))[:most]
    return [int(one) for one in order if np.isfinite(exact[one])]


@pytest.mark.parametrize("spread", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("share", [1.0, 0.3, 0.001])
def test_the_first_fifty_are_those_of_comparing_everything(spread: float, share: float) -> None:
    vectors, asked = texts(9_000, 1, spread=spread), texts(12, 2, spread=spread)
    asked[:4] = texts(9_000, 1, spread=spread)[:4]  # also some that are there
    fits = np.random.default_rng(3).random(len(vectors)) < share
    search = HeadSearch(128)
    for one, found in zip(asked, search.of(vectors, list(asked)), strict=True):
        ranks, products = found.nearest(fits, 50, also=[5, 8_999])
        exact, wanted = vectors @ one, everything(vectors, one, fits, 50)
        assert list(ranks.values()) == list(range(1, len(wanted) + 1))
        assert np.allclose(exact[list(ranks)], exact[wanted], atol=1e-6)
        assert len(set(ranks) ^ set(wanted)) <= 2, "but for products that are equal within rounding"
        assert all(abs(value - exact[place]) < 1e-6 for place, value in products.items())
        assert {5, 8_999} <= products.keys()


def test_most_vectors_are_never_read_where_topics_differ() -> None:
    vectors = texts(20_000, 1, spread=0.3)
    asked = unit(vectors[0] + 0.1 * unit(np.random.default_rng(2).standard_normal(128)))
    (found,) = HeadSearch(128).of(vectors, [asked])
    assert len(found._compared(np.ones(len(vectors), np.bool_), 50)) < len(vectors) / 10


def test_vectors_that_are_added_are_found_before_and_after_the_directions_are_taken_anew() -> None:
    vectors, asked = texts(20_000, 4, spread=0.5), texts(3, 5, spread=0.5)
    search = HeadSearch(128)
    for number in (100, nearest._FEW, 5_000, 5_001, 9_000, 12_000, 20_000):
        part, fits = vectors[:number], np.ones(number, np.bool_)
        for one, found in zip(asked, search.of(part, list(asked)), strict=True):
            assert list(found.nearest(fits, 10)[0]) == everything(part, one, fits, 10)


def test_of_equal_values_the_first_come_first() -> None:
    values = np.array([1.0, 3.0, 2.0, 3.0, 2.0, 2.0, -np.inf], np.float32)
    assert first_of(values, 4) == [1, 3, 2, 4]
    assert first_of(values, 9) == [1, 3, 2, 4, 5, 0]
    assert first_of(values, 9, above=2.0) == [1, 3]
