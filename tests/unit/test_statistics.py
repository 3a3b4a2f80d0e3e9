"""Intervals over windows: right on known cases, careful where hours are related."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import rankdata as ranks

from trainer.evidence import Interval
from trainer.statistics.intervals import (
    MIN_WINDOWS,
    SHARE,
    Floats,
    by_window,
    effective_windows,
    mean_interval,
    spearman,
    student_quantile,
    windows_needed,
)

finite = st.floats(-1e6, 1e6, allow_nan=False)


def _ends(interval: Interval) -> tuple[float, float]:
    assert interval.low is not None
    assert interval.high is not None
    return interval.low, interval.high


@given(st.lists(finite, min_size=MIN_WINDOWS, max_size=40))
def test_an_interval_is_finite_and_holds_its_mean(values: list[float]) -> None:
    interval = mean_interval(values)
    low, high = _ends(interval)
    assert low <= interval.mean <= high
    assert math.isfinite(low)
    assert math.isfinite(high)


def test_neighbouring_hours_that_are_related_count_for_fewer() -> None:
    independent = np.random.default_rng(3).normal(size=400)
    related = np.repeat(independent[:100], 4)
    assert effective_windows(independent) > 300
    assert effective_windows(related) == pytest.approx(400 * 0.25 / 1.75, rel=0.2)
    (low, high), (wide_low, wide_high) = _ends(mean_interval(independent)), _ends(mean_interval(related))
    assert wide_high - wide_low > 1.7 * (high - low)


def test_too_few_windows_have_a_mean_but_no_interval() -> None:
    interval = mean_interval([1.0] * (MIN_WINDOWS - 1))
    assert interval.mean == 1.0
    assert not interval.is_known


def test_no_windows_are_not_a_zero() -> None:
    with pytest.raises(ValueError, match="at least one window"):
        mean_interval([])


def test_it_is_never_narrower_than_students_t() -> None:
    values = np.array([0.0] * 13 + [1.0, 1.0])
    interval = mean_interval(values)
    half = student_quantile(0.975, 14) * values.std(ddof=1) / math.sqrt(15)
    assert interval.low is not None
    assert interval.low <= interval.mean - half + 1e-12
    assert interval.low < 0, "two windows of fifteen are no evidence"


def test_a_share_is_never_beyond_none_or_all() -> None:
    interval = mean_interval([1.0] * 14 + [0.0], bounds=SHARE)
    assert interval.high == 1.0
    _, high = _ends(mean_interval([1.0] * 14 + [0.0]))
    assert high > 1.0


@pytest.mark.parametrize(("degrees", "expected"), [(5, 2.5706), (10, 2.2281), (30, 2.0423), (1000, 1.9623)])
def test_students_quantile_matches_the_table(degrees: int, expected: float) -> None:
    assert student_quantile(0.975, degrees) == pytest.approx(expected, abs=0.003)


@pytest.mark.parametrize("shape", ["normal", "coin", "sparse", "skewed"])
def test_95_percent_intervals_cover_the_truth(shape: str) -> None:
    random = np.random.default_rng(11)
    shapes: dict[str, Callable[[], Floats]] = {
        "normal": lambda: random.normal(size=20),
        "coin": lambda: random.choice([-1.0, 1.0], 20),
        "sparse": lambda: random.choice([-1.0, 0.0, 1.0], 20, p=[0.1, 0.8, 0.1]),
        "skewed": lambda: random.exponential(size=20) - 1,
    }
    intervals = [_ends(mean_interval(shapes[shape]())) for _ in range(400)]
    missed = sum(not (low <= 0 <= high) for low, high in intervals)
    assert missed <= 0.09 * len(intervals)


def test_windows_needed_decide_when_they_are_there() -> None:
    random = np.random.default_rng(2)
    few = random.normal(0.3, 1.0, 20)
    needed = windows_needed((few - few.mean()) / few.std(ddof=1) + 0.3)
    assert needed is not None
    assert needed == pytest.approx((2.8 / 0.3) ** 2, rel=0.02)
    intervals = [_ends(mean_interval(random.normal(0.3, 1.0, needed))) for _ in range(100)]
    decided = sum(low > 0 for low, _ in intervals)
    assert 65 <= decided <= 95


def test_a_difference_on_the_threshold_needs_more_windows_than_there_are() -> None:
    assert windows_needed([0.5, -0.5, 0.5, -0.5]) is None
    assert windows_needed([1.001, -0.999, 1.001, -0.999]) is None


def test_equal_values_share_their_rank() -> None:
    assert ranks([3.0, 1.0, 3.0, 0.0]).tolist() == [3.5, 2.0, 3.5, 1.0]


def test_spearman_sees_order_not_size_and_admits_when_there_is_none() -> None:
    assert spearman([1, 2, 3, 4], [1, 10, 100, 1000]) == pytest.approx(1.0)
    assert spearman([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1.0)
    assert spearman([1, 1, 1], [1, 2, 3]) is None
    assert spearman([1, 2], [1, 2]) is None


def test_decisions_of_one_window_are_one_number() -> None:
    assert by_window(["a", "b", "a"], [1.0, 5.0, 3.0]) == {"a": 2.0, "b": 5.0}


def test_windows_that_are_all_equal_are_not_related_by_their_rounding_errors() -> None:
    rounded = np.array([0.8 - 0.4] * 42)
    assert effective_windows(rounded) == effective_windows(np.ones(42)) > 35
