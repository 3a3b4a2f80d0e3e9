"""promote: give a checkpoint to the agents if it passes the gate, or roll back."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from data_bridge.errors import ConfigurationError, PromotionRefused
from trainer.cli.frame import EXIT_CODES, database_of, run_command
from trainer.cli.output import say, say_json
from trainer.config.commands import PromoteSettings

if TYPE_CHECKING:
    from data_bridge.database import Database
    from trainer.ledger.checkpoints import Listed
    from trainer.ledger.releases import Promotion

_EPILOG = f"""examples:
  promote.py --list                                checkpoints with step, scores, state and lineage
  promote.py                                       the newest, if its evaluation passes the gate
  promote.py 3 --canary 0.1                        step 3, to a tenth of the agents first
  promote.py 3 --lessons 2-all-notes               step 3 with a lessons policy, as it was evaluated
  promote.py --finish                              give the canary to all agents, roll it back or wait, by its results
  promote.py --rollback --reason "losing money"    the one before (or end the canary)
  promote.py --rollback 2                          any earlier checkpoint; 0 is the base model

{EXIT_CODES}
5 also means an undecided comparison, or a canary that was rolled back or has to wait. The evidence is stored.
A canary works for agents that use `serve.py` and send their agent id as OpenAI's `user` with each request."""


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(
        _work,
        PromoteSettings,
        argv,
        prog="promote.py",
        description="Promotes a checkpoint that passes the gate, rolls back, or lists the checkpoints.",
        epilog=_EPILOG,
    )


async def _work(settings: PromoteSettings) -> int:
    from trainer.ledger.releases import pointer_file, sync

    _check(settings)
    home, model, is_list = settings.common.home, settings.model.model, settings.deed.list_checkpoints
    async with database_of(settings, migrate=True, existing=is_list) as database:
        # A list creates no home, but repairs the copy that an earlier promotion could not write.
        if not is_list or pointer_file(home, model).parent.is_dir():
            await sync(database, home, model)
        if is_list:
            return await _list(settings, database)
        if settings.deed.finish:
            return await _finish(settings, database)
        promotion = await (_roll_back if settings.deed.rollback else _promote)(settings, database)
    _show(settings, promotion)
    return 0


def _check(settings: PromoteSettings) -> None:
    deed = settings.deed
    deeds = {"--list": deed.list_checkpoints, "--rollback": deed.rollback, "--finish": deed.finish}
    asked = [flag for flag, given in deeds.items() if given]
    if len(asked) > 1:
        raise ConfigurationError(f"{' and '.join(asked)} cannot be combined: give one of them.")
    if deed.force and not (deed.reason or "").strip():
        raise ConfigurationError("--force needs --reason: say why you override the gate; the reason is stored.")


async def _promote(settings: PromoteSettings, database: Database) -> Promotion:
    from trainer.run.promotion import promote_checkpoint

    return await promote_checkpoint(
        database,
        settings.common.home,
        settings.deed.step,
        settings.model.model,
        settings.gate,
        settings.promotion,
        reason=settings.deed.reason,
        force=settings.deed.force,
        canary=settings.promotion.canary,
        lessons=settings.lessons.lessons,
    )


async def _roll_back(settings: PromoteSettings, database: Database) -> Promotion:
    from trainer.run.promotion import go_back

    reason = settings.deed.reason or "rolled back by hand, no reason given"
    home, model = settings.common.home, settings.model.model
    return await go_back(database, home, settings.deed.step, model, settings.promotion, reason=reason)


async def _finish(settings: PromoteSettings, database: Database) -> int:
    from trainer.ledger.releases import Promotion
    from trainer.run.promotion import finish_trial

    home, model, deed = settings.common.home, settings.model.model, settings.deed
    settled = await finish_trial(
        database, home, model, settings.windows.until, force=deed.force, reason=deed.reason or ""
    )
    if isinstance(settled, Promotion):
        _show(settings, settled)
        return 0
    ruling = settled.ruling.value
    if settings.output.json_output:
        say_json(settled)
    else:
        word = {"finish": "Finished", "roll_back": "Rolled back", "wait": "Still running"}[ruling]
        say(f"{word}: {settled.reason}.")
    return 0 if ruling == "finish" else PromotionRefused.exit_code


async def _list(settings: PromoteSettings, database: Database) -> int:
    from trainer.ledger.checkpoints import list_checkpoints

    listed = await list_checkpoints(database, settings.model.model)
    if settings.output.json_output:
        say_json({"model": settings.model.model, "checkpoints": listed})
    elif not listed:
        say(f"Model {settings.model.model!r} has no checkpoint yet in {database.label}: train it with `train_mmo.py`.")
    else:
        _show_list(listed)
    return 0


def _show_list(listed: Sequence[Listed]) -> None:
    from trainer.cli.tables import Column, printable, show_table

    def gain(one: Listed) -> str:
        if one.gain is None:
            return "-"
        interval = f" [{one.gain_low:+.2f}, {one.gain_high:+.2f}]" if one.gain_low is not None else ""
        return f"{one.gain:+.2f}{interval}"

    show_table(
        [
            Column("step", [str(one.checkpoint.step) for one in listed], is_number=True),
            Column("state", [one.state for one in listed]),
            Column("gain when evaluated", [gain(one) for one in listed]),
            Column("batch score", ["-" if one.mean_score is None else f"{one.mean_score:.2f}" for one in listed]),
            Column("windows", [str(one.windows) for one in listed], is_number=True, rank=3),
            Column("trained (UTC)", [f"{one.trained_at:%Y-%m-%d %H:%M}" for one in listed], rank=4),
            Column("run", [one.run_id for one in listed], rank=2),
            Column("batch", [one.batch_id for one in listed], rank=5),
            Column("why", [printable(one.reason) for one in listed], rank=1),
        ],
        sys.stdout,
        good=[one.state in ("serving", "canary") for one in listed],
    )


def _show(settings: PromoteSettings, promotion: Promotion) -> None:
    if settings.output.json_output:
        say_json(promotion)
        return
    name = promotion.release.name
    said = {
        "serving": f"All agents use {name}.",
        "canary": f"{(promotion.canary_share or 0):.0%} of the agents use {name}; "
        "the scheduler, the next run or `--finish` decides by their verdicts.",
        "rolled_back": f"The canary of {name} has ended; its agents use what all other agents use.",
    }
    say(said.get(promotion.state.value, f"{name} is {promotion.state.value}."))
    say(f"Reason: {promotion.outcome or promotion.reason}")
    if promotion.state.value in ("serving", "canary"):
        say(f"Base URL: {promotion.base_url}", f"Model:    {promotion.served_model}")
