"""The offline judge: ranks a group by the results of its decisions. Deterministic, free, and not an LLM.

It rewards luck as well as skill, so it is a yardstick and a stand-in. A trajectory's score is the share of its
decisions that are valid, times its rank in the group: from 0.25 for the worst to 1 for the best, so that a losing trade
never scores below an invalid action.

Profit is what the decisions made by the game's own prices, from the start of the window to its end, or what our own
replay computed. The accounts, prices and successes that a row claims count for nothing, so a lie about them gains
nothing: an amount of money is a share of the balance only by the agent's word, so each such stake counts as
``UNSIZED``; a bet, whose price no table has, wins or loses at even odds. It does not read what a model said: where
others than the team write the log, an LLM must judge. A member that cannot be measured is left out alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

import msgspec

from data_bridge.models import DECISIONS, AgentTrajectory, WindowOutcomes
from data_bridge.quality import Measurable, Reason, exclusion_of
from data_bridge.stakes import Deed, net_stakes, readings_of
from trainer.judge.sound import without_faulty_rows
from trainer.judge.view import decides, view_of
from trainer.ledger.verdicts import JudgedTrajectory, Judgement, JudgeQuestion, VerdictStore
from trainer.progress import JudgeUsage
from trainer.types import MIN_GROUP, Group, JudgedGroup, JudgeFailure, JudgeIdentity, Verdict

IDENTITY = JudgeIdentity(judge="outcome", rubric="outcome", rubric_version="2", prompt_version="2", is_llm=False)

FLOOR = 0.25
"""The lowest score of a valid decision: the gap to an invalid one, which gets 0."""

RISK_AVERSION = 2.0
"""Weight of the squared risk: a stake of the whole balance in a market that moved by 10 % costs 1 %."""

UNSIZED = 0.1
"""The share of the balance that a stake counts for if its decision names none."""

RESOLUTION = 1e-4
"""Returns closer than this (one basis point of the balance) count as equal: fees and rounding are not skill."""


_VALID = (Deed.STAKE, Deed.CLOSE, Deed.NO_TRADE, Deed.UNCLEAR)


@dataclass(frozen=True, slots=True)
class Assessment:
    """What the offline judge knows about one trajectory."""

    valid_share: float
    """Share of its decisions that are valid."""
    excess: float
    """Return on the starting balance in the window, beyond the market's own move."""
    at_risk: float
    """Share of the balance staked, times the size of the market's moves: the possible loss."""

    @property
    def utility(self) -> float:
        return self.excess - RISK_AVERSION / 2 * self.at_risk * self.at_risk


@dataclass(slots=True)
class OutcomeJudge:
    """Same interface as the LLM judge. With a store, its verdicts are also kept, for the lineage."""

    store: VerdictStore | None = None
    purposes: tuple[str, ...] = DECISIONS
    identity: JudgeIdentity = IDENTITY
    usage: JudgeUsage = field(default_factory=JudgeUsage)

    @without_faulty_rows(view_of, lambda group, _: [assess(one, group.outcomes) for one in group.trajectories])
    async def judge(self, group: Group) -> JudgedGroup | JudgeFailure:
        assessed = [(member, assess(member, group.outcomes)) for member in group.trajectories]
        known = [(member, assessment) for member, assessment in assessed if assessment is not None]
        detail = "what it earned does not follow from its actions and the game's prices"
        left_out = tuple(exclusion_of(member, Reason.NO_PNL, detail) for member, found in assessed if found is None)
        if left_out and len(known) < MIN_GROUP:
            self.usage.count_failure(Reason.NO_PNL)
            return JudgeFailure(group, Reason.NO_PNL, f"of {left_out[0].trajectory_id}: {detail}")
        judged = replace(group, trajectories=tuple(member for member, _ in known))
        whole, steps = scores([found for _, found in known]), scores_of_decisions(judged)
        verdicts = tuple(
            Verdict(member.trajectory_id, score, 0.0, _explain(assessment), steps=own)
            for (member, assessment), score, own in zip(known, whole, steps, strict=True)
        )
        key = await store_verdicts(self.store, self.identity, judged, verdicts, self.purposes)
        self.usage.count_group(cached=False)
        return JudgedGroup(judged, verdicts, self.identity, key, left_out=left_out)

    async def close(self) -> None:
        return


