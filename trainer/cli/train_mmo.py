"""train_mmo: from logged or simulated windows to a trained, evaluated and, if it is better, promoted checkpoint."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainer.cli.frame import EXIT_CODES, database_of, has_database, run_command
from trainer.cli.output import say, say_json
from trainer.config.commands import TrainSettings
from trainer.progress import counted

if TYPE_CHECKING:
    from data_bridge.database import Database
    from trainer.progress import View
    from trainer.run.after_training import AfterTraining
    from trainer.run.training_run import TrainingRun
    from trainer.train.backends.choose import Choice

_DESCRIPTION = """Train the agents' model on their decisions and what really happened afterwards.

Without DATABASE_URL the whole loop runs on this machine: agents of a simulated world play a day with the newest
checkpoint, the day is judged and trained on, the next day is played with the result. With DATABASE_URL (and
JUDGE_MODEL, and WANDB_API_KEY or a GPU) the same command trains on the game's own log. `--dry-run` shows what would
be done and what it would cost. After a crash or an interruption the same command resumes."""

_EPILOG = f"""examples:
  train_mmo.py                                     the closed loop on this machine
  train_mmo.py --dry-run                           windows, groups, tokens and cost; nothing is paid for or written
  train_mmo.py --max-cost 5 --lookback 14d         two weeks of the game's log, at most $5 for the judge
  train_mmo.py --backend cpu --judge outcome       no keys, no GPU

