"""Renders a run's facts as one self-contained HTML page: no network, no script, opens from disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from data_bridge.errors import ConfigurationError
from data_bridge.redaction import page_text, redacted
from trainer.evidence import (
    Comparison,
    Evaluation,
    ExampleDecision,
    ExampleReply,
    Interval,
    PolicyFigures,
    Reader,
    ReadingFigures,
    ReadingTest,
    Role,
)
from trainer.ledger.read.types import RunFacts, WindowFacts
from trainer.progress import counted
from trainer.report import pictures
from trainer.report.drawing import number
from trainer.report.verdict import duration, headline, notices, tone

if TYPE_CHECKING:
    from jinja2 import Template

_HERE = Path(__file__).parent
_MAX_WINDOWS = 500
"""Windows shown one by one; a longer run shows the newest."""
_NONE = "\N{EN DASH}"
_NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Cell:
    mean: str
    interval: str = ""


@dataclass(frozen=True, slots=True)
class FigureRow:
    """One measure, a cell for each policy."""

    name: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Example:
    title: str
    decision: ExampleDecision
    shown: tuple[ExampleReply, ...]
    """For each policy, the reply whose score is nearest to the mean of its replies."""


@dataclass(frozen=True, slots=True)
class WindowRow:
    """One window: what it trained, or what was measured on it."""

    facts: WindowFacts
    anchor: str
    scores: Mapping[str, float]
    """Score by policy, for an evaluated window."""
    consulted: tuple[str, ...] = ()
    """Who was evaluated on it, in any run."""

    @property
    def gain(self) -> float | None:
        """The candidate's gain over the incumbent."""
        both = (self.scores.get(Role.CANDIDATE), self.scores.get(Role.INCUMBENT))
        return None if both[0] is None or both[1] is None else both[0] - both[1]


def render(facts: RunFacts) -> str:
    """The page. Pure: the same facts give the same page."""
    facts = redacted(facts, page_text)
    evaluation = facts.evaluation
    rows = window_rows(facts)
    return _template().render(
        facts=facts,
        headline=headline(facts),
        tone=tone(facts),
        gate=pictures.gate_picture(facts),
        notices=list(notices(facts)),
        duration=duration(facts),
        evaluation=evaluation,
        policies=_policies(evaluation) if evaluation else [],
        figures=figures_table(evaluation) if evaluation else [],
        reading=reading_table(evaluation.reading) if evaluation and evaluation.reading else [],
        columns=() if evaluation is None or evaluation.reading is None else evaluation.reading.columns,
        evaluation_pictures=list(pictures.evaluation_pictures(evaluation)) if evaluation else [],
        day_pictures=list(pictures.day_pictures(facts)),
        training_pictures=list(pictures.training_pictures(facts)),
        judge_pictures=list(pictures.judge_pictures(facts)),
        exclusions=pictures.exclusions_picture(facts),
        calendar=pictures.calendar_picture(facts),
        examples=list(_examples(evaluation)) if evaluation else [],
        windows=rows[-_MAX_WINDOWS:],
        windows_not_shown=max(0, len(rows) - _MAX_WINDOWS),
        windows_trained=sum(bool(window.steps) for window in facts.windows),
        anchor=pictures.anchor,
        number=number,
        counted=counted,
        style=Markup((_HERE / "style.css").read_text(encoding="utf-8")),
    )


