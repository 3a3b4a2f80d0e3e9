"""Selects a run's charts: from its facts to titled charts, section by section. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from trainer.evidence import Evaluation, Role
from trainer.ledger.read.types import RunFacts, WindowFacts
from trainer.report import charts
from trainer.report.charts import CalendarHour, IntervalRow, Series
from trainer.statistics.intervals import spearman

ROLES = tuple(Role)
_MAX_DOTS = 2000


@dataclass(frozen=True, slots=True)
class Picture:
    title: str
    svg: Markup
    note: str = ""


def anchor(window_id: str) -> str:
    """The HTML id of a window in the page."""
    return f"window-{window_id}"


def gate_picture(facts: RunFacts) -> Picture | None:
    """What the gate decided on: the score gain over each other policy, and the required gain."""
    if facts.evaluation is None:
        return None
    wanted = float(facts.settings.get("min_gain", 0.0))
    rows = [
        IntervalRow(comparison.against.value, gain.mean, gain.low, gain.high, _tone(comparison.against))
        for comparison in facts.evaluation.comparisons
        for gain in [comparison.score_difference]
    ]
    title = "Score gain over …"
    note = f"The dashed line is the required gain over the incumbent ({wanted:g})."
    if any(row.ends() for row in rows):
        note += " Bars are 95% intervals."
    return Picture(title, charts.interval_chart(title, rows, rule=wanted), note)


def evaluation_pictures(evaluation: Evaluation) -> Iterator[Picture]:
    measured: Sequence[tuple[str, str, bool]] = (
        ("Judge's score", "score", False),
        (f"Realised {evaluation.measure} per decision", "pnl", False),
        ("Error rate (lower is better)", "error_rate", True),
    )
    for title, name, percent in measured:
        rows = [
            IntervalRow(role.value, interval.mean, interval.low, interval.high, _tone(role))
            for role in ROLES
            if (figures := evaluation.of(role)) is not None and (interval := getattr(figures, name)) is not None
        ]
        if rows:
            yield Picture(title, charts.interval_chart(title, rows, percent=percent))
    differences = {
        window.window_id: window.scores[Role.CANDIDATE] - window.scores[Role.INCUMBENT]
        for window in evaluation.windows
        if Role.CANDIDATE in window.scores and Role.INCUMBENT in window.scores
    }
    if differences:
        title = "Gain over the incumbent, window by window"
        targets = {window_id: anchor(window_id) for window_id in differences}
        won = sum(value > 0 for value in differences.values())
        lost = sum(value < 0 for value in differences.values())
        note = (
            f"Windows: {won} better, {lost} worse, {len(differences) - won - lost} equal. A column links to its window."
        )
        yield Picture(title, charts.gains(title, differences, targets=targets), note)
    points = [
        (window.pnl[role], window.scores[role])
        for window in evaluation.windows
        for role in window.scores
        if role in window.pnl
    ]
    if points:
        title = f"Judge's score against {evaluation.measure}, held-out windows"
        note = f"One dot per window and policy.{_correlation(evaluation.score_pnl_correlation, 'all replies')}"
        yield Picture(title, charts.scatter(title, points, evaluation.measure, "score"), note)


_CURVES: Sequence[tuple[str, Sequence[tuple[str, str]]]] = (
    ("Reward (band: standard deviation)", (("reward", "reward"),)),
    ("Reward spread within a group", (("reward_spread", "spread"),)),
    ("Loss", (("loss", "loss"),)),
    ("KL", (("kl", "from the base model"), ("kl_behaviour", "from the policy that played"))),
    ("Entropy per token", (("entropy", "entropy"),)),
    ("Importance ratio", (("ratio", "mean"), ("ratio_max", "largest"))),
    ("Effective sample size, share of tokens", (("effective_sample_size", "share"),)),
    ("Share of clipped tokens", (("clip_share", "share"),)),
    ("Gradient norm", (("grad_norm", "norm"),)),
)


def training_pictures(facts: RunFacts) -> Iterator[Picture]:
    for title, names in _CURVES:
        series = []
        for name, label in names:
            found = [step for step in facts.steps if name in step.metrics]
            spread = tuple(step.metrics.get("reward_std", 0.0) for step in found) if name == "reward" else ()
            points = tuple((float(step.step), step.metrics[name]) for step in found)
            if points:
                series.append(Series(label, points, spread))
        if series:
            yield Picture(title, charts.line_chart(title, series))
    yield from _advantages(facts)


def _advantages(facts: RunFacts) -> Iterator[Picture]:
    """All steps together; a step whose bins differ from the newest step's is left out."""
    histograms = [step.histogram for step in facts.steps if step.histogram]
    if not histograms:
        return
    edges = histograms[-1]["edges"]
    same = [one["counts"] for one in histograms if one["edges"] == edges]
    counts = [sum(column) for column in zip(*same, strict=True)]
    labels = [f"below {edges[0]:g}"]
    labels += [f"{low:g} to {high:g}" for low, high in pairwise(edges)]
    title = "Advantages, number of trajectories"
    yield Picture(title, charts.bars(title, list(zip([*labels, f"above {edges[-1]:g}"], counts, strict=True))))