{EXIT_CODES}
A second trainer of the same model exits 2 and says who is training it."""

_TOKENS_OF_A_DECISION = 150
"""In the simulated market, as the judge sees it."""


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(work, TrainSettings, argv, prog="train_mmo.py", description=_DESCRIPTION, epilog=_EPILOG)


async def work(settings: TrainSettings) -> int:
    from trainer.judge.open import describe, identity_of
    from trainer.promote.publish import check_canary
    from trainer.run.leave_one_out import refuse_unknown_counterfactual
    from trainer.run.live_view import open_view
    from trainer.train.backends.choose import choose_backend, refuse_ignored
    from trainer.train.backends.transfer import check_init_from

    _check_settings(settings)
    choice = choose_backend(settings.backend, settings.model, settings.secrets.wandb_api_key)
    refuse_ignored(choice.name, settings.training)
    check_init_from(settings.training.init_from, settings.common.home, settings.model.model, choice.base_model)
    check_canary(choice.name, settings.promotion.canary)
    view = open_view(quiet=settings.output.json_output)
    try:
        if settings.run.dry_run and settings.run.simulate != "off" and not has_database(settings):
            refuse_unknown_counterfactual(settings, simulated=True)
            return await _dry_run(settings, None, True, None)  # a look creates no home
        async with database_of(settings, migrate=not settings.run.dry_run, existing=settings.run.dry_run) as database:
            simulated = settings.run.simulate == "on" or (settings.run.simulate == "auto" and database.is_embedded)
            refuse_unknown_counterfactual(settings, simulated=simulated)
            view.say(f"Database: {database.label}.")
            view.say(f"Backend: {choice}.")
            view.say(describe(identity_of(settings.judge, with_steps=settings.judge.step_credit)))
            await _check_certificate(settings, database, view)
            warning = None if simulated else await _why_not_promoted(settings, database)
            if warning is not None:
                view.say(f"warning: {warning}")
            if settings.run.dry_run:
                return await _dry_run(settings, database, simulated, warning)
            return await _train(settings, database, choice, view, simulated)
    finally:
        view.close()


def _check_settings(settings: TrainSettings) -> None:
    """Refuse unusable settings before anything is opened."""
    from trainer.config.derived import judged_by, keys_of
    from trainer.judge.open import refuse_unusable
    from trainer.train.selection import parse_rule
    from trainer.train.thresholds import parse_thresholds

    parse_rule(settings.groups.select)
    parse_thresholds(settings.training.stop_on)
    refuse_unusable(settings.judge, settings.secrets)
    judge, keys = judged_by(settings.judge, settings.evaluation), keys_of(settings.evaluation, settings.secrets)
    refuse_unusable(judge, keys)  # not after the training has been paid for


async def _check_certificate(settings: TrainSettings, database: Database, view: View) -> None:
    """Warn about a judge without a passing certificate; with ``--require-certified`` refuse it."""
    from data_bridge.errors import ConfigurationError
    from trainer.judge.open import identity_of
    from trainer.ledger.certificates import find

    identity = identity_of(settings.judge, with_steps=settings.judge.step_credit)
    certificate = await find(database, identity)
    fault = "has no certificate" if certificate is None else certificate.fault
    if certificate is not None and fault is None:
        view.say(
            f"The judge {identity.judge} passed its certification on {certificate.created_at:%Y-%m-%d}. "
            f"{certificate.gaps}".rstrip()
        )
        return
    if settings.run.require_certified:
        raise ConfigurationError(
            f"--require-certified: the judge {identity.judge} {fault}; run scripts/certify_judge.py, or choose another."
        )
    if identity.is_llm:
        view.say(f"warning: the judge {identity.judge} {fault}; scripts/certify_judge.py examines it.")


async def _why_not_promoted(settings: TrainSettings, database: Database) -> str | None:
    """Why nothing that this run trains can be promoted, if that is certain before it starts."""
    from data_bridge.worlds.load import load_world
    from trainer.config.derived import judged_by
    from trainer.ledger.simulation import newest_simulated
    from trainer.run.judge_reach import can_evaluate

    if not settings.run.promote:
        return None
    judge, world = judged_by(settings.judge, settings.evaluation), load_world(settings.windows.world)
    if can_evaluate(judge, world, is_simulated=await newest_simulated(database) is not None):
        return None
    return (
        "nothing that this run trains can be promoted: the offline judge evaluates only the simulated market, where "
        "the result of another decision is known; set EVAL_JUDGE_MODEL or JUDGE_MODEL, or pass --no-promote."
    )


async def _dry_run(settings: TrainSettings, database: Database | None, simulated: bool, warning: str | None) -> int:
    from trainer.ledger.runs import Ledger, has_ledger
    from trainer.run.train import plan_log, summary_of

    if simulated or database is None:
        _show(settings, _simulated_plan(settings), "Dry run: nothing was played, paid for or written.")
        return 0
    plan = await plan_log(settings, database, Ledger(database) if await has_ledger(database) else None)
    values = summary_of(plan)
    if settings.output.json_output:
        values["warnings"] = [] if warning is None else [warning]
    _show(settings, values, "Dry run: nothing was paid for or written.")
    return 0


async def _train(settings: TrainSettings, database: Database, choice: Choice, view: View, simulated: bool) -> int:
    from trainer.run.train import train

    run, result = await train(settings, database, choice.base_model, view, simulated=simulated)
    _show_run(settings, run, result)
    if result.refusal is not None:
        raise result.refusal
    return 0


def _simulated_plan(settings: TrainSettings) -> dict[str, object]:
    """What the closed loop would play."""
    from trainer.judge.cost import estimate

    windows = settings.run.iterations * settings.run.windows_per_iteration
    groups = windows * -(-settings.market.agents // settings.groups.max_group)
    trajectories = windows * settings.market.agents
    decisions = trajectories * settings.market.decisions
    scored = decisions if settings.judge.step_credit else 0
    cost = estimate(groups, decisions * _TOKENS_OF_A_DECISION, settings.judge, scored_decisions=scored)
    return {
        "days": settings.run.iterations,
        "windows": windows,
        "evaluation_windows": settings.windows.eval_windows if settings.windows.held_out_share > 0 else 0,
        "groups": groups,
        "trajectories": trajectories,
        "judge_calls": cost.calls,
        "judge_tokens": cost.prompt_tokens + cost.completion_tokens,
        "estimated_cost_usd": cost.usd,
    }


def _show(settings: TrainSettings, values: Mapping[str, Any], closing: str) -> None:
    if settings.output.json_output:
        say_json(values)
        return
    for name, value in values.items():
        say(f"{name.replace('_', ' '):<20} {_shown(value)}")
    say(closing)


def _show_run(settings: TrainSettings, run: TrainingRun, after: AfterTraining) -> None:
    if settings.output.json_output:
        say_json({"run": run.run_id, **run.full_summary, **after.summary})
        return
    progress = run.progress
    say(
        f"Run {run.run_id}: {counted(progress.steps, 'step')}, {counted(progress.trainable_tokens, 'token')}, "
        f"{counted(run.summary['groups_judged'], 'group')} judged for ${progress.cost_usd:.2f}; "
        f"the newest checkpoint is {settings.model.model}@step{progress.step}."
    )
    if run.summary.get("left_out"):
        say(f"Left out: {_shown(run.summary['left_out'])}.")
    if after.considered is not None:
        from trainer.cli.evaluate import show_evaluation

        say("")
        show_evaluation(after.considered.evaluation, after.considered.decision)
        promotion = after.considered.promotion
        if promotion is not None:
            say(f"Promoted: agents reach {promotion.served_model} at {promotion.base_url} (`scripts/serve.py`).")
        elif after.refusal is None:
            say("Not promoted: --no-promote.")
    if after.report.exists():
        say(f"Report: {after.report}")


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {count}" for name, count in value.items()) or "nothing"
    if value is None:
        return "unknown"
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


if __name__ == "__main__":  # how the scheduler starts it
    sys.exit(main())
