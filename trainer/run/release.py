"""From a trained checkpoint to the agents, or to a reason why not: evaluate, ask the gate, publish.

What ``train_mmo`` does after training and ``evaluate`` does on demand: opens the models, the judge and the replay,
and closes them again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from data_bridge.database import Database
from data_bridge.errors import PromotionRefused
from trainer.config.sections import EvaluateSettings, TrainSettings
from trainer.evaluate.blind_trial import LoggedPolicy, ModelPolicy, Policy
from trainer.evaluate.divergence import SampledReplies, divergence_from_base
from trainer.evaluate.evaluation import MeasureKL, evaluate_checkpoint, held_out_windows, judged_by
from trainer.evaluate.simulated_replay import NewsScript, SimulatedReplay, load_replay
from trainer.evidence import Evaluation, Role
from trainer.inference.embedded_model import model_directory
from trainer.inference.endpoint import EndpointModel
from trainer.inference.open import ARTIFACT, adapter_of, open_chat_model, open_engine
from trainer.inference.serving import serving as serving_of
from trainer.judge.open import open_judge
from trainer.ledger.clock import clock
from trainer.ledger.evaluations import keep_ruling
from trainer.ledger.releases import Promotion, find_checkpoint, running_canary, serving
from trainer.promote.canary import CanaryDecision, CanaryRuling, windows_since
from trainer.promote.canary import decide as decide_canary
from trainer.promote.gate import GateDecision, Ruling, rule
from trainer.promote.publish import IncumbentChanged, end_canary, finish_canary, publish
from trainer.types import ChatModel, Checkpoint

logger = logging.getLogger(__name__)

Settings = TrainSettings | EvaluateSettings


@dataclass(frozen=True, slots=True)
class Considered:
    """What the gate said of a checkpoint, and the promotion if it let it through."""

    evaluation: Evaluation
    decision: GateDecision
    promotion: Promotion | None

    def refusal(self) -> PromotionRefused | None:
        """What a command ends with if the gate did not say yes."""
        if self.decision.ruling is Ruling.PROMOTE:
            return None
        word = "refused" if self.decision.ruling is Ruling.REFUSE else "undecided"
        return PromotionRefused(
            f"{self.evaluation.candidate.name} is not promoted ({word}): {self.decision.sentence}. The agents keep "
            "what they have; `promote.py --force --reason WHY` overrides it."
        )


async def incumbent_of(database: Database, model: str) -> Checkpoint | None:
    """What the agents use now; None while that is the untrained base model."""
    now = await serving(database, model)
    return now.checkpoint if now is not None and now.checkpoint.step > 0 else None


async def consider(
    database: Database,
    settings: TrainSettings,
    candidate: Checkpoint,
    *,
    run_id: str | None,
    now: datetime | None = None,
) -> Considered:
    """Evaluate ``candidate`` against what the agents use, and publish it if the gate and ``--promote`` say so.

    A canary that is still running is settled first, so that the incumbent is what the agents really keep. If that
    changes during the evaluation, nothing is decided: the evidence is about something that nobody uses any more.
    """
    await settle_canary(database, settings.home, candidate.model, now=now or await clock(database, settings.until))
    incumbent = await incumbent_of(database, candidate.model)
    evaluation = await evaluate(database, settings, candidate, incumbent, run_id=run_id, now=now)
    decision = rule(evaluation, settings)
    await keep_ruling(database, evaluation, decision)
    logger.info("gate: %s for %s: %s", decision.ruling, candidate.name, decision.sentence)
    promotion = None
    if decision.ruling is Ruling.PROMOTE and settings.promote:
        try:
            promotion = await publish(
                database,
                settings.home,
                candidate,
                serving_of(candidate, settings),
                reason=decision.sentence,
                evaluation=evaluation,
                canary=settings.canary,
            )
        except IncumbentChanged:
            changed = "what the agents use changed meanwhile; evaluate again"
            decision = GateDecision(Ruling.UNDECIDED, (changed,))
            await keep_ruling(database, evaluation, decision)
    return Considered(evaluation, decision, promotion)


async def evaluate(
    database: Database,
    settings: Settings,
    candidate: Checkpoint,
    incumbent: Checkpoint | None,
    *,
    run_id: str | None,
    now: datetime | None = None,
) -> Evaluation:
    """Candidate, incumbent, base model and baseline on the held-out windows; the result is kept."""
    models = {candidate.model} if incumbent is None else {candidate.model, incumbent.model}
    now = now or await clock(database, settings.until)
    windows = await held_out_windows(database, settings, models, now=now)
    replay = await load_replay(database, [window.window.window_id for window in windows])
    async with AsyncExitStack() as stack:
        policies = await _open_policies(stack, database, settings, candidate, incumbent, replay)
        judge = await stack.enter_async_context(
            open_judge(judged_by(settings), database, run_id or f"evaluation of {candidate.name}")
        )
        return await evaluate_checkpoint(
            database,
            settings,
            candidate,
            incumbent,
            policies,
            judge,
            run_id,
            windows=windows,
            replay=replay,
            measure_kl=_kl_meter(candidate, settings),
        )


async def _open_policies(
    stack: AsyncExitStack,
    database: Database,
    settings: Settings,
    candidate: Checkpoint,
    incumbent: Checkpoint | None,
    replay: SimulatedReplay | None,
) -> dict[Role, Policy]:
    """The base model stands in for an incumbent that there is not; it is asked once all the same."""
    base = await find_checkpoint(database, candidate.model, 0)
    wanted = {Role.CANDIDATE: candidate, Role.INCUMBENT: incumbent or base}
    if incumbent is not None:
        wanted[Role.BASE] = base
    engine = None
    if any(checkpoint.abilities.runs_in_engine for checkpoint in wanted.values()):
        engine = await stack.enter_async_context(open_engine(settings))
    open_local = partial(open_chat_model, settings=settings, engine=engine)

    async def open_model(checkpoint: Checkpoint) -> ChatModel:
        if checkpoint.abilities.runs_in_engine or checkpoint.location.startswith(ARTIFACT):
            return await stack.enter_async_context(open_local(checkpoint))
        at = serving_of(checkpoint, settings)
        model = EndpointModel(at.base_url, at.model, "none", name=checkpoint.name)
        stack.push_async_callback(model.close)
        return model

    policies: dict[Role, Policy] = {
        role: ModelPolicy(await open_model(checkpoint)) for role, checkpoint in wanted.items()
    }
    policies[Role.BASELINE] = NewsScript(replay) if replay is not None else LoggedPolicy()
    return policies


def _kl_meter(candidate: Checkpoint, settings: Settings) -> MeasureKL | None:
    """Measures the candidate's KL from the base model; None where it does not run on this machine."""
    if not candidate.abilities.runs_in_engine:
        return None
    base, adapter = model_directory(settings.base_model, settings.home), adapter_of(candidate)

    async def measure(answered: Sequence[SampledReplies]) -> float | None:
        return await asyncio.to_thread(divergence_from_base, base, adapter, answered)

    return measure


async def settle_canary(database: Database, home: Path, model: str, *, now: datetime) -> CanaryDecision | None:
    """Finish, roll back or leave the running canary by how its agents did; None if none is running."""
    trial = await running_canary(database, model)
    if trial is None:
        return None
    decision = decide_canary(await windows_since(database, trial, now))
    if decision.ruling is CanaryRuling.FINISH:
        await finish_canary(database, home, model, outcome=decision.reason)
    elif decision.ruling is CanaryRuling.ROLL_BACK:
        await end_canary(database, home, model, outcome=decision.reason)
    return decision
