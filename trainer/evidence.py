"""What an evaluation found, as stored in the ledger and shown in the report.

Plain frozen types with a JSON form of their own; nothing here computes. ``evaluate`` fills them, ``gate`` reads
them, and a report written a year later decodes them again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

import msgspec

from trainer.types import JudgeIdentity, Release


class Role(StrEnum):
    """Who is compared. The candidate is always one of them; the gate only looks at the incumbent."""

    CANDIDATE = "candidate"
    INCUMBENT = "incumbent"
    BASE = "base"
    GREEDY = "greedy base"
    """The untrained model at its best: most of what training seems to gain can be had by not sampling."""
    RANDOM = "random valid"
    """Always an action, picked at random: what validity alone is worth."""
    BASELINE = "baseline"
    NO_LESSONS = "without lessons"
    """The candidate without its lessons, where the incumbent is not just that."""
    RANDOM_LESSONS = "random lessons"
    """The candidate with lessons by chance: what any text in that place is worth."""
    RANDOM_MUTATION = "random mutation"
    """The candidate with a random mutation of the prompt that it would replace: what any change of it is worth."""


@dataclass(frozen=True, slots=True)
class PolicyFigures:
    """How one policy did over all held-out windows. Intervals are over windows; None means not measured."""

    role: Role
    name: str
    score: Interval
    pnl: Interval | None
    """Realised P&L per decision in the game's money, where the market can be replayed."""
    valid_rate: Interval | None
    error_rate: Interval
    """Replies that were empty, cut off, not an action, or failed for a reason other than the safety guard."""
    blocked_rate: Interval | None
    """Replies that the safety guard stopped, where the market can be replayed."""
    reply_length: Interval
    """Characters."""
    score_if_valid: Interval | None = None
    """Score of the valid replies alone: the decision, apart from the form."""
    pnl_if_valid: Interval | None = None
    kl_from_base: float | None = None
    """Mean per token of its own replies here; only for the candidate, and only if it runs on this machine."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Candidate minus another policy at the same decision points."""

    against: Role
    name: str
    score_difference: Interval
    win_rate: Interval
    """How often the candidate's replies beat the other's at the same point; a tie counts one half."""
    pnl_difference: Interval | None
    error_difference: Interval
    length_ratio: float
    windows_needed: int | None
    """Windows needed to separate the score difference from the required gain; None if no number would be enough."""
    point_noise: float | None = None
    """Share of the variance between windows that comes from the choice of points within them; None if not measured."""


@dataclass(frozen=True, slots=True)
class ExampleReply:
    role: Role
    name: str
    text: str
    score: float
    pnl: float | None
    explanation: str


@dataclass(frozen=True, slots=True)
class ExampleDecision:
    """One decision point with each policy's reply and what the judge said about it."""

    window_id: str
    trajectory_id: str
    agent_id: str
    step_number: int
    observation: str
    replies: tuple[ExampleReply, ...]
    difference: float
    """Candidate's mean score minus the incumbent's here."""


@dataclass(frozen=True, slots=True)
class WindowFigures:
    window_id: str
    scores: dict[Role, float]
    pnl: dict[Role, float]
    """Empty where the market cannot be replayed."""


class Reader(StrEnum):
    """Who takes the reading test. The agents' temperature is the default; greedy is a control."""

    CANDIDATE = "candidate"
    CANDIDATE_GREEDY = "candidate, greedy"
    BASE = "base"
    BASE_GREEDY = "base, greedy"
    RANDOM = "random valid"
    SCRIPT = "script that reads"


TRAINED_WORDS, UNSEEN_WORDS, UNSEEN_TICKERS, DAYS_AFTER = QUESTION_COLUMNS = (
    "trained words",
    "unseen words",
    "unseen tickers",
    "the days after",
)
"""What is asked in the simulated market. The days after are the evaluation's own windows."""

UNSEEN_PLACES = "unseen places and items"
"""In the simulated quests, instead of unseen tickers."""


@dataclass(frozen=True, slots=True)
class ReadingFigures:
    """One reader's answers to one column of questions. Intervals are over questions; None: nothing to divide by."""

    reader: Reader
    column: str
    questions: int
    valid: Interval | None
    right_of_valid: Interval | None
    """The decision apart from the form: how many of the valid replies take the direction that the news points to."""
    both: Interval | None
    """Valid and right, of all replies."""


@dataclass(frozen=True, slots=True)
class ReadingTest:
    """Questions with a known answer, asked of every model greedily and at the agents' temperature."""

    temperature: float
    figures: tuple[ReadingFigures, ...]
    stronger_base: Reader
    """The base model, greedy or not: whichever has more valid and right replies on the unseen words."""
    gain: Interval
    """Valid and right on the unseen words: candidate at the agents' temperature minus the stronger base, paired."""

    def of(self, reader: Reader, column: str) -> ReadingFigures | None:
        return next((one for one in self.figures if (one.reader, one.column) == (reader, column)), None)

    @property
    def columns(self) -> tuple[str, ...]:
        """What was asked."""
        return tuple(dict.fromkeys(one.column for one in self.figures))

    @property
    def headline(self) -> str:
        """The one number that says what training was worth, with its control."""

        def decided(reader: Reader) -> str:
            figures = self.of(reader, UNSEEN_WORDS)
            share = None if figures is None else figures.right_of_valid
            return "unknown" if share is None else share.told()

        base = "greedy" if self.stronger_base is Reader.BASE_GREEDY else f"at temperature {self.temperature:g}"
        return (
            f"Gain over the stronger base ({base}) on {self.gain.windows} questions with unseen words: "
            f"{self.gain.told('+')} valid and right; direction of the valid replies {decided(Reader.CANDIDATE)}, "
            f"the base's {decided(self.stronger_base)}"
        )


