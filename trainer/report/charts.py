"""Small drawings as inline SVG: pure functions from numbers to markup. Colours come from the page's style.

All are 380 units wide, so that they are readable at phone width and sit side by side on a desk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH = 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, WIDTH - 14, 20, 176


@dataclass(frozen=True, slots=True)
class IntervalRow:
    """A mean with its interval; no ends where it is not known."""

    label: str
    mean: float
    low: float | None
    high: float | None
    tone: str = "other"
    """``candidate``, ``incumbent`` or ``other``."""


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    points: tuple[tuple[float, float], ...]
    spread: tuple[float, ...] = ()
    """Half the height of a band around each point."""


def interval_chart(title: str, rows: Sequence[IntervalRow], *, percent: bool = False) -> Markup:
    """One line a policy: the dot is the mean, the bar the 95 % interval."""
    ends = [value for row in rows for value in (row.mean, row.low, row.high) if value is not None]
    axis = _Axis.over([*ends, 0.0] if percent else ends, 120, WIDTH - 16)
    height = 34 + 30 * len(rows)
    parts = []
    for tick in axis.ticks():
        x = axis.at(tick)
        parts.append(_tag("line", "grid", x1=x, x2=x, y1=10, y2=height - 24))
        parts.append(_text("tick", x, height - 10, number(tick, percent), "middle"))
    for index, row in enumerate(rows):
        y = 26 + 30 * index
        said = f"{row.label}: {number(row.mean, percent)}"
        if row.low is not None and row.high is not None:
            said += f" ({number(row.low, percent)} to {number(row.high, percent)})"
            parts.append(_tag("line", f"bar {row.tone}", x1=axis.at(row.low), x2=axis.at(row.high), y1=y, y2=y))
        parts.append(_tag("circle", f"dot {row.tone}", cx=axis.at(row.mean), cy=y, r=5))
        parts.append(_text("label", 112, y + 4, row.label, "end"))
        parts.append(_tag("rect", "touch", _hint(said), x=0, y=y - 14, width=WIDTH, height=28))
    return _svg(title, height, parts)


def line_chart(title: str, series: Sequence[Series], *, x_label: str = "step", percent: bool = False) -> Markup:
    """Curves over steps, each with an optional band."""
    edges = [
        edge
        for one in series
        for (_, y), half in zip(one.points, one.spread or (0.0,) * len(one.points), strict=True)
        for edge in (y - half, y + half)
    ]
    across = _Axis.over([x for one in series for x, _ in one.points], _LEFT, _RIGHT, tight=True)
    up = _Axis.over(edges, _BOTTOM, _TOP)
    parts = _frame(across, up, x_label, percent)
    for index, one in enumerate(series):
        if one.spread:
            banded = list(zip(one.points, one.spread, strict=True))
            upper = [(x, y + half) for (x, y), half in banded]
            lower = [(x, y - half) for (x, y), half in reversed(banded)]
            parts.append(_tag("polygon", f"band s{index}", points=_path(across, up, upper + lower)))
        parts.append(_tag("polyline", f"curve s{index}", points=_path(across, up, one.points)))
        for x, y in one.points:
            hint = _hint(f"{one.name} at {x_label} {x:g}: {number(y, percent)}")
            parts.append(_tag("circle", f"point s{index}", hint, cx=across.at(x), cy=up.at(y), r=3))
        if len(series) > 1:
            parts.append(_text(f"key s{index}", _LEFT + 6 + 110 * index, 12, one.name))
    return _svg(title, 214, parts)


def scatter(title: str, points: Sequence[tuple[float, float]], x_label: str, y_label: str, *, diagonal: bool) -> Markup:
    """One dot a pair; with ``diagonal`` both axes are the same and agreement is a line."""
    both = [value for point in points for value in point]
    across = _Axis.over(both if diagonal else [x for x, _ in points], _LEFT, _RIGHT)
    up = _Axis.over(both if diagonal else [y for _, y in points], _BOTTOM, _TOP)
    parts = _frame(across, up, x_label, percent=False)
    if diagonal:
        parts.append(_tag("polyline", "rule", points=_path(across, up, [(across.low, up.low), (across.high, up.high)])))
    parts += [_tag("circle", "mark", cx=across.at(x), cy=up.at(y), r=3) for x, y in points]
    parts.append(_text("tick", 4, 10, y_label))
    return _svg(title, 214, parts)


def bars(title: str, rows: Sequence[tuple[str, float]]) -> Markup:
    """Horizontal bars with their numbers."""
    most = max((value for _, value in rows), default=0) or 1
    parts = []
    for index, (label, value) in enumerate(rows):
        y, width = 8 + 24 * index, 170 * value / most
        parts.append(_text("label", 148, y + 13, label, "end"))
        parts.append(_tag("rect", "column", x=154, y=y + 2, width=max(width, 1), height=14, rx=2))
        parts.append(_text("value", 160 + width, y + 13, f"{value:g}"))
    return _svg(title, 16 + 24 * len(rows), parts)


def number(value: float, percent: bool = False) -> str:
    """A figure as the page writes it."""
    if percent:
        return f"{100 * value:.1f}%"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


@dataclass(frozen=True, slots=True)
class _Axis:
    """Maps values to places."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float, *, tight: bool = False) -> _Axis:
        finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
        low, high = min(finite), max(finite)
        if high - low < 1e-9:
            low, high = low - 0.5, high + 0.5
        room = 0.0 if tight else 0.06 * (high - low)
        return cls(low - room, high + room, start, end)

    def at(self, value: float) -> float:
        value = min(max(value, self.low), self.high)
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, about: int = 4) -> list[float]:
        raw = (self.high - self.low) / about
        scale = 10.0 ** math.floor(math.log10(raw))
        step = next(step for step in (1, 2, 2.5, 5, 10) if step * scale >= raw * (1 - 1e-9)) * scale
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return [count * step for count in range(first, last + 1)]


def _frame(across: _Axis, up: _Axis, x_label: str, percent: bool) -> list[str]:
    parts = []
    for tick in up.ticks():
        y = up.at(tick)
        parts.append(_tag("line", "grid", x1=_LEFT, x2=_RIGHT, y1=y, y2=y))
        parts.append(_text("tick", _LEFT - 4, y + 4, number(tick, percent), "end"))
    parts += [_text("tick", across.at(tick), 192, f"{tick:g}", "middle") for tick in across.ticks(5)]
    parts.append(_text("tick", _RIGHT, 208, x_label, "end"))
    return parts


def _path(across: _Axis, up: _Axis, points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{across.at(x):.1f},{up.at(y):.1f}" for x, y in points)


def _text(kind: str, x: float, y: float, words: str, anchor: str = "start") -> str:
    return _tag("text", kind, str(escape(words)), x=x, y=y, text_anchor=anchor)


def _hint(words: str) -> str:
    return f"<title>{escape(words)}</title>"


def _tag(name: str, kind: str, content: str = "", **attributes: float | str) -> str:
    written = "".join(
        f' {key.replace("_", "-")}="{value if isinstance(value, str) else format(value, ".1f")}"'
        for key, value in attributes.items()
    )
    return f'<{name} class="{kind}"{written}>{content}</{name}>'


def _svg(title: str, height: float, parts: Sequence[str]) -> Markup:
    label = escape(title)
    head = f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{label}">'
    return Markup(head + "".join(parts) + "</svg>")
