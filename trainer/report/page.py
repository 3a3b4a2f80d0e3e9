"""Puts a run's facts into one HTML page that needs nothing else: no network, no script, opens from disk."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from data_bridge.redaction import redact
from data_bridge.window_ids import is_held_out
from trainer.evaluation import Comparison, Evaluation, ExampleDecision, PolicyFigures, Role
from trainer.report.charts import IntervalRow, Series, bars, interval_chart, line_chart, number, scatter
from trainer.report.facts import RunFacts
from trainer.statistics import Interval

if TYPE_CHECKING:
    from jinja2 import Template

_ORDER = (Role.CANDIDATE, Role.INCUMBENT, Role.BASE, Role.BASELINE)
_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    svg: Markup


@dataclass(frozen=True, slots=True)
class Cell:
    mean: str
    interval: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    role: str
    name: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Example:
    title: str
    decision: ExampleDecision


def render(facts: RunFacts) -> str:
    """The page. Pure: the same facts give the same page."""
    evaluation = facts.evaluation
    share = float(facts.settings.get("held_out_share", 0.1))
    trained = [window for window in facts.windows if window.steps]
    html = _template().render(
        facts=facts,
        headline=headline(facts),
        notices=list(_notices(facts)),
        duration=_duration(facts),
        evaluation=evaluation,
        figures=figures_table(evaluation) if evaluation else [],
        evaluation_charts=list(_evaluation_charts(evaluation)) if evaluation else [],
        training_charts=list(_training_charts(facts)),
        judge_charts=list(_judge_charts(facts)),
        exclusions_chart=bars("Trajectories left out, by reason", list(facts.exclusions.items())),
        examples=list(_examples(evaluation)) if evaluation else [],
        trained_trajectories=sum(step.trajectories for step in facts.steps),
        trained_groups=sum(step.groups for step in facts.steps),
        trained_tokens=sum(step.trainable_tokens for step in facts.steps),
        held_out_trained=[window.window_id for window in trained if is_held_out(window.window_id, share)],
        style=Markup((_HERE / "style.css").read_text(encoding="utf-8")),
    )
    return redact(html)


def write(facts: RunFacts, path: Path) -> Path:
    """Write the page to ``path``, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(render(facts), encoding="utf-8")
    os.replace(temporary, path)
    return path


def headline(facts: RunFacts) -> str:
    """The verdict in a few words."""
    name = facts.evaluation.candidate.name if facts.evaluation is not None else facts.model
    if facts.promoted_as:
        return f"{name} was promoted"
    if facts.ruling is not None:
        return {
            "promote": f"{name} passed the gate",
            "refuse": f"{name} was refused",
            "undecided": f"{name}: undecided, not promoted",
        }[facts.ruling]
    if facts.state == "done":
        return f"{name} was trained, not evaluated"
    return f"The run of {name} is {facts.state}"


def figures_table(evaluation: Evaluation) -> list[Row]:
    """One row a policy; the last two columns compare the candidate with it."""
    rows = []
    for role in _ORDER:
        figures = evaluation.of(role)
        if figures is None:
            continue
        comparison = evaluation.against(role)
        rows.append(Row(role.value, figures.name, (*_own_cells(figures), *_comparison_cells(comparison))))
    return rows


def _own_cells(figures: PolicyFigures) -> tuple[Cell, ...]:
    return (
        _cell(figures.error_rate, percent=True),
        _cell(figures.valid_rate, percent=True),
        _cell(figures.score),
        _cell(figures.pnl),
    )


def _comparison_cells(comparison: Comparison | None) -> tuple[Cell, ...]:
    if comparison is None:
        return (Cell("n/a"), Cell("n/a"))
    return (_cell(comparison.win_rate, percent=True), _cell(comparison.score_difference))


def _cell(interval: Interval | None, *, percent: bool = False) -> Cell:
    if interval is None:
        return Cell("n/a")
    if interval.low is None or interval.high is None:
        return Cell(number(interval.mean, percent))
    return Cell(number(interval.mean, percent), f"{number(interval.low, percent)} to {number(interval.high, percent)}")


