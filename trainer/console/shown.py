"""How figures are written and drawn on the pages. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from markupsafe import Markup

from trainer.ledger.read.now import StepPoint
from trainer.ledger.read.reward_history import RewardWeek
from trainer.progress import counted
from trainer.report.charts import Series, line_chart

NOTHING = "\N{EN DASH}"

NAVIGATION: tuple[tuple[str, str], ...] = (
    ("/", "Now"),
    ("/runs", "Runs"),
    ("/releases", "Releases"),
    ("/data", "Data"),
    ("/rewards", "Rewards"),
    ("/judge", "Judge"),
    ("/patterns", "Patterns"),
    ("/advice", "Advice"),
    ("/lessons", "Lessons"),
    ("/prompts", "Prompts"),
    ("/system", "System"),
)
"""The pages in their order; another one is a line here and an entry in ``board_pages.PAGES``."""


def number(value: float | None, digits: int = 3) -> str:
    if value is None or not math.isfinite(value):
        return NOTHING
    return f"{value:,.{digits}f}" if abs(value) < 1000 else f"{value:,.0f}"


def signed(value: float | None, digits: int = 2) -> str:
    return NOTHING if value is None or not math.isfinite(value) else f"{value:+.{digits}f}"


def dollars(value: float | None) -> str:
    return NOTHING if value is None else f"${value:,.2f}"


def percent(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.0%}"


def said_or_not(value: bool | None) -> str:
    return NOTHING if value is None else "yes" if value else "no"


def moment(value: datetime | None) -> str:
    return NOTHING if value is None else f"{value:%Y-%m-%d %H:%M} UTC"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return NOTHING
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def size(value: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1000
    return f"{value:,.1f} TB"


@dataclass(frozen=True, slots=True)
class Curve:
    """One picture of the steps: drawn here, and again by the page's script when steps come."""

    name: str
    title: str
    spread: str
    svg: Markup


_CURVES = (
    ("reward", "Reward, with its spread", "reward_std"),
    ("kl", "KL from the base model", ""),
    ("entropy", "Entropy", ""),
    ("tokens_per_second", "Tokens per second", ""),
)


def curves(steps: Sequence[StepPoint]) -> list[Curve]:
    drawn = []
    for name, title, spread in _CURVES:
        known = [one for one in steps if getattr(one, name) is not None]
        half = tuple(getattr(one, spread) or 0.0 for one in known) if spread else ()
        series = Series(name, tuple((float(one.step), getattr(one, name)) for one in known), half)
        drawn.append(Curve(name, title, spread, line_chart(title, [series], dots=len(known) < 60)))
    return drawn


def points(steps: Sequence[StepPoint]) -> list[dict[str, float | None]]:
    """What the page's script draws."""
    return [
        {"step": one.step, **{name: getattr(one, name) for name in ("reward", "reward_std", "kl", "entropy")}}
        | {"tokens_per_second": one.tokens_per_second}
        for one in steps
    ]


def drift(weeks: Sequence[RewardWeek]) -> Markup:
    """The mean reward by week, with its spread."""
    known = tuple((float(place), week.mean) for place, week in enumerate(weeks, 1))
    series = Series("mean reward", known, tuple(week.spread for week in weeks))
    return line_chart("Mean reward by week, with its spread", [series], x_label="week")


def spend(days: Sequence[tuple[date, float]]) -> Markup:
    """What the judge cost, by day."""
    series = Series("dollars", tuple((float(place), usd) for place, (_, usd) in enumerate(days, 1)))
    return line_chart("Cost of the judge by day, in dollars", [series], x_label="day")


FILTERS: Mapping[str, Callable[..., Any]] = {
    "number": number,
    "signed": signed,
    "dollars": dollars,
    "percent": percent,
    "moment": moment,
    "said_or_not": said_or_not,
    "duration": duration,
    "size": size,
}
GLOBALS: Mapping[str, Any] = {"NAVIGATION": NAVIGATION, "NOTHING": NOTHING, "counted": counted}