def write(facts: RunFacts, path: Path) -> Path:
    """Write the page to ``path`` atomically."""
    html = render(facts)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(html, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        said = error.strerror or type(error).__name__
        raise ConfigurationError(
            f"The report cannot be written to {path} ({said}): `report.py --output FILE` writes it elsewhere."
        ) from error
    return path


def _policies(evaluation: Evaluation) -> list[PolicyFigures]:
    return [figures for role in Role if (figures := evaluation.of(role)) is not None]


def figures_table(evaluation: Evaluation) -> list[FigureRow]:
    """One row per measure, one column per policy: the candidate first, then the others."""
    policies = _policies(evaluation)
    compared = [evaluation.against(figures.role) for figures in policies]
    own: Sequence[tuple[str, Callable[[PolicyFigures], Interval | None], bool]] = (
        ("judge's score", lambda figures: figures.score, False),
        (f"{evaluation.measure} per decision", lambda figures: figures.pnl, False),
        ("valid actions", lambda figures: figures.valid_rate, True),
        ("score of the valid ones", lambda figures: figures.score_if_valid, False),
        (f"{evaluation.measure} of the valid ones", lambda figures: figures.pnl_if_valid, False),
        ("error rate", lambda figures: figures.error_rate, True),
        ("stopped by the guard", lambda figures: figures.blocked_rate, True),
        ("characters per reply", lambda figures: figures.reply_length, False),
    )
    paired: Sequence[tuple[str, Callable[[Comparison], Interval | None], bool]] = (
        ("candidate's gain over it", lambda comparison: comparison.score_difference, False),
        ("candidate wins", lambda comparison: comparison.win_rate, True),
        (f"candidate's {evaluation.measure} over it", lambda comparison: comparison.pnl_difference, False),
    )
    rows = [FigureRow(name, tuple(_cell(of(one), percent) for one in policies)) for name, of, percent in own]
    rows += [
        FigureRow(name, tuple(Cell(_NONE) if one is None else _cell(of(one), percent) for one in compared))
        for name, of, percent in paired
    ]
    return [*rows, FigureRow("KL from the base model", tuple(_kl_cell(one) for one in policies))]


def reading_table(test: ReadingTest) -> list[FigureRow]:
    """One row per reader and measure, one column per kind of questions."""
    measures: Sequence[tuple[str, Callable[[ReadingFigures], Interval | None]]] = (
        ("valid", lambda figures: figures.valid),
        ("right of the valid", lambda figures: figures.right_of_valid),
        ("valid and right", lambda figures: figures.both),
    )
    return [
        FigureRow(
            f"{reader.value}: {name}",
            tuple(
                Cell(_NONE) if (figures := test.of(reader, column)) is None else _cell(of(figures), percent=True)
                for column in test.columns
            ),
        )
        for reader in Reader
        for name, of in measures
    ]


def _kl_cell(figures: PolicyFigures) -> Cell:
    """KL is a guard on the candidate; it is not measured for the others."""
    if figures.kl_from_base is not None:
        return Cell(number(figures.kl_from_base))
    return Cell(_NOT_MEASURED if figures.role is Role.CANDIDATE else _NONE)


def _cell(interval: Interval | None, percent: bool) -> Cell:
    if interval is None:
        return Cell(_NOT_MEASURED)
    mean = number(interval.mean, percent=percent)
    if interval.low is None or interval.high is None:
        return Cell(mean)
    low, high = number(interval.low, percent=percent), number(interval.high, percent=percent)
    return Cell(mean, f"{low.removesuffix('%')} to {high}")


def window_rows(facts: RunFacts) -> list[WindowRow]:
    """Every window that the run used or was evaluated on, in order."""
    evaluated = {window.window_id: window for window in facts.evaluation.windows} if facts.evaluation else {}
    met = {window.window_id: window for window in facts.windows}
    rows = []
    for window_id in sorted(met.keys() | evaluated.keys()):
        scores = evaluated[window_id].scores if window_id in evaluated else {}
        rows.append(
            WindowRow(
                met.get(window_id) or WindowFacts(window_id, "held_out", 0, (), None, {}),
                pictures.anchor(window_id),
                {role.value: scores[role] for role in Role if role in scores},
                facts.consulted.get(window_id, ()),
            )
        )
    return rows


def _examples(evaluation: Evaluation) -> Iterator[Example]:
    best, worst = evaluation.best, evaluation.worst
    if best is not None:
        yield Example("Best: largest gain over the incumbent", best, tuple(_typical(best.replies)))
    if worst is not None and worst != best:
        title = "Worst: largest loss" if worst.difference < 0 else "Worst: smallest gain"
        yield Example(title, worst, tuple(_typical(worst.replies)))


def _typical(replies: Sequence[ExampleReply]) -> Iterator[ExampleReply]:
    for role in pictures.ROLES:
        own = [reply for reply in replies if reply.role == role]
        if own:
            mean = sum(reply.score for reply in own) / len(own)
            yield min(own, key=lambda reply: abs(reply.score - mean))


@cache
def _template() -> Template:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    return environment.get_template("page.html.jinja")
