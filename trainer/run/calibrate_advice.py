"""Calibrates a release's confidence at decisions whose outcome is known and which it was not trained on.

The windows are those after everything that the release was trained on. What the gate may still need is left alone: the
windows kept for its next ruling, and the newest ones that an evaluation now would use. What remains has served a ruling
already, or waits to be trained on. Nothing is written about these windows but whether the release was right there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from data_bridge.database import Database
from data_bridge.discovery import WindowRef
from data_bridge.errors import ConfigurationError, NotEnoughData
from data_bridge.models import DECISIONS
from data_bridge.quality import check
from data_bridge.reader import WindowReader
from data_bridge.window_ids import start_of
from data_bridge.worlds.world import World
from trainer.advice.proposal import proposal_of, proposed
from trainer.advice.recalibrate import recalibrate
from trainer.config.console import AdviceSettings
from trainer.config.derived import window_rules
from trainer.config.sections import SplitWindows
from trainer.evaluate.decision_points import DecisionPoint, decision_points
from trainer.inference.request import PromptRefused
from trainer.ledger.advice import StoredCalibration, add_labels
from trainer.ledger.clock import clock
from trainer.ledger.evaluations import first_consulted, last_trained
from trainer.ledger.releases import Promotion, serving
from trainer.statistics.confidence import Label
from trainer.statistics.hold_out import OneHour, hold_out
from trainer.types import ChatModel
from trainer.workers.judging import as_unused

_PER_WINDOW = 1
"""Decisions of one hour share what happened: one label each is all that counts."""
_IN_FLIGHT = 4


@dataclass(frozen=True, slots=True)
class CalibrationResult:
    """What a calibration command found."""

    release: str
    windows: int
    asked: int
    new_labels: int
    calibration: StoredCalibration | None
    """None: still too few labels."""


async def promoted(database: Database, model: str) -> Promotion:
    found = await serving(database, model)
    if found is None:
        raise NotEnoughData(f"No release of {model} is promoted: advice is what a promoted one would do.")
    return found


async def calibration_windows(
    database: Database, reader: WindowReader, promotion: Promotion, windows: SplitWindows
) -> list[WindowRef]:
    """Windows after all that the release was trained on which no ruling needs any more, the newest first."""
    checkpoint = promotion.checkpoint
    refs = await reader.discover()
    trained = await last_trained(database.pool, {checkpoint.model}, up_to=checkpoint.step)
    ever_trained = await last_trained(database.pool, {checkpoint.model})
    consulted = await first_consulted(database.pool, checkpoint.model)
    hours = [OneHour(ref.window_id) for ref in refs]
    fresh = [ref.window_id for ref in refs if ref.window_id not in consulted]
    next_evaluation = [window_id for window_id in fresh if ever_trained is None or start_of(window_id) >= ever_trained][
        -windows.eval_windows :
    ]
    kept = {*hold_out(hours, consulted, windows).evaluation, *next_evaluation}
    return [
        ref
        for ref in reversed(refs)
        if ref.window_id not in kept and (trained is None or start_of(ref.window_id) >= trained)
    ]


def refuse_without_right_answers(world: World) -> None:
    """ConfigurationError for a world in which nobody can say afterwards whether a proposal was right."""
    if not world.can_advise:
        raise ConfigurationError(
            f"The world {world.name} cannot say whether a proposal was right, so advice has nothing to be calibrated "
            "by: give it a reply pattern and facts that name the right action (docs/worlds.md)."
        )


async def calibrate_release(
    database: Database,
    promotion: Promotion,
    model: ChatModel,
    windows: SplitWindows,
    advice: AdviceSettings,
    *,
    points: int,
    say: Callable[[str], None],
) -> CalibrationResult:
    """Ask the release at decisions of the past, and fit what its confidence means."""
    rules = window_rules(windows, now=await clock(database, windows.until))
    refuse_without_right_answers(rules.world)
    reader = WindowReader(database, rules)
    refs = await calibration_windows(database, reader, promotion, windows)
    release, name = promotion.release.name, promotion.checkpoint.model
    say(f"{len(refs)} windows came after everything that {release} was trained on and are not kept for the gate")
    labels: dict[str, Label] = {}
    asked = 0
    waiting: list[DecisionPoint] = []

    async def ask_waiting() -> None:
        nonlocal asked
        answers = await asyncio.gather(*(_label(model, point, advice) for point in waiting))
        asked += len(waiting)
        labels.update({point.key: one for point, one in zip(waiting, answers, strict=True) if one is not None})
        waiting.clear()
        say(f"asked at {asked} decisions, {len(labels)} of them with a known outcome")

    async for window in reader.stream(refs):
        if asked + len(waiting) >= points:
            break
        checked = check(as_unused(window), rules)
        waiting += decision_points(checked, purposes=DECISIONS, max_points=_PER_WINDOW, seed=0)
        if len(waiting) >= _IN_FLIGHT:
            await ask_waiting()
    if waiting:
        await ask_waiting()
    new = await add_labels(database, name, release, labels)
    return CalibrationResult(release, len(refs), asked, new, await recalibrate(database, name, release, advice))


async def _label(model: ChatModel, point: DecisionPoint, advice: AdviceSettings) -> Label | None:
    """What the release proposes at ``point``, and whether that was right; None if that cannot be told."""
    try:
        replies = await model.chat(
            point.messages,
            n=advice.advice_samples,
            temperature=1.0,
            max_tokens=advice.advice_tokens,
            seed=int.from_bytes(point.key.encode()[-3:], "big"),
        )
    except PromptRefused:  # this prompt is too long for the model: it costs itself
        return None
    proposal = proposal_of(replies, point.world)
    action = None if proposal is None else proposed(proposal.text, point.world, point.step.action)
    right = None if action is None else point.world.is_right(action, point.outcomes)
    if proposal is None or right is None:
        return None
    return Label(point.window_id, proposal.score, right)


def summary(found: CalibrationResult, target: float) -> Sequence[str]:
    """The result in a few sentences."""
    lines = [f"{found.release}: {found.new_labels} new outcomes at {found.asked} decisions of {found.windows} windows."]
    stored = found.calibration
    if stored is None:
        return [*lines, "Too few outcomes are known yet: advice abstains, and learns from what it is asked meanwhile."]
    known = stored.calibration
    if known.threshold is None:
        said = f"no threshold is right in {target:.0%} with certainty on {known.labels} windows: advice abstains"
    else:
        said = (
            f"shown from a score of {known.threshold:.3f}: {known.coverage:.0%} of the decisions, at least "
            f"{known.precision_low:.0%} of them right, by {known.labels} windows since {known.since}"
        )
    return [*lines, f"Advice is {said}." if known.threshold is not None else f"{said[:1].upper()}{said[1:]}."]
