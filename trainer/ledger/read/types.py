"""What the report knows about one run. Frozen types: ``run_facts`` fills them, the report shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from trainer.evidence import Evaluation
from trainer.ledger.certificates import Certificate
from trainer.ledger.curriculum import ArmFacts
from trainer.ledger.releases import Promotion
from trainer.patterns.significance import ErrorPattern
from trainer.types import JudgeIdentity


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run as ``report.py --list`` shows it."""

    run_id: str
    state: str
    started_at: datetime
    steps: int


@dataclass(frozen=True, slots=True)
class StepFacts:
    """One gradient step."""

    step: int
    groups: int
    trajectories: int
    trainable_tokens: int
    metrics: Mapping[str, float]
    histogram: Mapping[str, list[float]] | None
    """Advantages: ``edges`` and ``counts``."""


@dataclass(frozen=True, slots=True)
class DayFacts:
    """One day of the closed loop. For a day played before a restart, only the training is known."""

    day: int
    played_with: str
    step: int
    valid_share: float | None = None
    mean_pnl: float | None = None
    """Mean per trajectory, in the game's money."""


@dataclass(frozen=True, slots=True)
class OrderAgreement:
    """How well the judge agreed with itself when the same group was shown in another order."""

    pairs: tuple[tuple[float, float], ...]
    mean_difference: float
    flip_share: float
    """Share of trajectory pairs in a group that two orders rank differently."""


@dataclass(frozen=True, slots=True)
class FurtherOrders:
    """Orders beyond the first of a group, by the reason why they were asked for or were not."""

    asked: Mapping[str, int] = field(default_factory=dict)
    unasked: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LuckFacts:
    """After two passes: how far scores move, on average, when the judge is told the outcome."""

    scores: int
    luck: float
    """Between the score without the outcome and the one with it."""
    corrected: float
    """Between the score without the outcome and what is trained."""


@dataclass(frozen=True, slots=True)
class ScoredPnl:
    """A trained trajectory: its score, and its P&L in its window."""

    trajectory_id: str
    score: float
    pnl: float


@dataclass(frozen=True, slots=True)
class CostFacts:
    """Calls to one judge in this run, for training and evaluation."""

    judge: str
    calls: int
    failed_calls: int
    prompt_tokens: int
    completion_tokens: int
    usd: float
    cached_tokens: int = 0
    """Of the prompt tokens, those that the provider's prefix cache served."""


@dataclass(frozen=True, slots=True)
class Words:
    """What the judge said about one trained trajectory."""

    agent_id: str
    score: float
    explanation: str


@dataclass(frozen=True, slots=True)
class WindowFacts:
    """One window that the run used, trained or not."""

    window_id: str
    state: str
    """As in the ledger; ``held_out`` or ``not planned`` for a window with exclusions only."""
    groups: int
    steps: tuple[int, ...]
    """The gradient steps that trained on it."""
    mean_score: float | None
    excluded: Mapping[str, int]
    """Trajectories that were left out, by reason."""
    best: Words | None = None
    worst: Words | None = None


@dataclass(frozen=True, slots=True)
class PatternWeightFacts:
    """What error patterns changed in a run's steps."""

    steps: int
    weighed: int
    """Steps in which a group counted more."""
    groups: int
    """Groups that did, over all steps."""
    most: float
    least: float
    """The smallest weight of a group that was in a step with one that counted more."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Everything that the page shows."""

    run_id: str
    model: str
    base_model: str
    backend: str
    state: str
    error: str | None
    attempts: int
    started_at: datetime
    finished_at: datetime | None
    settings: Mapping[str, Any]
    """As resolved; secrets show only whether they are set."""
    code_version: str | None
    judge: JudgeIdentity | None
    """The judge of the training data; None if nothing was judged."""
    certificate: Certificate | None
    groups_judged: int
    evaluation: Evaluation | None
    ruling: str | None
    ruling_reasons: tuple[str, ...]
    promotion: Promotion | None
    """The latest promotion of a checkpoint of this run, whatever its state."""
    steps: tuple[StepFacts, ...]
    failed_batches: tuple[str, ...]
    """What went wrong with each batch that failed or was lost."""
    days: tuple[DayFacts, ...]
    exclusions: Mapping[str, int]
    agreement: OrderAgreement | None
    scored_pnl: tuple[ScoredPnl, ...]
    """A sample of the trained trajectories whose P&L is known."""
    costs: tuple[CostFacts, ...]
    cost_curve: tuple[tuple[int, float], ...]
    """(calls, dollars spent by then)."""
    windows: tuple[WindowFacts, ...]
    simulated_windows: int
    """How many of ``windows`` the simulated market played."""
    leaked_windows: tuple[str, ...]
    """Evaluation windows in the candidate's own past: must be empty, or the comparison is invalid."""
    consulted: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """For each window, who was evaluated on it, in any run: the checkpoint, and the ruling if there was one."""
    patterns: tuple[ErrorPattern, ...] = ()
    """What went wrong again and again in what the run read."""
    arms: tuple[ArmFacts, ...] = ()
    """What its curriculum drew, from easy to hard."""
    further_orders: FurtherOrders = field(default_factory=FurtherOrders)
    luck: LuckFacts | None = None
    """None if the judge was asked in one pass."""

    @property
    def pattern_weights(self) -> PatternWeightFacts | None:
        """What error patterns changed in the run's steps; None without feedback of patterns."""
        steps = [one.metrics for one in self.steps if "pattern_groups" in one.metrics]
        if not steps:
            return None
        weighed = [one for one in steps if one["pattern_groups"]]
        return PatternWeightFacts(
            len(steps),
            len(weighed),
            round(sum(one["pattern_groups"] for one in weighed)),
            max((one["pattern_weight"] for one in weighed), default=1.0),
            min((one["pattern_weight_least"] for one in weighed), default=1.0),
        )

    @property
    def checkpoint(self) -> str:
        """The name of the checkpoint that this run is about."""
        if self.evaluation is not None:
            return self.evaluation.candidate.name
        return f"{self.model}@step{self.steps[-1].step}" if self.steps else self.model

    @property
    def trained_trajectories(self) -> int:
        return sum(step.trajectories for step in self.steps)

    @property
    def trained_tokens(self) -> int:
        return sum(step.trainable_tokens for step in self.steps)

    @property
    def cost_usd(self) -> float:
        return sum(cost.usd for cost in self.costs)

    @property
    def usd_per_token(self) -> float | None:
        """What judging cost for each token that was trained."""
        return self.cost_usd / self.trained_tokens if self.cost_usd > 0 and self.trained_tokens else None

    @property
    def usd_per_gain(self) -> float | None:
        """What judging cost for a gain of 1 in the judge's score over the incumbent; None without a measured gain."""
        gain = 0.0 if self.evaluation is None else self.evaluation.score_difference.mean
        return self.cost_usd / gain if self.cost_usd > 0 and gain > 0 else None