async def store_verdicts(
    store: VerdictStore | None,
    identity: JudgeIdentity,
    group: Group,
    verdicts: Sequence[Verdict],
    purposes: tuple[str, ...],
) -> str:
    """Keep the verdicts of a judge that computes, for the lineage; returns their key."""
    view = view_of(group, purposes)
    key = view.key(identity)
    if store is not None:
        by_id = {verdict.trajectory_id: verdict for verdict in verdicts}
        scored = tuple(
            JudgedTrajectory(
                shown.digest, verdict.trajectory_id, verdict.score, verdict.explanation, steps=verdict.steps
            )
            for shown in view.trajectories
            for verdict in [by_id[shown.trajectory.trajectory_id]]
        )
        question = JudgeQuestion(key, 0, group.window_id, group.group_id, identity)
        await store.store(question, Judgement(scored, prompt_hash=""))
    return key


def scores_of_decisions(group: Group) -> list[tuple[float, ...]]:
    """Each member's decisions, scored among those of the same place in the hour; empty if one cannot be measured.

    Members with a single decision have no other score than their whole.
    """
    nothing: list[tuple[float, ...]] = [() for _ in group.trajectories]
    steps = [[one for one in row.steps if one.action is not None or one.llm_calls] for row in group.trajectories]
    if max(map(len, steps), default=0) < 2:
        return nothing
    found: list[list[float]] = [[] for _ in steps]
    for place in range(max(map(len, steps))):
        there = [number for number, own in enumerate(steps) if place < len(own)]
        alone = [
            msgspec.structs.replace(group.trajectories[number], steps=[steps[number][place]], replayed_pnl=None)
            for number in there
        ]
        assessed = [assess(one, group.outcomes) for one in alone]
        measured = [one for one in assessed if one is not None]
        if len(measured) < len(assessed):
            return nothing
        for number, score in zip(there, scores(measured), strict=True):
            found[number].append(score)
    return [tuple(own) for own in found]


def assess(trajectory: AgentTrajectory, outcomes: WindowOutcomes) -> Assessment | None:
    """None if what the agent earned does not follow from its actions and the prices, or is absurdly large."""
    readings = readings_of(trajectory.actions, outcomes)
    held, earned = net_stakes(readings, UNSIZED), _replayed_return(trajectory)
    if held is None and earned is None:
        return None
    held = held or []
    moves = [stock.change_percent / 100 for stock in outcomes.stocks if stock.change_percent is not None]
    size_of_moves = fmean(abs(move) for move in moves) if moves else 0.0
    if earned is None:
        earned = sum((stake.share or 0.0) * stake.gain for stake in held)
    valid = sum(reading.deed in _VALID for reading in readings)
    decisions = sum(decides(step) for step in trajectory.steps)
    assessment = Assessment(
        valid_share=valid / decisions if decisions else 0.0,
        excess=earned - (fmean(moves) if moves else 0.0),
        at_risk=sum((stake.share or 0.0) * (1.0 if stake.is_bet else size_of_moves) for stake in held),
    )
    return assessment if math.isfinite(assessment.utility / RESOLUTION) else None


MEASURED_BY_OUTCOME = Measurable(
    lambda trajectory, outcomes, _: assess(trajectory, outcomes) is not None,
    Reason.NO_PNL,
    "what it earned in the window follows neither from its trades nor its accounts",
    "whose profit is known",
)


def scores(assessed: Sequence[Assessment]) -> list[float]:
    """By utility, see ``ranked_scores``."""
    return ranked_scores([round(one.utility / RESOLUTION) for one in assessed], [one.valid_share for one in assessed])


def ranked_scores(levels: Sequence[int], shares: Sequence[float]) -> list[float]:
    """Each one's rank among those with a valid decision, scaled by its share of valid ones."""
    ranked = [level for level, share in zip(levels, shares, strict=True) if share > 0]
    return [
        share * (FLOOR + (1 - FLOOR) * place_among(level, ranked)) if share > 0 else 0.0
        for level, share in zip(levels, shares, strict=True)
    ]


def place_among(level: int, ranked: Sequence[int]) -> float:
    """From 0 (below all others) to 1 (above all others); ties share the mean of their ranks."""
    if len(ranked) == 1:
        return 0.5
    below = sum(other < level for other in ranked)
    equal = sum(other == level for other in ranked) - 1
    return (below + equal / 2) / (len(ranked) - 1)


def _replayed_return(trajectory: AgentTrajectory) -> float | None:
    """Of an evaluated reply: all replies to the same decision have the same balance, so that it favours none."""
    balance = trajectory.starting_balance
    if trajectory.replayed_pnl is None or balance is None or balance <= 0:
        return None
    return trajectory.replayed_pnl / balance


def _explain(assessment: Assessment) -> str:
    return (
        f"{assessment.excess:+.2%} of the balance relative to the market, {assessment.at_risk:.2%} at risk, "
        f"{assessment.valid_share:.0%} of the decisions valid (offline judge, not an LLM)"
    )
