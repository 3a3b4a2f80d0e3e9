"""Candidate against incumbent on held-out windows, and others beside them.

    held-out windows → decision points → a reply of every policy → what it came to → groups without names → judge
    → differences at each point → one number a window → intervals

``blind_trial`` asks and judges, ``comparison`` counts; here the windows are read and the result is kept.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from data_bridge.database import Database
from data_bridge.errors import NotEnoughData
from data_bridge.quality import CheckedWindow, check
from data_bridge.reader import WindowReader
from data_bridge.window_ids import is_held_out
from trainer.config.sections import EvaluateSettings, EvaluationSettings, TrainSettings, WindowSettings, window_rules
from trainer.evaluate.blind_trial import Outcome, Plan, Policy, compare_policies
from trainer.evaluate.comparison import best_and_worst, compare, figures_of, score_pnl_correlation, windows_of
from trainer.evaluate.decision_points import Replay
from trainer.evaluate.divergence import SampledReplies
from trainer.evidence import Evaluation, Role
from trainer.ledger.evaluations import save, trained_among
from trainer.types import Judge, Release

logger = logging.getLogger(__name__)

MeasureKL = Callable[[Sequence[SampledReplies]], Awaitable[float | None]]
"""The candidate's mean KL per token from the base model, at replies of its own."""


async def evaluate_release(
    database: Database,
    settings: TrainSettings | EvaluateSettings,
    candidate: Release,
    incumbent: Release | None,
    policies: Mapping[Role, Policy],
    judge: Judge,
    run_id: str | None,
    *,
    training_judge: str,
    windows: Sequence[CheckedWindow],
    replay: Replay | None = None,
    measure_kl: MeasureKL | None = None,
) -> Evaluation:
    """Evaluate ``candidate`` on ``windows`` (see ``held_out_windows``) and keep the result.

    ``policies`` has at least the candidate and the incumbent. ``measure_kl`` is given where the candidate runs on
    this machine.
    """
    plan = plan_of(settings)
    outcome = await compare_policies(windows, policies, judge, plan, replay)
    evaluation = summarise(
        outcome,
        policies,
        plan,
        judge,
        candidate=candidate,
        incumbent=incumbent,
        run_id=run_id,
        training_judge=training_judge,
        kl_from_base=await measure_kl(_sampled(outcome)) if measure_kl is not None else None,
    )
    await save(database, evaluation)
    return evaluation


def _sampled(outcome: Outcome) -> list[SampledReplies]:
    """The candidate's replies as tokens."""
    return [
        SampledReplies(at.point.messages, tuple(reply.token_ids for reply in at.replies[Role.CANDIDATE]))
        for at in outcome.compared
    ]


def plan_of(settings: TrainSettings | EvaluateSettings) -> Plan:
    return Plan(
        points_per_window=settings.eval_points,
        samples=settings.eval_samples,
        purposes=settings.purposes,
        min_gain=settings.min_gain,
        max_judge_failures=settings.max_judge_failures,
        seed=settings.seed,
    )


async def held_out_windows(
    database: Database,
    settings: EvaluationSettings,
    windows: WindowSettings,
    models: Collection[str],
    *,
    now: datetime | None = None,
) -> list[CheckedWindow]:
    """The newest usable held-out windows, oldest first. One that any of ``models`` was trained on is not used."""
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
            "--eval-lookback; `check_windows.py` says what is wrong with each."
        )
    return found[::-1]


def summarise(
    outcome: Outcome,
    policies: Mapping[Role, Policy],
    plan: Plan,
    judge: Judge,
    *,
    candidate: Release,
    incumbent: Release | None,
    run_id: str | None = None,
    training_judge: str | None = None,
    kl_from_base: float | None = None,
) -> Evaluation:
    """The outcome as figures with intervals."""
    names = {role: policy.name for role, policy in policies.items()}
    best, worst = best_and_worst(outcome.compared, names)
    return Evaluation(
        evaluation_id=uuid.uuid4().hex,
        run_id=run_id,
        model=candidate.model,
        candidate=candidate,
        incumbent=incumbent,
        judge=judge.identity,
        training_judge=training_judge,
        decision_points=len(outcome.compared),
        samples=plan.samples,
        left_out=dict(outcome.left_out),
        windows=windows_of(outcome.compared, names),
        figures=tuple(
            figures_of(
                role,
                name,
                outcome.compared,
                seed=plan.seed,
                kl_from_base=kl_from_base if role is Role.CANDIDATE else None,
            )
            for role, name in names.items()
        ),
        comparisons=tuple(
            compare(role, name, outcome.compared, min_gain=plan.min_gain, seed=plan.seed)
            for role, name in names.items()
            if role is not Role.CANDIDATE
        ),
        score_pnl_correlation=score_pnl_correlation(outcome.compared),
        best=best,
        worst=worst,
        judge_cost_usd=outcome.judge_cost_usd,
        seed=plan.seed,
        created_at=datetime.now(UTC),
    )