@dataclass(frozen=True, slots=True)
class Narrowing:
    """Validity where the candidate has the least practice, beside the base model's, at the agents' temperature.

    And greedily, where that is asked: a model that learnt a name may say it more surely the less it samples.
    """

    where: str
    questions: int
    candidate: float | None
    base: float | None
    """None if it could not be measured; then ``reason`` says why."""
    reason: str = ""
    greedy_candidate: float | None = None
    greedy_base: float | None = None
    """None if it was not asked apart: in a log, where agents are greedy themselves, and in evaluations of before."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Candidate against incumbent (and others) on held-out windows: all the evidence the gate has."""

    evaluation_id: str
    run_id: str | None
    """None for a comparison started by hand."""
    model: str
    candidate: Release
    incumbent: Release | None
    """None: the agents use the untrained base model."""
    judge: JudgeIdentity
    training_judge: str | None
    decision_points: int
    samples: int
    left_out: dict[str, int]
    """Decision points that gave no comparison, by reason."""
    windows: tuple[WindowFigures, ...]
    figures: tuple[PolicyFigures, ...]
    comparisons: tuple[Comparison, ...]
    score_pnl_correlation: float | None
    """Spearman's rank correlation of judge score and realised P&L over all replies."""
    best: ExampleDecision | None
    worst: ExampleDecision | None
    judge_cost_usd: float
    seed: int
    created_at: datetime
    reading: ReadingTest | None = None
    """Only in the simulated market, where the right answer is known."""
    narrowing: Narrowing | None = None
    absent: dict[Role, str] = field(default_factory=dict)
    """Contestants that could not take part, or not everywhere, and why."""
    measure: str = "P&L"
    """What the world calls success, whose figures stand under ``pnl``."""

    def of(self, role: Role) -> PolicyFigures | None:
        return next((figures for figures in self.figures if figures.role == role), None)

    def against(self, role: Role) -> Comparison | None:
        return next((comparison for comparison in self.comparisons if comparison.against == role), None)

    @property
    def differences(self) -> dict[str, float]:
        """Candidate minus incumbent in each window: what the gate decides on."""
        sides = (Role.CANDIDATE, Role.INCUMBENT)
        return {
            window.window_id: window.scores[sides[0]] - window.scores[sides[1]]
            for window in self.windows
            if all(side in window.scores for side in sides)
        }

    @property
    def compared_with(self) -> tuple[str, int, str, str]:
        """The incumbent's identity; that of the candidate's own base model if there is none."""
        return (self.model, 0, "", "") if self.incumbent is None else self.incumbent.identity

    @property
    def score_difference(self) -> Interval:
        """What the gate decides on: candidate minus incumbent."""
        comparison = self.against(Role.INCUMBENT)
        if comparison is None:
            raise ValueError(f"evaluation {self.evaluation_id} has no incumbent to compare with")
        return comparison.score_difference


def to_json(evaluation: Evaluation) -> str:
    return msgspec.json.encode(evaluation).decode()


def from_json(text: str | bytes) -> Evaluation:
    return msgspec.json.decode(text, type=Evaluation)


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over windows with its two-sided 95% interval. With too few windows the ends are None: unknown.

    In a reading test the unit is the question, and ``windows`` counts questions.
    """

    mean: float
    low: float | None
    high: float | None
    windows: int

    @property
    def is_known(self) -> bool:
        return self.low is not None and self.high is not None

    def told(self, sign: str = "") -> str:
        """``0.62 [0.55, 0.70]``; only the mean if the ends are unknown."""
        ends = f" [{self.low:{sign}.2f}, {self.high:{sign}.2f}]" if self.is_known else ""
        return f"{self.mean:{sign}.2f}{ends}"


class Ruling(StrEnum):
    PROMOTE = "promote"
    REFUSE = "refuse"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Look:
    """What one look of the gate may risk. Looks are counted in the ledger, so that looking often buys nothing."""

    number: int = 1
    """1 for the first look at a candidate."""
    harm_chance: float = 0.0
    """The chance of missing harm that this look spends from the year's budget; 0 if nothing is left."""

    @property
    def level(self) -> float:
        """The chance of taking no gain for one: 2.5 % at the first look, half as much at each further one."""
        return 0.025 / float(2 ** (self.number - 1))


@dataclass(frozen=True, slots=True)
class GateDecision:
    ruling: Ruling
    reasons: tuple[str, ...]
    expected_gain: float | None = None
    """The gain to expect, corrected for having been selected; only for a promotion."""
    look: Look | None = None
    """The look that was spent; None if guards alone decided, or there were too few windows to look."""

    @property
    def sentence(self) -> str:
        return "; ".join(self.reasons)
