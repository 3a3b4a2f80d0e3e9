"""The parts of all charts: axes that map values to positions, and SVG elements as text. Pure.

All charts are 380 units wide, so that they are readable on a phone and fit side by side on a desktop. Colours come
from the page's style, by class.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH = 380
LEFT, RIGHT, TOP, BOTTOM = 52, WIDTH - 14, 26, 182
HEIGHT = 218
"""Height of a chart with two axes; its plot lies between LEFT, RIGHT, TOP and BOTTOM."""

_MAX_VALUE = 1e15  # a larger value would make the scale meaningless
_STEPS = (1, 2, 2.5, 5, 10)

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Axis:
    """Maps values between ``low`` and ``high`` to positions between ``start`` and ``end``; others to the nearer end."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def over(cls, values: Iterable[float], start: float, end: float, *, tight: bool = False) -> Axis:
        """An axis that shows all of ``values``, with some room around them unless ``tight``."""
        shown = [value for value in values if is_drawable(value)] or [0.0, 1.0]
        low, high = min(shown), max(shown)
        if high - low <= 1e-9 * max(abs(low), abs(high), 1e-9):
            half = 0.1 * abs(low) or 0.5
            return cls(low - half, high + half, start, end)
        room = 0.0 if tight else 0.06 * (high - low)
        return cls(low - room, high + room, start, end)

    def at(self, value: float) -> float:
        value = min(max(value, self.low), self.high)
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, about: int = 4, *, whole: bool = False) -> list[float]:
        """Round values on the axis, ``about`` that many; only whole numbers if ``whole``."""
        raw = (self.high - self.low) / about
        scale = 10.0 ** math.floor(math.log10(raw))
        step = next((step for step in _STEPS if step * scale >= raw * (1 - 1e-9)), 10) * scale
        if whole:
            step = max(1.0, float(math.ceil(step)))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [count * step for count in range(first, last + 1)]


def is_drawable(value: float) -> bool:
    return math.isfinite(value) and abs(value) < _MAX_VALUE


def number(value: float, *, percent: bool = False) -> str:
    """A number as the page writes it."""
    if not math.isfinite(value):
        return "n/a"
    if percent:
        return f"{100 * value + 0.0:.1f}%"
    return f"{value + 0.0:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def frame(across: Axis, up: Axis, x_label: str, y_label: str = "", *, percent: bool = False, whole: bool) -> list[str]:
    """Grid, ticks and labels of a plot; with ``whole`` the horizontal axis shows a count."""
    parts = []
    for tick in up.ticks():
        y = up.at(tick)
        parts.append(tag("line", "grid", x1=LEFT, x2=RIGHT, y1=y, y2=y))
        parts.append(words("tick", LEFT - 6, y + 4, number(tick, percent=percent), "end"))
    parts += [
        words("tick", across.at(tick), BOTTOM + 16, number(tick), "middle")
        for tick in across.ticks(7 if whole else 5, whole=whole)
    ]
    parts.append(words("tick", RIGHT, HEIGHT - 4, x_label, "end"))
    if y_label:
        parts.append(words("tick", 2, 12, y_label))
    return parts


def path(across: Axis, up: Axis, points: Sequence[Point]) -> str:
    return " ".join(f"{across.at(x):.1f},{up.at(y):.1f}" for x, y in points)


def words(kind: str, x: float, y: float, text: str, anchor: str = "start") -> str:
    return tag("text", kind, str(escape(text)), x=x, y=y, text_anchor=anchor)


def hint(text: str) -> str:
    """The tooltip of an element, which a screen reader reads aloud."""
    return f"<title>{escape(text)}</title>"


def tag(name: str, kind: str, content: str = "", **attributes: float | str) -> str:
    """One element. ``content`` is markup; attribute values are escaped."""
    written = "".join(
        f' {key.replace("_", "-")}="{escape(value) if isinstance(value, str) else format(value, ".1f")}"'
        for key, value in attributes.items()
    )
    return f'<{name} class="{escape(kind)}"{written}>{content}</{name}>'


def drawing(title: str, height: float, parts: Sequence[str], *, role: str = "img") -> Markup:
    """The finished chart; ``role`` is ``group`` if it contains links."""
    head = f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="{role}" aria-label="{escape(title)}">'
    return Markup(head + "".join(parts) + "</svg>")
