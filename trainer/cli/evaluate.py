"""evaluate: two checkpoints on the same held-out decisions, with intervals."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainer.cli.frame import database_of, run_command
from trainer.cli.output import alive, say, say_json
from trainer.config.commands import EvaluateSettings
from trainer.progress import counted

if TYPE_CHECKING:
    from trainer.evidence import Evaluation, GateDecision, Interval


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(
        _work,
        EvaluateSettings,
        argv,
        prog="evaluate.py",
        description="Compares two checkpoints blind on held-out windows, together with the base model and a script.\n"
        "Promotes nothing: the result is stored, and `promote.py` takes it to the gate.",
    )


async def _work(settings: EvaluateSettings) -> int:
    from trainer.config.derived import judged_by, keys_of
    from trainer.judge.open import refuse_unusable
    from trainer.ledger.checkpoints import named_checkpoint
    from trainer.ledger.evaluations import keep_ruling
    from trainer.pipeline import evaluate, incumbent_of
    from trainer.promote.gate import rule

    judge = judged_by(settings.judge, settings.evaluation)
    refuse_unusable(judge, keys_of(settings.evaluation, settings.secrets))
    async with database_of(settings, migrate=True) as database:
        candidate = await named_checkpoint(database, settings.compared.candidate, settings.model.model)
        used_now = await incumbent_of(database, candidate.model)
        incumbent = used_now
        if settings.compared.incumbent is not None:
            named = await named_checkpoint(database, settings.compared.incumbent, settings.model.model)
            # Without an incumbent, a candidate is compared with the untrained base of its own model.
            incumbent = None if (named.model, named.step) == (candidate.model, 0) else named.as_release()
        with alive(f"evaluating {candidate.name}", quiet=settings.output.json_output):
            evaluation = await evaluate(database, settings, candidate.as_release(), incumbent, run_id=None)
        decision = rule(evaluation, settings.gate)
        if incumbent == used_now:
            await keep_ruling(database, evaluation, decision)
    if settings.output.json_output:
        say_json({"ruling": decision.ruling, "reasons": decision.reasons, "evaluation": evaluation})
    else:
        show_evaluation(evaluation, decision)
    return 0


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
        Column("P&L per decision", [with_interval(one.pnl) for one in figures], rank=2),
        Column("valid", [with_interval(one.valid_rate) for one in figures], rank=3),
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
    if decision is not None:
        say(f"Gate: {decision.ruling.value}: {decision.sentence}.")


def with_interval(interval: Interval | None) -> str:
    """``0.62 [0.55, 0.70]``; only the mean if there are too few windows for an interval."""
    if interval is None:
        return "-"
    if interval.low is None or interval.high is None:
        return f"{interval.mean:.2f}"
    return f"{interval.mean:.2f} [{interval.low:.2f}, {interval.high:.2f}]"
