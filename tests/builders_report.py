"""Facts of an invented run, for tests of the page."""

from __future__ import annotations

from datetime import UTC, datetime

from trainer.evaluation import (
    Comparison,
    Evaluation,
    ExampleDecision,
    ExampleReply,
    PolicyFigures,
    Role,
    WindowFigures,
)
from trainer.report.facts import CostFacts, OrderAgreement, RunFacts, StepFacts, WindowFacts
from trainer.statistics import Interval
from trainer.types import Checkpoint, JudgeIdentity

MOMENT = datetime(2026, 11, 15, 3, tzinfo=UTC)


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


def example(difference: float, text: str) -> ExampleDecision:
    replies = (
        ExampleReply(Role.CANDIDATE, "hindsight@step7", text, 0.9, 12.5, "Bought on good news; the price rose."),
        ExampleReply(Role.INCUMBENT, "hindsight@step0", "I think that", 0.0, 0.0, "No action in the reply."),
    )
    return ExampleDecision(
        "2026-11-14T05:00", "t1", "agent-3", 1, "$COIN 100.00\nNews: $COIN wins", replies, difference
    )


def evaluation(gain: float = 0.3) -> Evaluation:
    return Evaluation(
        evaluation_id="evaluation-1",
        run_id="run-1",
        model="hindsight",
        candidate=checkpoint(7),
        incumbent=None,
        judge=JudgeIdentity("outcome", "outcome", "1", "1", is_llm=False),
        training_judge="outcome",
        decision_points=72,
        samples=2,
        left_out={},
        windows=tuple(
            WindowFigures(f"2026-11-14T{hour:02}:00", {Role.CANDIDATE: 0.5 + hour / 50}, {Role.CANDIDATE: hour - 8.0})
            for hour in range(18)
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


def run_facts(*, gain: float = 0.3, ruling: str | None = "promote", promoted: bool = True) -> RunFacts:
    return RunFacts(
        run_id="run-1",
        model="hindsight",
        base_model="smollm2-135m-instruct",
        backend="cpu",
        state="done",
        error=None,
        started_at=MOMENT,
        finished_at=MOMENT.replace(minute=5),
        settings={"database_url": None, "held_out_share": 0.1, "seed": 0},
        plan={},
        summary={},
        judge="outcome",
        judge_is_llm=False,
        rubric="outcome 1",
        evaluation=evaluation(gain) if ruling is not None else None,
        ruling=ruling,
        ruling_reasons=("gain +0.300 (95 % interval +0.250 to +0.350, 18 windows) lies above the wanted +0.000",),
        promoted_as="hindsight@step7" if promoted else None,
        base_url="http://127.0.0.1:8808/v1" if promoted else None,
        steps=tuple(
            StepFacts(
                step,
                16,
                128,
                1500,
                {
                    "reward": 0.35 + step / 20,
                    "reward_std": 0.2,
                    "loss": 0.1 / step,
                    "kl": 0.02 * step,
                    "entropy": 1.2 - step / 10,
                },
                {"edges": [-0.5, 0.0, 0.5], "counts": [1.0, 60.0, 60.0, 7.0]},
            )
            for step in range(1, 8)
        ),
        exclusions={"held_out": 120, "no_spread": 24, "dropout": 8},
        agreement=OrderAgreement(((0.5, 0.55), (0.8, 0.7), (0.2, 0.25)), 0.067, 0.0),
        cost=CostFacts(calls=0, failed_calls=0, prompt_tokens=0, completion_tokens=0, usd=0.0, groups_judged=112),
        windows=tuple(
            WindowFacts(f"2026-11-13T{hour:02}:00", "trained", 1, (1 + hour // 4,), 0.5, 0) for hour in range(20)
        ),
    )
