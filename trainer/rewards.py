"""The reward history: from a verdict to the advantage that was trained, member by member, with every number between.

``Verdict → components → shaped → pattern weight → credit → advantage``. The first fields of a ``MemberReward`` are what
was read, the others what ``trainer.train.credit`` made of them by the batch's ``CreditRule``. Both are stored before a
batch is sent, so the advantages of any step can be computed again, bit for bit, after a resume and by a later version
too.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CreditRule:
    """The numbers that credit depends on besides the verdicts: kept with every batch, since they may change."""

    validity: float
    """What the step from an invalid reply to a valid one is worth."""
    most_weight: float
    """The largest weight of an hour."""
    scale: bool = False
    """Whether advantages are divided by the group's deviation."""
    by_uncertainty: bool = False
    """Whether a group counts by how much its scores differ more than the judge differs with itself."""
    discount: float = 0.0
    """With --potential: how much of what follows a decision is credited with, by which its shaping is computed."""
    most_emphasis: float = 1.0
    """The largest weight of a group that shows an error pattern, before weights are divided by what they come to."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """What a member is compared with beside its group: the running mean of its agent's or role's scores."""

    whose: str = ""
    """``agent:ID`` or ``role:NAME``; empty without a baseline."""
    mean: float = 0.0


@dataclass(frozen=True, slots=True)
class Potential:
    """Of the state in which a decision was taken, and how many decisions there are from there on, itself included."""

    value: float = 0.0
    ahead: int = 0
    """0: not shaped."""


@dataclass(frozen=True, slots=True)
class Graded:
    """One member as credit sees it: the verdict, and what kind of answer it was."""

    trajectory_id: str
    score: float
    uncertainty: float
    answer: str | None
    """What kinds of thing the agent did; None if none of its actions could be taken."""
    valid_share: float | None
    """The share of its decisions that could be taken; None if one is no action of the game."""
    whose: str = ""
    baseline: float = 0.0
    """Whose running mean is taken off its score, and how much that is; see ``Baseline``."""
    step: int | None = None
    """The place of the decision, with --step-credit: then the score is the return from there. None: the whole."""
    potential: float = 0.0
    ahead: int = 0
    """With --potential: of the state in which the decision was taken; see ``Potential``."""
    emphasis: float = 1.0
    """What its group counts by the error patterns that it shows, before the step's weights are normalised."""


@dataclass(frozen=True, slots=True)
class MemberReward:
    """What one member of a group of a batch was credited with."""

    place: int
    """Of its group in the batch."""
    group_id: str
    graded: Graded
    validity: float
    decision: float
    """The two components, which sum to zero over the group."""
    weight: float
    """Of the hour's decisions in this step."""
    shaped: float
    """Both components together, weighted."""
    pattern_weight: float
    """Of its group in this step by error patterns: its emphasis, divided so that the step is as long as without."""
    credit: float
    """The reward that the backend is given: shaped, by its pattern weight and what the group's verdicts are worth."""
    advantage: float
    """GRPO's, as ART computes it; a factor that is the same for every token of the batch comes on top."""


@dataclass(frozen=True, slots=True)
class RewardHistory:
    """Of one batch: its rule and all its members in order, those too of which nothing is trained.

    They count for their group's mean, and their groups for the weights of the step.
    """

    rule: CreditRule
    members: tuple[MemberReward, ...]
