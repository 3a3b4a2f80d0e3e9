"""evaluate: two checkpoints on the same held-out decisions, with intervals."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainer.cli.frame import database_of, run_command
from trainer.config.commands import EvaluateSettings

if TYPE_CHECKING:
    from trainer.evidence import Evaluation, GateDecision, Interval


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(
        _work,
        EvaluateSettings,
        argv,
        prog="evaluate.py",
        description="Compares two checkpoints blind on held-out windows, beside the base model and a script.\n"
        "Promotes nothing: the result is kept, and `promote.py` asks the gate with it.",
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
            # The untrained base of its own model is what a candidate is compared with where there is no incumbent.
            incumbent = None if (named.model, named.step) == (candidate.model, 0) else named.as_release()
        evaluation = await evaluate(database, settings, candidate.as_release(), incumbent, run_id=None)
        decision = rule(evaluation, settings.gate)
        if incumbent == used_now:
            await keep_ruling(database, evaluation, decision)
    if settings.output.json_output:
        import msgspec

        shown = {"ruling": decision.ruling, "reasons": decision.reasons, "evaluation": evaluation}
        print(msgspec.json.encode(shown).decode())
    else:
        show_evaluation(evaluation, decision)
    return 0


def show_evaluation(evaluation: Evaluation, decision: GateDecision | None = None) -> None:
    """The before/after table, then what the gate says of it."""
    from trainer.cli.tables import Column, show_table

    figures = evaluation.figures
    against = {comparison.against: comparison for comparison in evaluation.comparisons}
    columns = [
        Column("policy", [one.name for one in figures]),
        Column("", [one.role.value for one in figures], rank=1),
        Column("score", [told(one.score) for one in figures]),
        Column(
            "win rate over it", [told(against[one.role].win_rate) if one.role in against else "" for one in figures]
        ),
        Column("P&L a decision", [told(one.pnl) for one in figures], rank=2),
        Column("valid", [told(one.valid_rate) for one in figures], rank=3),
        Column("errors", [told(one.error_rate) for one in figures]),
    ]
    show_table(columns, sys.stdout)
    gain = evaluation.score_difference
    print(
        f"Score gain over the incumbent {told(gain)} on {gain.windows} held-out windows, "
        f"{evaluation.decision_points} decisions, {evaluation.samples} replies each; "
        f"95 % intervals over windows; judge: {evaluation.judge.judge}"
        f"{'' if evaluation.judge.is_llm else ' (offline, not an LLM)'}."
    )
    if decision is not None:
        print(f"Gate: {decision.ruling.value}: {decision.sentence}.")


def told(interval: Interval | None) -> str:
    """``0.62 [0.55, 0.70]``; the mean alone where there are too few windows for an interval."""
    if interval is None:
        return "-"
    if interval.low is None or interval.high is None:
        return f"{interval.mean:.2f}"
    return f"{interval.mean:.2f} [{interval.low:.2f}, {interval.high:.2f}]"
