"""Undoes a collapse: back to the last step whose answers were still different, and on with smaller steps."""

from __future__ import annotations

from collections.abc import Sequence

from trainer.ledger.events import EventKind
from trainer.ledger.runs import Ledger
from trainer.progress import View
from trainer.train.backends.forks import Forks
from trainer.train.collapse import MOST_UNDONE, SMALLER, forks_in, step_back
from trainer.train.thresholds import Collapsed, Threshold
from trainer.types import TrainingBackend

_REMEMBERED = 200
"""Steps that are looked at: those of a long run."""


async def recover(
    backend: TrainingBackend,
    ledger: Ledger,
    model: str,
    run_id: str | None,
    thresholds: Sequence[Threshold],
    view: View,
) -> bool:
    """Let training go on from the last healthy step if the model has collapsed; says so. Whether it has.

    What to do follows from the ledger alone, so that a run that was killed goes on in the same way. Collapsed if
    the run has gone back too often.
    """
    steps = await ledger.step_metrics(model, _REMEMBERED)
    back, forks = step_back(thresholds, steps), forks_in(steps, run_id)
    if not isinstance(backend, Forks):
        if back is not None:
            view.say(f"warning: the model collapses: {back.reason}; the {backend.name} backend can only continue.")
        return False
    if back is None:
        backend.slow_down(SMALLER**forks)
        return False
    if await backend.start_step() != steps[-1].step:  # it has gone back already, perhaps further, to what agents use
        backend.slow_down(SMALLER ** (forks + 1))
        return False
    if forks >= MOST_UNDONE:
        raise Collapsed(
            f"The model collapses again and again: {back.reason}, and the run has gone back {forks} times; "
            "start again with another --model and a lower --learning-rate, or look at the log: has it several answers?"
        )
    await backend.start_from(back.step)
    backend.slow_down(SMALLER ** (forks + 1))
    name = backend.checkpoint(back.step).name
    if run_id is not None:
        await ledger.tell(run_id, EventKind.COLLAPSE, {"reason": back.reason, "continues_from": name})
    view.say(f"The model collapses: {back.reason}. Going on from {name} with half the learning rate.")
    return True