def day_pictures(facts: RunFacts) -> Iterator[Picture]:
    """The closed loop: every day is played with the checkpoint from the days before."""
    valid = tuple((float(day.day), day.valid_share) for day in facts.days if day.valid_share is not None)
    if valid:
        title = "Valid actions while playing, by day"
        yield Picture(title, charts.line_chart(title, [Series("valid actions", valid)], x_label="day", percent=True))
    made = tuple((float(day.day), day.mean_pnl) for day in facts.days if day.mean_pnl is not None)
    if made:
        measure = "P&L" if facts.evaluation is None else facts.evaluation.measure
        title = f"{measure} per agent and window while playing, by day"
        yield Picture(title, charts.line_chart(title, [Series(measure, made)], x_label="day"))


def judge_pictures(facts: RunFacts) -> Iterator[Picture]:
    if facts.scored_pnl:
        title = "Judge's score against P&L, trained trajectories"
        points = [(one.pnl, one.score) for one in facts.scored_pnl]
        correlation = spearman([x for x, _ in points], [y for _, y in points])
        sample = f"{len(points)} of {facts.trained_trajectories} trained trajectories."
        note = sample + _correlation(correlation, "them")
        yield Picture(title, charts.scatter(title, points, "P&L in the window", "score"), note)
    if facts.agreement is not None:
        title = "The same trajectory in two orders"
        note = (
            f"Shown in another order, a score moves by {facts.agreement.mean_difference:.3f} on average and "
            f"{facts.agreement.flip_share:.1%} of pairs change rank."
        )
        pairs = facts.agreement.pairs[:_MAX_DOTS]
        yield Picture(title, charts.scatter(title, pairs, "score in one order", "in another", diagonal=True), note)
    if facts.cost_usd > 0:
        title = "Dollars spent on judging"
        curve = tuple((float(calls), usd) for calls, usd in facts.cost_curve)
        yield Picture(title, charts.line_chart(title, [Series("dollars", curve)], x_label="calls", dots=False))


def exclusions_picture(facts: RunFacts) -> Picture:
    title = "Trajectories left out, by reason"
    return Picture(title, charts.bars(title, list(facts.exclusions.items())))


def calendar_picture(facts: RunFacts) -> Picture:
    """Every window that the run used or was evaluated on."""
    evaluated = {window.window_id for window in facts.evaluation.windows} if facts.evaluation else set()
    hours = [_hour(window, window.window_id in evaluated) for window in facts.windows]
    met = {window.window_id for window in facts.windows}
    hours += [
        CalendarHour(one, "held-out", 1.0, f"{one}: held out, evaluated on", anchor(one)) for one in evaluated - met
    ]
    title = "Windows by day and hour (UTC)"
    note = "Blue: trained, darker for a higher mean score. Framed: held out. Grey: not used."
    return Picture(title, charts.calendar(title, hours), note)


def _hour(window: WindowFacts, is_evaluated: bool) -> CalendarHour:
    target = anchor(window.window_id)
    if window.mean_score is not None:
        steps = ", ".join(map(str, window.steps))
        said = f"{window.window_id}: trained in step {steps}, mean score {window.mean_score:.3f}"
        return CalendarHour(window.window_id, "trained", 0.25 + 0.75 * window.mean_score, said, target)
    if is_evaluated or window.state == "held_out":
        said = f"{window.window_id}: held out{', evaluated on' if is_evaluated else ''}"
        return CalendarHour(window.window_id, "held-out", 1.0 if is_evaluated else 0.4, said, target)
    return CalendarHour(window.window_id, "unused", 1.0, f"{window.window_id}: {window.state}", target)


def _tone(role: Role) -> str:
    return role.value if role in (Role.CANDIDATE, Role.INCUMBENT) else "other"


def _correlation(value: float | None, over: str) -> str:
    return "" if value is None else f" Rank correlation over {over}: {value:+.2f}."
