"""Policies of known skill on a market that goes up or down: evaluations whose right answer is known."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from data_bridge.models import Action, StockOutcome, Window, WindowOutcomes
from data_bridge.quality import CheckedWindow
from tests.builders import make_call, make_step, make_trajectory
from trainer.evaluate.decision_points import DecisionPoint, Replayed
from trainer.evidence import Comparison, Evaluation, Interval, PolicyFigures, Role
from trainer.judge.outcome import IDENTITY
from trainer.types import Checkpoint, Completion

RIGHT = {1: "BUY", -1: "SELL"}


def up_or_down_window(window_id: str, direction: int, *, agents: int = 2) -> CheckedWindow:
    """A window in which ACME rose or fell by two per cent; every agent was asked in other words."""
    trajectories = tuple(
        make_trajectory(
            f"agent-{number}",
            window_id=window_id,
            trajectory_id=f"{window_id}/{number}",
            steps=[make_step(0, pnl=100.0, calls=[make_call(prompt=f"Agent {number}: ACME trades at 100.")])],
        )
        for number in range(agents)
    )
    stock = StockOutcome("ACME", 100.0, 100.0 + 2 * direction, 2.0 * direction)
    window = Window(window_id, 1, trajectories, WindowOutcomes(stocks=(stock,)))
    return CheckedWindow(window, trajectories, ())


def up_or_down_windows(number: int, seed: int = 0, *, agents: int = 2) -> list[CheckedWindow]:
    chance = random.Random(seed)
    return [
        up_or_down_window(f"2026-10-{1 + hour // 24:02}T{hour % 24:02}:00", chance.choice((1, -1)), agents=agents)
        for hour in range(number)
    ]


def direction_of(point: DecisionPoint) -> int:
    return 1 if (point.outcomes.stocks[0].change_percent or 0) > 0 else -1


class UpOrDownReplay:
    """BUY and SELL make or lose two per cent of a tenth of the balance; anything else is not an action."""

    def knows(self, point: DecisionPoint) -> bool:
        return True

    def play(self, point: DecisionPoint, reply: str) -> Replayed | None:
        if reply == "FORBIDDEN":
            return Replayed(Action(action_type="BUY", error="over the limit"), 0.0, is_valid=False, is_blocked=True)
        if reply not in RIGHT.values():
            return Replayed(Action(action_type="INVALID", error="unreadable"), 0.0, is_valid=False, is_blocked=False)
        action = Action(action_type=reply, parameters={"ticker": "ACME", "percent": 10}, success=True)
        made = 2.0 if reply == RIGHT[direction_of(point)] else -2.0
        return Replayed(action, made, is_valid=True, is_blocked=False)


@dataclass
class SkilledPolicy:
    """Right with probability ``skill``, otherwise wrong; with probability ``invalid`` no action at all."""

    skill: float
    name: str = "scripted"
    invalid: float = 0.0
    chance: random.Random = field(default_factory=random.Random)

    async def replies(self, point: DecisionPoint, *, samples: int, temperature: float, seed: int) -> list[Completion]:
        return [Completion(self._reply(direction_of(point))) for _ in range(samples)]

    def _reply(self, direction: int) -> str:
        if self.chance.random() < self.invalid:
            return "I would rather not say."
        return RIGHT[direction if self.chance.random() < self.skill else -direction]


@dataclass
class FixedPolicy:
    """Gives these replies in turn, at every decision point alike."""

    texts: Sequence[str]
    name: str = "fixed"

    async def replies(self, point: DecisionPoint, *, samples: int, temperature: float, seed: int) -> list[Completion]:
        return [Completion(self.texts[sample % len(self.texts)]) for sample in range(samples)]


def make_checkpoint(
    step: int, model: str = "hindsight", location: str = "wandb-artifact:///team/game/hindsight"
) -> Checkpoint:
    return Checkpoint(model, step, "base", "serverless", f"{location}:step{step}")


def make_evaluation(
    step: int = 1,
    *,
    model: str = "hindsight",
    gain: tuple[float, float, float] = (0.2, 0.1, 0.3),
    run_id: str | None = None,
    error_rate: float = 0.05,
    evaluation_id: str | None = None,
) -> Evaluation:
    """An evaluation that says what it is told to."""

    def sure(mean: float) -> Interval:
        return Interval(mean, mean, mean, 20)

    figures = tuple(
        PolicyFigures(role, name, sure(0.6), sure(1.0), sure(0.9), sure(error_rate), sure(0.0), sure(10.0))
        for role, name in ((Role.CANDIDATE, f"{model}@step{step}"), (Role.INCUMBENT, "base"))
    )
    comparison = Comparison(
        Role.INCUMBENT,
        "base",
        Interval(*gain, 20),
        sure(0.7),
        sure(0.5),
        sure(-0.1),
        length_ratio=1.0,
        windows_needed=9,
    )
    return Evaluation(
        evaluation_id=evaluation_id or f"evaluation-of-{model}-{step}-{gain[0]}",
        run_id=run_id,
        model=model,
        candidate=make_checkpoint(step, model).as_release(),
        incumbent=None,
        judge=IDENTITY,
        training_judge="outcome",
        decision_points=20,
        samples=2,
        left_out={},
        windows=(),
        figures=figures,
        comparisons=(comparison,),
        score_pnl_correlation=0.5,
        best=None,
        worst=None,
        judge_cost_usd=0.0,
        seed=0,
        created_at=datetime(2026, 11, 2, tzinfo=UTC),
    )
