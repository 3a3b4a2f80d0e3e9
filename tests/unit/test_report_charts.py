"""Drawing: every number gets a place or is left out, whatever the data look like."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from trainer.report.charts import (
    CalendarHour,
    IntervalRow,
    Series,
    bars,
    calendar,
    gains,
    interval_chart,
    line_chart,
    scatter,
)
from trainer.report.drawing import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Axis, number

ANY_FLOAT = st.floats(allow_nan=True, allow_infinity=True)
BROKEN = (math.nan, math.inf, -math.inf)


def parsed(svg: Markup) -> ElementTree.Element:
    """The picture, which must be well-formed and hold no value that has no place."""
    assert not re.search(r'="(nan|inf|-inf)"|nan,|,nan|inf', str(svg).replace("info", ""))
    return ElementTree.fromstring(str(svg))


def of_kind(svg: Markup, kind: str) -> list[ElementTree.Element]:
    return [one for one in parsed(svg).iter() if kind in (one.get("class") or "").split()]


def texts(svg: Markup) -> list[str]:
    return [one.text or "" for one in parsed(svg).iter("text")]


# Axes


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 1.0, [0.0, 0.25, 0.5, 0.75, 1.0]),
        (0.0, 8.0, [0.0, 2.0, 4.0, 6.0, 8.0]),
        (-3.0, 5.0, [-2.0, 0.0, 2.0, 4.0]),
        (0.0, 4e-5, [0.0, 1e-5, 2e-5, 3e-5, 4e-5]),
        (0.0, 4000.0, [0.0, 1000.0, 2000.0, 3000.0, 4000.0]),
    ],
)
def test_ticks_are_round_and_within_the_axis(low: float, high: float, expected: list[float]) -> None:
    assert Axis(low, high, 0, 100).ticks() == pytest.approx(expected)


@given(st.floats(-1e12, 1e12), st.floats(1e-6, 1e12))
def test_any_axis_has_a_few_ticks_and_all_lie_on_it(low: float, span: float) -> None:
    axis = Axis.over([low, low + span], 0, 100)
    ticks = axis.ticks()
    assert len(ticks) <= 8
    assert ticks == sorted(set(ticks))
    assert all(-1e-6 <= axis.at(tick) <= 100 + 1e-6 for tick in ticks)


def test_whole_ticks_never_count_half_a_step() -> None:
    assert Axis(1, 2, 0, 100).ticks(5, whole=True) == [1, 2]
    assert Axis(0.9, 1.1, 0, 100).ticks(5, whole=True) == [1]
    assert all(tick == int(tick) for tick in Axis(1, 13, 0, 100).ticks(5, whole=True))


def test_an_axis_over_one_value_has_it_in_the_middle() -> None:
    for value in (0.0, 1.0, -7.5, 1e9, 1e-12):
        assert Axis.over([value, value], 0, 100).at(value) == pytest.approx(50)


def test_what_is_beyond_the_axis_goes_to_its_end() -> None:
    axis = Axis(0, 1, 10, 20)
    assert (axis.at(-5), axis.at(5), axis.at(math.inf)) == (10, 20, 20)


@pytest.mark.parametrize(
    ("value", "percent", "expected"),
    [
        (0.12345, False, "0.123"),
        (-0.0, False, "0"),
        (1234567.0, False, "1,234,567"),
        (0.5, True, "50.0%"),
        (-0.0, True, "0.0%"),
        (math.nan, False, "n/a"),
        (math.inf, True, "n/a"),
    ],
)
def test_numbers_are_written_as_people_read_them(value: float, percent: bool, expected: str) -> None:
    assert number(value, percent=percent) == expected


# Curves


def test_a_curve_goes_through_its_points_in_their_order() -> None:
    svg = line_chart("Reward", [Series("reward", ((1, 0.0), (2, 1.0), (3, 0.5)))])
    [curve] = of_kind(svg, "curve")
    places = [tuple(map(float, pair.split(","))) for pair in (curve.get("points") or "").split()]
    assert [x for x, _ in places] == sorted(x for x, _ in places)
    assert places[1][1] < places[2][1] < places[0][1]  # up is a smaller y
    assert [one[0].text for one in of_kind(svg, "point")] == [
        "reward at step 1: 0",
        "reward at step 2: 1",
        "reward at step 3: 0.5",
    ]


def test_a_curve_of_one_point_is_a_dot_in_the_middle() -> None:
    [dot] = of_kind(line_chart("Reward", [Series("reward", ((5, 0.4),), (0.0,))]), "point")
    assert float(dot.get("cx") or 0) == pytest.approx((LEFT + RIGHT) / 2, abs=1)
    assert float(dot.get("cy") or 0) == pytest.approx((TOP + BOTTOM) / 2, abs=1)


def test_points_without_a_value_are_left_out_and_the_rest_is_drawn() -> None:
    points = ((1.0, 0.5), (2.0, math.nan), (3.0, math.inf), (4.0, 0.6))
    svg = line_chart("KL", [Series("kl", points, (0.1, 0.1, 0.1, math.nan))])
    assert len(of_kind(svg, "point")) == 1
    assert len(of_kind(line_chart("KL", [Series("kl", points)]), "point")) == 2


def test_all_equal_values_are_a_flat_curve() -> None:
    [curve] = of_kind(line_chart("Loss", [Series("loss", tuple((step, 3.0) for step in range(5)))]), "curve")
    assert len({pair.split(",")[1] for pair in (curve.get("points") or "").split()}) == 1


def test_a_second_curve_has_a_name_and_a_colour_of_its_own() -> None:
    svg = line_chart("KL", [Series("base", ((1, 0.1), (2, 0.2))), Series("player", ((1, 0.0), (2, 0.1)))])
    assert [one.text for one in of_kind(svg, "key")] == ["base", "player"]
    assert of_kind(svg, "s1")


@pytest.mark.parametrize(
    "svg",
    [
        line_chart("Nothing", []),
        line_chart("Nothing", [Series("empty", ())]),
        line_chart("Nothing", [Series("broken", tuple((float(place), value) for place, value in enumerate(BROKEN)))]),
        scatter("Nothing", [], "x", "y"),
        scatter("Nothing", [(value, 1.0) for value in BROKEN], "x", "y"),
        bars("Nothing", []),
        interval_chart("Nothing", []),
        interval_chart("Nothing", [IntervalRow("a", math.nan, None, None)]),
        gains("Nothing", {}, targets={}),
        calendar("Nothing", []),
    ],
)
def test_a_picture_of_nothing_says_so(svg: Markup) -> None:
    assert texts(svg) == ["no data"]


@given(st.lists(st.tuples(ANY_FLOAT, ANY_FLOAT), max_size=12))
def test_no_data_break_a_picture(points: list[tuple[float, float]]) -> None:
    parsed(line_chart("Any", [Series("any", tuple(points), tuple(abs(y) for _, y in points))]))
    parsed(scatter("Any", points, "x", "y", diagonal=True))
    parsed(bars("Any", [(str(place), y) for place, (_, y) in enumerate(points)]))
    parsed(gains("Any", {str(place): y for place, (_, y) in enumerate(points)}, targets={}))
    parsed(interval_chart("Any", [IntervalRow("row", x, y, y) for x, y in points], rule=0.0))


# Other pictures


def test_an_interval_without_ends_is_a_dot_without_a_bar() -> None:
    svg = interval_chart("Score", [IntervalRow("candidate", 0.5, None, None, "candidate")])
    assert len(of_kind(svg, "dot")) == 1
    assert of_kind(svg, "bar") == []


def test_the_interval_bar_ends_where_the_interval_does_and_the_wanted_gain_is_on_the_same_scale() -> None:
    svg = interval_chart("Gain", [IntervalRow("incumbent", 0.3, 0.0, 0.6)], rule=0.3)
    [bar], [dot], [rule] = of_kind(svg, "bar"), of_kind(svg, "dot"), of_kind(svg, "rule")
    assert float(bar.get("x1") or 0) < float(dot.get("cx") or 0) < float(bar.get("x2") or 0)
    assert rule.get("x1") == dot.get("cx")


def test_bars_are_as_long_as_their_numbers() -> None:
    svg = bars("Left out", [("held_out", 200.0), ("dropout", 100.0), ("stale", 0.0)])
    lengths = [float(one.get("width") or 0) for one in of_kind(svg, "column")]
    assert lengths[0] == pytest.approx(2 * lengths[1])
    assert lengths[2] == 1
    assert [one.text for one in of_kind(svg, "value")] == ["200", "100", "0"]


def test_gains_stand_above_the_line_and_losses_below_from_the_worst_to_the_best() -> None:
    svg = gains("Gain", {"b": 0.4, "a": -0.2, "c": 0.0}, targets={"a": "window-a"})
    [zero] = of_kind(svg, "zero")
    line = float(zero.get("y1") or 0)
    [gain], [loss], [tie] = of_kind(svg, "gain"), of_kind(svg, "loss"), of_kind(svg, "tie")
    assert float(gain.get("y") or 0) < line
    assert float(loss.get("y") or 0) == pytest.approx(line)
    assert float(loss.get("x") or 0) < float(tie.get("x") or 0) < float(gain.get("x") or 0)
    assert [one.get("href") for one in parsed(svg).iter("a")] == ["#window-a"]


def test_the_calendar_has_a_row_a_day_and_a_link_an_hour() -> None:
    hours = [
        CalendarHour(f"2026-11-{day:02}T{hour:02}:00", "trained", 0.5, "said", f"window-{day}-{hour}")
        for day in (13, 14)
        for hour in (0, 23)
    ]
    svg = calendar("Windows", hours)
    assert [text for text in texts(svg) if text.startswith("2026")] == ["2026-11-13", "2026-11-14"]
    assert len(list(parsed(svg).iter("a"))) == 4
    assert all(float(one.get("x") or 0) + float(one.get("width") or 0) <= WIDTH for one in of_kind(svg, "hour"))


def test_a_long_calendar_shows_the_newest_days() -> None:
    hours = [CalendarHour(f"2026-10-{day:02}T00:00", "unused", 1, "", "x") for day in range(1, 31)]
    assert [text for text in texts(calendar("W", hours, max_days=2)) if len(text) == 10] == [
        "2026-10-29",
        "2026-10-30",
    ]


def test_text_from_outside_is_text_in_the_picture() -> None:
    hostile = '"><script>alert(1)</script>'
    pictures = [
        bars(hostile, [(hostile, 1.0)]),
        line_chart(hostile, [Series(hostile, ((1, 1),)), Series(hostile, ((1, 2),))], x_label=hostile),
        interval_chart(hostile, [IntervalRow(hostile, 1.0, 0.0, 2.0, hostile)]),
        gains(hostile, {hostile: 1.0}, targets={hostile: hostile}),
        calendar(hostile, [CalendarHour("2026-10-01T00:00", hostile, 1.0, hostile, hostile)]),
    ]
    for svg in pictures:
        assert list(parsed(svg).iter("script")) == []
        assert parsed(svg).get("aria-label") == hostile


def test_all_pictures_lie_within_their_frame() -> None:
    svg = scatter("Score", [(0.0, 0.0), (1e6, 1.0)], "P&L", "score")
    for dot in of_kind(svg, "mark"):
        assert LEFT <= float(dot.get("cx") or 0) <= RIGHT
        assert TOP <= float(dot.get("cy") or 0) <= BOTTOM < HEIGHT