def _evaluation_charts(evaluation: Evaluation) -> Iterator[Chart]:
    measured: Sequence[tuple[str, str, bool]] = (
        ("Error rate (lower is better)", "error_rate", True),
        ("Judge's score", "score", False),
        ("Realised P&L of a decision", "pnl", False),
    )
    for title, name, percent in measured:
        rows = [
            IntervalRow(role.value, interval.mean, interval.low, interval.high, _tone(role))
            for role in _ORDER
            if (figures := evaluation.of(role)) is not None and (interval := getattr(figures, name)) is not None
        ]
        if rows:
            yield Chart(title, interval_chart(title, rows, percent=percent))
    points = [
        (window.pnl[role], window.scores[role])
        for window in evaluation.windows
        for role in window.scores
        if role in window.pnl
    ]
    if points:
        title = "Judge's score against P&L, a dot a window and policy"
        yield Chart(title, scatter(title, points, "P&L", "score", diagonal=False))


def _tone(role: Role) -> str:
    return role.value if role in (Role.CANDIDATE, Role.INCUMBENT) else "other"


_CURVES: Sequence[tuple[str, tuple[str, ...]]] = (
    ("Reward (band: standard deviation)", ("reward",)),
    ("Loss", ("loss",)),
    ("KL from the base model, and from the policy that played", ("kl", "kl_behaviour")),
    ("Entropy of a token", ("entropy",)),
    ("Importance ratio", ("ratio", "ratio_max")),
    ("Effective sample size, share of tokens", ("effective_sample_size",)),
    ("Share of clipped tokens", ("clip_share",)),
    ("Gradient norm", ("grad_norm",)),
)


def _training_charts(facts: RunFacts) -> Iterator[Chart]:
    for title, names in _CURVES:
        series = []
        for name in names:
            found = [(step, step.metrics[name]) for step in facts.steps if name in step.metrics]
            if not found:
                continue
            spread = tuple(step.metrics.get("reward_std", 0.0) for step, _ in found) if name == "reward" else ()
            series.append(Series(name, tuple((float(step.step), value) for step, value in found), spread))
        if series:
            yield Chart(title, line_chart(title, series))
    histograms = [step.histogram for step in facts.steps if step.histogram]
    if histograms:
        edges = histograms[0]["edges"]
        counts = [sum(column) for column in zip(*(one["counts"] for one in histograms), strict=True)]
        labels = [f"below {edges[0]:g}"]
        labels += [f"{low:g} to {high:g}" for low, high in pairwise(edges)]
        title = "Advantages of all trajectories"
        yield Chart(title, bars(title, list(zip([*labels, f"above {edges[-1]:g}"], counts, strict=True))))


def _judge_charts(facts: RunFacts) -> Iterator[Chart]:
    if facts.agreement is not None:
        title = "The same trajectory in two orders"
        pairs = facts.agreement.pairs[:2000]
        yield Chart(title, scatter(title, pairs, "score in one order", "in the other", diagonal=True))


def _examples(evaluation: Evaluation) -> Iterator[Example]:
    if evaluation.best is not None:
        yield Example("Best: most gained over the incumbent", evaluation.best)
    if evaluation.worst is not None:
        yield Example("Worst: most lost", evaluation.worst)


def _notices(facts: RunFacts) -> Iterator[str]:
    """Every stand-in says that it is one."""
    if facts.judge and not facts.judge_is_llm:
        yield (
            "The judge of this run was the offline yardstick (realised P&L in the window, risk and valid actions), "
            "not an LLM. Its scores reward luck as well as skill."
        )
    if facts.settings.get("database_url") is None:
        yield "The agents of this run played the simulated market on the embedded database, not a real game."
    if facts.backend == "cpu":
        yield f"The model was trained on the CPU: {facts.base_model}."


def _duration(facts: RunFacts) -> str:
    if facts.finished_at is None:
        return ""
    seconds = int((facts.finished_at - facts.started_at).total_seconds())
    return f"took {seconds // 60} min {seconds % 60} s" if seconds >= 60 else f"took {seconds} s"


@cache
def _template() -> Template:
    from jinja2 import Environment, FileSystemLoader

    environment = Environment(loader=FileSystemLoader(_HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template("page.html.jinja")
