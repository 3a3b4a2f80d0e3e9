"""The report's chart types: pure functions from numbers to inline SVG.

Values that cannot be drawn (not a number, infinite) are left out; an empty chart says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup

from trainer.report import drawing as svg


@dataclass(frozen=True, slots=True)
class IntervalRow:
    """A mean with its interval; the ends are None if it is not known."""

    label: str
    mean: float
    low: float | None
    high: float | None
    tone: str = "other"
    """``candidate``, ``incumbent`` or ``other``."""

    def ends(self) -> tuple[float, float] | None:
        """The interval, if both its ends can be drawn."""
        if self.low is None or self.high is None or not (svg.is_drawable(self.low) and svg.is_drawable(self.high)):
            return None
        return self.low, self.high


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    points: tuple[svg.Point, ...]
    spread: tuple[float, ...] = ()
    """Half the height of a band around each point."""

    def drawable(self) -> Series:
        """The series without the points that cannot be drawn."""
        halves = self.spread or (0.0,) * len(self.points)
        kept = [
            (point, half)
            for point, half in zip(self.points, halves, strict=True)
            if all(map(svg.is_drawable, (*point, half)))
        ]
        return Series(self.name, tuple(p for p, _ in kept), tuple(half for _, half in kept) if self.spread else ())


@dataclass(frozen=True, slots=True)
class CalendarHour:
    """One window in a calendar: its colour, its tooltip, and the target of its link."""

    window_id: str
    tone: str
    """``trained``, ``held-out`` or ``unused``."""
    strength: float
    """From 0 to 1: how strongly it is coloured."""
    said: str
    target: str


def interval_chart(
    title: str, rows: Sequence[IntervalRow], *, percent: bool = False, rule: float | None = None
) -> Markup:
    """One row per policy: the dot is the mean, the bar the 95% interval. ``rule`` is a reference value."""
    rows = [row for row in rows if svg.is_drawable(row.mean)]
    if not rows:
        return _nothing(title)
    shown = [value for row in rows for value in (row.mean, *(row.ends() or ()))]
    extra = ([0.0] if percent else []) + ([rule] if rule is not None else [])
    axis = svg.Axis.over([*shown, *extra], 92, svg.WIDTH - 22)
    height = 34 + 30 * len(rows)
    parts = []
    for tick in axis.ticks():
        x = axis.at(tick)
        parts.append(svg.tag("line", "grid", x1=x, x2=x, y1=10, y2=height - 24))
        parts.append(svg.words("tick", x, height - 8, svg.number(tick, percent=percent), "middle"))
    if rule is not None:
        x = axis.at(rule)
        parts.append(svg.tag("line", "rule", x1=x, x2=x, y1=4, y2=height - 22))
    for index, row in enumerate(rows):
        y = 26 + 30 * index
        said = f"{row.label}: {svg.number(row.mean, percent=percent)}"
        if (ends := row.ends()) is not None:
            low, high = ends
            said += f" ({svg.number(low, percent=percent)} to {svg.number(high, percent=percent)})"
            parts.append(svg.tag("line", f"bar {row.tone}", x1=axis.at(low), x2=axis.at(high), y1=y, y2=y))
        parts.append(svg.tag("circle", f"dot {row.tone}", cx=axis.at(row.mean), cy=y, r=5))
        parts.append(svg.words("label", 84, y + 4, row.label, "end"))
        parts.append(svg.tag("rect", "touch", svg.hint(said), x=0, y=y - 14, width=svg.WIDTH, height=28))
    return svg.drawing(title, height, parts)


def line_chart(
    title: str, series: Sequence[Series], *, x_label: str = "step", percent: bool = False, dots: bool = True
) -> Markup:
    """Curves over a count such as the step, each with an optional band."""
    series = [shown for one in series if (shown := one.drawable()).points]
    if not series:
        return _nothing(title)
    edges = [
        edge
        for one in series
        for (_, y), half in zip(one.points, one.spread or (0.0,) * len(one.points), strict=True)
        for edge in (y - half, y + half)
    ]
    across = svg.Axis.over([x for one in series for x, _ in one.points], svg.LEFT + 6, svg.RIGHT - 6, tight=True)
    up = svg.Axis.over(edges, svg.BOTTOM, svg.TOP)
    parts = svg.frame(across, up, x_label, percent=percent, whole=True)
    for index, one in enumerate(series):
        if one.spread:
            banded = list(zip(one.points, one.spread, strict=True))
            upper = [(x, y + half) for (x, y), half in banded]
            lower = [(x, y - half) for (x, y), half in reversed(banded)]
            parts.append(svg.tag("polygon", f"band s{index}", points=svg.path(across, up, upper + lower)))
        parts.append(svg.tag("polyline", f"curve s{index}", points=svg.path(across, up, one.points)))
        for x, y in one.points if dots else one.points[-1:]:
            said = svg.hint(f"{one.name} at {x_label} {svg.number(x)}: {svg.number(y, percent=percent)}")
            parts.append(svg.tag("circle", f"point s{index}", said, cx=across.at(x), cy=up.at(y), r=3.5))
        if len(series) > 1:
            parts.append(svg.words(f"key s{index}", svg.LEFT + 4 + 160 * index, 14, one.name))
    return svg.drawing(title, svg.HEIGHT, parts)


def scatter(title: str, points: Sequence[svg.Point], x_label: str, y_label: str, *, diagonal: bool = False) -> Markup:
    """One dot per pair; with ``diagonal`` both axes are the same and agreement is a line."""
    points = [point for point in points if all(map(svg.is_drawable, point))]
    if not points:
        return _nothing(title)
    both = [value for point in points for value in point]
    across = svg.Axis.over(both if diagonal else [x for x, _ in points], svg.LEFT, svg.RIGHT)
    up = svg.Axis.over(both if diagonal else [y for _, y in points], svg.BOTTOM, svg.TOP)
    parts = svg.frame(across, up, x_label, y_label, whole=False)
    if diagonal:
        corners = [(across.low, up.low), (across.high, up.high)]
        parts.append(svg.tag("polyline", "rule", points=svg.path(across, up, corners)))
    parts += [svg.tag("circle", "mark", cx=across.at(x), cy=up.at(y), r=3) for x, y in points]
    return svg.drawing(title, svg.HEIGHT, parts)


def bars(title: str, rows: Sequence[tuple[str, float]]) -> Markup:
    """Horizontal bars with their numbers."""
    rows = [(label, value) for label, value in rows if svg.is_drawable(value)]
    if not rows:
        return _nothing(title)
    largest = max(value for _, value in rows) or 1
    parts = []
    for index, (label, value) in enumerate(rows):
        y, width = 8 + 24 * index, 170 * max(value, 0.0) / largest
        parts.append(svg.words("label", 148, y + 13, label, "end"))
        parts.append(svg.tag("rect", "column", x=154, y=y + 2, width=max(width, 1), height=14, rx=2))
        parts.append(svg.words("value", 160 + width, y + 13, svg.number(value)))
    return svg.drawing(title, 16 + 24 * len(rows), parts)


def gains(title: str, rows: Mapping[str, float], *, targets: Mapping[str, str]) -> Markup:
    """One column per window, worst to best: above the line the candidate won, below it lost."""
    shown = sorted(((value, name) for name, value in rows.items() if svg.is_drawable(value)))
    if not shown:
        return _nothing(title)
    up = svg.Axis.over([0.0, *(value for value, _ in shown)], svg.BOTTOM + 20, svg.TOP)
    width = (svg.RIGHT - svg.LEFT) / len(shown)
    parts = []
    for tick in up.ticks():
        y = up.at(tick)
        parts.append(svg.tag("line", "grid", x1=svg.LEFT, x2=svg.RIGHT, y1=y, y2=y))
        parts.append(svg.words("tick", svg.LEFT - 6, y + 4, svg.number(tick), "end"))
    for place, (value, name) in enumerate(shown):
        top, bottom = sorted((up.at(value), up.at(0.0)))
        gap = min(2.0, width / 5)
        column = svg.tag(
            "rect",
            "gain" if value > 0 else "loss" if value < 0 else "tie",
            svg.hint(f"{name}: {value:+.3f}"),
            x=svg.LEFT + place * width + gap / 2,
            y=top,
            width=min(width - gap, 40),
            height=max(bottom - top, 1.5),
        )
        parts.append(svg.tag("a", "", column, href=f"#{targets[name]}") if name in targets else column)
    parts.append(svg.tag("line", "zero", x1=svg.LEFT, x2=svg.RIGHT, y1=up.at(0.0), y2=up.at(0.0)))
    return svg.drawing(title, svg.HEIGHT, parts, role="group")


def calendar(title: str, hours: Sequence[CalendarHour], *, max_days: int = 31) -> Markup:
    """One row per day, one square per hour; every square links to its window."""
    ordered = sorted(hours, key=lambda hour: hour.window_id)
    days = [(day, list(found)) for day, found in groupby(ordered, key=lambda hour: hour.window_id[:10])][-max_days:]
    if not days:
        return _nothing(title)
    side, left = 12.6, 74
    parts = [svg.words("tick", left + hour * side, 10, f"{hour:02}") for hour in (0, 6, 12, 18)]
    for row, (day, found) in enumerate(days):
        y = 16 + row * (side + 1)
        parts.append(svg.words("tick", 0, y + 10, day))
        for one in found:
            square = svg.tag(
                "rect",
                f"hour {one.tone}",
                svg.hint(one.said),
                x=left + int(one.window_id[11:13]) * side,
                y=y,
                width=side - 1.6,
                height=side - 1.6,
                rx=2,
                style=f"--strength:{min(max(one.strength, 0.0), 1.0):.2f}",
            )
            parts.append(svg.tag("a", "", square, href=f"#{one.target}"))
    return svg.drawing(title, 20 + len(days) * (side + 1), parts, role="group")


def _nothing(title: str) -> Markup:
    return svg.drawing(title, 40, [svg.words("tick", svg.WIDTH / 2, 24, "no data", "middle")])
