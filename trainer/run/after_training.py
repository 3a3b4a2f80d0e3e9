"""What follows training: evaluate the new checkpoint, ask the gate, publish or refuse, report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from data_bridge.errors import NotEnoughData, PromotionRefused
from trainer.ledger.releases import incumbent_of, sync
from trainer.pipeline import Considered, consider
from trainer.promote.retention import remove_old_checkpoints
from trainer.run.session import Session
from trainer.run.training_run import TrainingRun
from trainer.train.backends.forks import start_step_of
from trainer.types import Checkpoint, release_of


@dataclass(frozen=True, slots=True)
class AfterTraining:
    """The decision on the checkpoint, and where to read about it."""

    considered: Considered | None
    refusal: PromotionRefused | None
    """The error that the command ends with if the agents did not get the checkpoint."""
    report: Path

    @property
    def exit_code(self) -> int:
        return 0 if self.refusal is None else self.refusal.exit_code

    @property
    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = {"report": str(self.report), "promoted": False}
        if self.considered is not None:
            promotion, decision = self.considered.promotion, self.considered.decision
            summary |= {"ruling": decision.ruling.value, "reasons": list(decision.reasons)}
            summary["gain"] = self.considered.evaluation.score_difference.mean
            if (reading := self.considered.evaluation.reading) is not None:
                summary["gain_on_unseen_words"] = msgspec.to_builtins(reading.gain)
                summary["stronger_base"] = reading.stronger_base.value
            if promotion is not None:
                summary |= {"promoted": True, "served_model": promotion.served_model, "base_url": promotion.base_url}
        return summary


async def after_training(session: Session, run: TrainingRun, before: Checkpoint | None) -> AfterTraining:
    """Compare what training would go on from with what the agents use.

    That is the newest checkpoint, unless its collapse has just been undone. ``before`` is where this run started; None
    if it is held, to be compared without having been trained further.
    """
    candidate, start = run.progress.newest, await start_step_of(session.backend)
    if candidate is None or candidate.step != start:
        candidate = session.backend.checkpoint(start)
    considered: Considered | None = None
    refusal: PromotionRefused | None = None
    incumbent = await incumbent_of(session.database, candidate.model)
    release = release_of(candidate, incumbent, session.settings.lessons.lessons)
    if run.is_resumed and incumbent is not None and incumbent.identity == release.identity:
        # A run that was killed, or had no disk space, between the promotion and the copy that serve.py reads.
        session.view.say(f"{candidate.name} is promoted already")
        await sync(session.database, session.settings.common.home, candidate.model)
    # A resumed run may have finished its last step before it was killed, but not its evaluation.
    elif before is None or candidate.step != before.step or (run.is_resumed and candidate.step > 0):
        run.progress.doing("evaluating", candidate.name)
        session.view.say(f"evaluating {candidate.name} on later windows")
        try:
            considered = await consider(
                session.database,
                session.settings,
                release,
                run_id=run.run_id,
                now=run.now,
                say=session.view.say,
            )
            run.folder.write("evaluation.json", msgspec.to_builtins(considered.evaluation))
            refusal = considered.refusal()
        except NotEnoughData as error:
            refusal = PromotionRefused(f"{candidate.name} is trained but not promoted: {error}")
        if refusal is not None and not session.settings.run.promote:
            session.view.say(f"Not promoted, as --no-promote requests: {refusal}")
            refusal = None
    await _make_room(session)
    return AfterTraining(considered, refusal, run.report.resolve())


async def _make_room(session: Session) -> None:
    """Delete old checkpoints. A failed deletion does not fail the run."""
    try:
        await remove_old_checkpoints(
            session.database, session.backend, session.settings.model.model, keep=session.settings.run.keep_checkpoints
        )
    except OSError as error:
        session.view.say(f"warning: old checkpoints could not be deleted ({error.strerror or error}).")
