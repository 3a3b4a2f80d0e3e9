"""Facts of an invented run, for tests of the page."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.builders import NOW, hours_before
from trainer.evidence import (
    Comparison,
    Evaluation,
    ExampleDecision,
    ExampleReply,
    Interval,
    PolicyFigures,
    Role,
    WindowFigures,
)
from trainer.ledger.read.types import (
    CostFacts,
    DayFacts,
    OrderAgreement,
    RunFacts,
    ScoredPnl,
    StepFacts,
    WindowFacts,
    Words,
)
from trainer.ledger.releases import Promotion
from trainer.ledger.states import PromotionKind, PromotionState
from trainer.types import Checkpoint, JudgeIdentity

MOMENT = datetime(2026, 11, 15, 3, tzinfo=UTC)
HELD_OUT = hours_before(NOW + timedelta(days=1), number=18)


def interval(mean: float, half: float = 0.05) -> Interval:
    return Interval(mean, mean - half, mean + half, windows=18)


def checkpoint(step: int) -> Checkpoint:
    return Checkpoint("hindsight", step, "smollm2-135m-instruct", "cpu", f"/checkpoints/{step}")


def figures(role: Role, name: str, error: float, score: float, pnl: float) -> PolicyFigures:
    return PolicyFigures(
        role=role,
        name=name,
        score=interval(score),
        pnl=interval(pnl, 3.0),
        valid_rate=interval(1 - error),
        error_rate=interval(error),
        blocked_rate=interval(0.0, 0.0),
        reply_length=interval(13.0, 1.0),
        kl_from_base=0.4,
    )


def comparison(role: Role, name: str, gain: float) -> Comparison:
    return Comparison(
        role, name, interval(gain), interval(0.5 + gain / 2), interval(10 * gain, 4.0), interval(-gain), 1.1, None
    )


def example(difference: float, text: str, explanation: str = "Bought on good news; the price rose.") -> ExampleDecision:
    replies = (
        ExampleReply(Role.CANDIDATE, "hindsight@step7", text, 0.9, 12.5, explanation),
        ExampleReply(Role.INCUMBENT, "hindsight@step0", "I think that", 0.0, 0.0, "No action in the reply."),
    )
    return ExampleDecision(HELD_OUT[0], "t1", "agent-3", 1, "$COIN 100.00\nNews: $COIN wins", replies, difference)


def evaluation(gain: float = 0.3) -> Evaluation:
    return Evaluation(
        evaluation_id="evaluation-1",
        run_id="run-1",
        model="hindsight",
        candidate=checkpoint(7).as_release(),
        incumbent=None,
        judge=JudgeIdentity("outcome", "outcome", "1", "1", is_llm=False),
        training_judge="outcome",
        decision_points=72,
        samples=2,
        left_out={},
        windows=tuple(
            WindowFigures(
                window_id,
                {Role.CANDIDATE: 0.5 + place / 50, Role.INCUMBENT: 0.5 - (place - 4) / 60},
                {Role.CANDIDATE: place - 8.0, Role.INCUMBENT: 1.0},
            )
            for place, window_id in enumerate(HELD_OUT)
        ),
        figures=(
            figures(Role.CANDIDATE, "hindsight@step7", 0.04, 0.71, 9.0),
            figures(Role.INCUMBENT, "hindsight@step0", 0.44, 0.41, 1.0),
            figures(Role.BASELINE, "scripted, skill 0.5", 0.0, 0.62, 6.0),
        ),
        comparisons=(comparison(Role.INCUMBENT, "hindsight@step0", gain), comparison(Role.BASELINE, "scripted", 0.1)),
        score_pnl_correlation=0.8,
        best=example(0.9, "BUY $COIN 20%"),
        worst=example(-0.4, "SELL $COIN 20%"),
        judge_cost_usd=0.0,
        seed=0,
        created_at=MOMENT,
    )


def promotion(state: PromotionState = PromotionState.SERVING, *, forced: bool = False) -> Promotion:
    return Promotion(
        promotion_id=1,
        checkpoint=checkpoint(7),
        kind=PromotionKind.PROMOTION,
        state=state,
        forced=forced,
        reason="gain +0.300",
        outcome="errors rose" if state is PromotionState.ROLLED_BACK else None,
        evaluation_id="evaluation-1",
        base_url="http://127.0.0.1:8808/v1",
        served_model="hindsight@step7",
        canary_share=0.1 if state is PromotionState.CANARY else None,
        canary_after=None,
        created_at=MOMENT,
        serving_since=MOMENT,
        ended_at=None,
    )


def step_facts(step: int) -> StepFacts:
    return StepFacts(
        step,
        16,
        128,
        1500,
        {
            "reward": 0.35 + step / 20,
            "reward_std": 0.2,
            "loss": 0.1 / step,
            "kl": 0.02 * step,
            "kl_behaviour": 0.01 * step,
            "entropy": 1.2 - step / 10,
        },
        {"edges": [-0.5, 0.0, 0.5], "counts": [1.0, 60.0, 60.0, 7.0]},
    )


def window_facts(hour: int) -> WindowFacts:
    best = Words("agent-1", 0.9, "Bought on good news.")
    worst = Words("agent-2", 0.1, "Sold without a reason.")
    return WindowFacts(f"2026-11-13T{hour:02}:00", "trained", 1, (1 + hour // 4,), 0.5, {}, best, worst)


def run_facts(*, gain: float = 0.3, ruling: str | None = "promote", **changes: Any) -> RunFacts:
    """A run that went well; ``changes`` overrides any field."""
    facts = RunFacts(
        run_id="run-1",
        model="hindsight",
        base_model="smollm2-135m-instruct",
        backend="cpu",
        state="done",
        error=None,
        attempts=1,
        started_at=MOMENT,
        finished_at=MOMENT.replace(minute=5),
        settings={"database_url": None, "held_out_share": 0.1, "seed": 0},
        code_version="0.1.0 (abcdef)",
        judge=JudgeIdentity("outcome", "outcome", "1", "1", is_llm=False),
        certificate=None,
        groups_judged=112,
        evaluation=evaluation(gain) if ruling is not None else None,
        ruling=ruling,
        ruling_reasons=("gain +0.300 (95% interval +0.250 to +0.350, 18 windows) is above the required +0.000",),
        promotion=None,
        steps=tuple(map(step_facts, range(1, 8))),
        failed_batches=(),
        days=tuple(DayFacts(day, f"hindsight@step{day - 1}", day, 0.5 + day / 20, 2.0 * day) for day in range(1, 8)),
        exclusions={"held_out": 120, "no_spread": 24, "dropout": 8},
        agreement=OrderAgreement(((0.5, 0.55), (0.8, 0.7), (0.2, 0.25)), 0.067, 0.0),
        scored_pnl=tuple(ScoredPnl(f"t{number}", number / 10, 3.0 * number - 9) for number in range(10)),
        costs=(CostFacts("gpt-test", 224, 3, 500_000, 90_000, 1.25),),
        cost_curve=((112, 0.6), (224, 1.25)),
        windows=tuple(map(window_facts, range(20))),
        simulated_windows=20,
        leaked_windows=(),
    )
    return replace(facts, **changes)
