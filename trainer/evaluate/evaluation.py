"""Compares candidate and incumbent, and other policies, on held-out windows.

    held-out windows → decision points → a reply of every policy → its result → anonymous groups → judge
    → differences at each point → one number per window → intervals

``blind_trial`` asks and judges, ``comparison`` computes; this module reads the windows and stores the result.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from data_bridge.database import Database
from data_bridge.errors import NotEnoughData
from data_bridge.quality import CheckedWindow, check
from data_bridge.reader import WindowReader
from data_bridge.window_ids import is_held_out
from trainer.config.derived import window_rules
from trainer.config.sections import WindowSettings
from trainer.config.training import EvaluationSettings
from trainer.evaluate.blind_trial import LoggedPolicy, ModelPolicy, compare_policies
from trainer.evaluate.comparison import Contestant, TrialPlan, TrialResult, summarise
from trainer.evaluate.simulated_replay import NewsScript, load_replay
from trainer.evidence import Evaluation, Role
from trainer.inference.divergence import MeasureKL, SampledReplies
from trainer.ledger.evaluations import save, trained_among
from trainer.types import ChatModel, Judge, Release

logger = logging.getLogger(__name__)


async def evaluate_release(
    database: Database,
    plan: TrialPlan,
    candidate: Release,
    incumbent: Release | None,
    models: Mapping[Role, ChatModel],
    judge: Judge,
    run_id: str | None,
    *,
    training_judge: str,
    windows: Sequence[CheckedWindow],
    measure_kl: MeasureKL | None,
) -> Evaluation:
    """Compare the ``models`` and a baseline on ``windows`` (see ``held_out_windows``); the result is stored.

    ``measure_kl`` is given if the candidate runs on this machine.
    """
    replay = await load_replay(database, [window.window.window_id for window in windows])
    policies: dict[Role, Contestant] = {role: ModelPolicy(model) for role, model in models.items()}
    policies[Role.BASELINE] = NewsScript(replay) if replay is not None else LoggedPolicy()
    result = await compare_policies(windows, policies, judge, plan, replay)
    evaluation = summarise(
        result,
        policies,
        plan,
        judge,
        candidate=candidate,
        incumbent=incumbent,
        run_id=run_id,
        training_judge=training_judge,
        kl_from_base=await measure_kl(_sampled(result)) if measure_kl is not None else None,
    )
    await save(database, evaluation)
    return evaluation


def _sampled(outcome: TrialResult) -> list[SampledReplies]:
    """The candidate's replies as tokens."""
    return [
        SampledReplies(at.point.messages, tuple(reply.token_ids for reply in at.replies[Role.CANDIDATE]))
        for at in outcome.compared
    ]


async def held_out_windows(
    database: Database,
    settings: EvaluationSettings,
    windows: WindowSettings,
    models: Collection[str],
    *,
    now: datetime | None = None,
) -> list[CheckedWindow]:
    """The newest usable held-out windows, oldest first. Windows that any of ``models`` was trained on are not used."""
    rules = window_rules(windows, purpose="evaluation")
    rules = replace(rules, now=now or rules.now, lookback=max(windows.lookback, settings.eval_lookback))
    reader = WindowReader(database, rules)
    refs = [ref for ref in await reader.discover() if is_held_out(ref.window_id, rules.held_out_share)]
    trained = await trained_among(database, models, [ref.window_id for ref in refs])
    if trained:
        logger.warning(
            "%d held-out windows were trained on (was --held-out-share changed?) and are not used: %s",
            len(trained),
            ", ".join(sorted(trained)[:3]),
        )
    found: list[CheckedWindow] = []
    waiting = [ref for ref in reversed(refs) if ref.window_id not in trained]
    while waiting and len(found) < settings.eval_windows:
        missing = settings.eval_windows - len(found)
        async for window in reader.stream(waiting[:missing]):
            checked = check(window, rules)
            if checked.usable:
                found.append(checked)
        waiting = waiting[missing:]
    if not found:
        raise NotEnoughData(
            "There is no usable held-out window to evaluate on: wait for more windows, or look further back with "
            "--eval-lookback; `check_windows.py` says why each is left out."
        )
    return found[::-1]
