"""evaluate: two checkpoints on the same held-out decisions, with intervals."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainer.cli.frame import database_of, run_command
from trainer.cli.output import alive, say, say_json
from trainer.config.commands import EvaluateSettings
from trainer.progress import Progress, counted

if TYPE_CHECKING:
    from trainer.evidence import Evaluation, GateDecision, Interval, ReadingTest


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(
        _work,
        EvaluateSettings,
        argv,
        prog="evaluate.py",
        description="Compares two checkpoints blind on held-out windows, together with the base model and scripts.\n"
        "Promotes nothing: the result is stored, and `promote.py` takes it to the gate.",
    )


async def _work(settings: EvaluateSettings) -> int:
    from trainer.config.derived import judged_by, keys_of
    from trainer.judge.open import refuse_unusable
    from trainer.ledger.checkpoints import named_checkpoint
    from trainer.ledger.releases import incumbent_of
    from trainer.pipeline import evaluate
    from trainer.promote.ruling import rule_on
    from trainer.run.gone import unless_gone
    from trainer.types import release_of

    judge = judged_by(settings.judge, settings.evaluation)
    refuse_unusable(judge, keys_of(settings.evaluation, settings.secrets))
    progress = Progress()
    async with database_of(settings, migrate=True) as database, unless_gone(database, "evaluate.py", progress):
        candidate = await named_checkpoint(database, settings.compared.candidate, settings.model.model)
        used_now = await incumbent_of(database, candidate.model)
        incumbent = used_now
        if settings.compared.incumbent is not None:
            named = await named_checkpoint(database, settings.compared.incumbent, settings.model.model)
            # Without an incumbent, a candidate is compared with the untrained base of its own model.
            incumbent = None if (named.model, named.step) == (candidate.model, 0) else named.as_release()
            if used_now is not None and named == used_now.checkpoint:
                incumbent = used_now
        quiet = settings.output.json_output
        release = release_of(candidate, used_now, settings.lessons.lessons)
        progress.doing("evaluating", release.name)
        with alive(f"evaluating {release.name}", quiet=quiet):
            evaluation = await evaluate(
                database, settings, release, incumbent, run_id=None, say=_ignore if quiet else _progress
            )
        # Only a comparison with what the agents use is a matter for the gate; any other is for information.
        decision = await rule_on(database, evaluation, settings.gate) if incumbent == used_now else None
    if settings.output.json_output:
        ruling = {"ruling": decision.ruling, "reasons": decision.reasons} if decision is not None else {}
        say_json({**ruling, "evaluation": evaluation})
    else:
        show_evaluation(evaluation, decision)
    return 0


def _progress(line: str) -> None:
    say(line, to=sys.stderr)


def _ignore(line: str) -> None: ...


def show_evaluation(evaluation: Evaluation, decision: GateDecision | None = None) -> None:
    """Print the before/after table, then the gate's decision."""
    from trainer.cli.tables import Column, show_table

    figures = evaluation.figures
    against = {comparison.against: comparison for comparison in evaluation.comparisons}
    columns = [
        Column("policy", [one.name for one in figures]),
        Column("", [one.role.value for one in figures], rank=1),
        Column("score", [with_interval(one.score) for one in figures]),
        Column(
            "candidate wins",
            [with_interval(against[one.role].win_rate) if one.role in against else "" for one in figures],
        ),
        Column(f"{evaluation.measure} per decision", [with_interval(one.pnl) for one in figures], rank=2),
        Column("valid", [with_interval(one.valid_rate) for one in figures]),
        Column("score of valid", [with_interval(one.score_if_valid) for one in figures], rank=3),
        Column("errors", [with_interval(one.error_rate) for one in figures]),
    ]
    show_table(columns, sys.stdout)
    gain = evaluation.score_difference
    say(
        f"Score gain over the incumbent {with_interval(gain)} on {counted(gain.windows, 'held-out window')}, "
        f"{counted(evaluation.decision_points, 'decision')}, {counted(evaluation.samples, 'reply')} each; "
        f"95% intervals over windows; judge: {evaluation.judge.judge}"
        f"{'' if evaluation.judge.is_llm else ' (offline, not an LLM)'}."
    )
    for role, reason in evaluation.absent.items():
        say(f"Not everywhere compared: {role.value}: {reason}.")
    narrowing = evaluation.narrowing
    if narrowing is not None and narrowing.candidate is not None and narrowing.base is not None:
        say(
            f"Validity on {narrowing.where} ({narrowing.questions}): {narrowing.candidate:.2f}, "
            f"the base model's {narrowing.base:.2f}"
            + (
                f"; greedily {narrowing.greedy_candidate:.2f} and {narrowing.greedy_base:.2f}."
                if narrowing.greedy_candidate is not None and narrowing.greedy_base is not None
                else "."
            )
        )
    if evaluation.reading is not None:
        _show_reading(evaluation.reading)
    if decision is not None:
        say(f"Gate: {decision.ruling.value}: {decision.sentence}.")


def _show_reading(test: ReadingTest) -> None:
    """The table of questions, then the headline."""
    from trainer.cli.tables import Column, show_table
    from trainer.evidence import Reader

    rows = [figures for column in test.columns for reader in Reader if (figures := test.of(reader, column)) is not None]
    say("", f"Questions with a known answer; sampled at temperature {test.temperature:g}; 95% intervals:")
    columns = [
        Column("questions", [f"{one.column} ({one.questions})" for one in rows]),
        Column("policy", [one.reader.value for one in rows]),
        Column("valid", [with_interval(one.valid) for one in rows]),
        Column("right of the valid", [with_interval(one.right_of_valid) for one in rows]),
        Column("valid and right", [with_interval(one.both) for one in rows]),
    ]
    show_table(columns, sys.stdout)
    say(f"{test.headline}.")


def with_interval(interval: Interval | None) -> str:
    """``0.62 [0.55, 0.70]``; only the mean if there are too few windows for an interval."""
    return "-" if interval is None else interval.told()
